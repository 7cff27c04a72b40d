"""`kp.load` reads whatever a model was saved as, and says what is no model file."""

import numpy as np
import pytest
from command import invoke

import kalprox as kp

X = np.random.default_rng(0).normal(size=(60, 2))
Y = X @ [1.0, -2.0]


def bandit():
    found = kp.decisions.Bandit(["a", "b"], random_state=0)
    found.reward(found.sample([1.0]).key, 1.0)
    return found


@pytest.mark.parametrize(
    "model",
    [
        kp.KalproxRegressor(penalty="ridge").fit(X, Y),
        kp.KalproxRegressor(likelihood="poisson").partial_fit(X, np.round(np.abs(Y))),
        kp.KalproxClassifier().fit(X, np.where(Y > 0, "yes", "no")),
        bandit(),
    ],
    ids=lambda model: type(model).__name__,
)
def test_a_model_is_loaded_as_what_it_is(model, tmp_path):
    model.save(tmp_path / "m.kalprox")
    same = kp.load(tmp_path / "m.kalprox")
    assert type(same) is type(model)
    if hasattr(model, "coef_"):
        np.testing.assert_array_equal(same.coef_, model.coef_)


def test_a_model_of_the_command_line_is_one_of_python(tmp_path):
    (tmp_path / "t.csv").write_text("a,b,y\n" + "\n".join(f"{a},{b},{a - b}" for a, b in X.round(3)))
    invoke("fit", tmp_path / "t.csv", "--target", "y", "--out", tmp_path / "m.kalprox")
    assert list(kp.load(tmp_path / "m.kalprox").feature_names_in_) == ["a", "b"]


def test_what_is_no_model_file_is_said(tmp_path):
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="is not a kalprox model file"):
        kp.load(tmp_path / "t.csv")
