"""Names of earlier versions say what stands in their place, and models whose rows leave coefficients open say so."""

import inspect

import numpy as np
import pytest
from click.testing import CliRunner
from sklearn.base import clone

from kalprox import KalproxClassifier, KalproxRegressor
from kalprox.cli import main


@pytest.mark.parametrize(
    ("name", "new"),
    [
        ("l1_ratio", r"ElasticNet\(l1_ratio\)"),
        ("groups", r"clusters, and for a penalty penalty=kalprox.penalties.Group"),
        ("weights", "weight_kind"),
        ("on_bad_rows", "missing='drop'"),
        ("method", "kalprox.paper.PIPGRegressor"),
    ],
)
@pytest.mark.parametrize("estimator", [KalproxRegressor, KalproxClassifier])
def test_a_parameter_of_before_names_the_new_one(estimator, name, new):
    with pytest.raises(TypeError, match=f"{name} is gone since kalprox 0.3; in its place stands .*{new}"):
        estimator(**{name: 1})


@pytest.mark.parametrize(
    ("option", "new"),
    [
        ("--half-life", "--forget time,half_life=NUMBER"),
        ("--l1-ratio", "--penalty elasticnet,l1_ratio=NUMBER"),
        ("--weights", "--weight-kind"),
    ],
)
@pytest.mark.parametrize("command", ["fit", "stream"])
def test_an_option_of_before_names_the_new_one(command, option, new):
    found = CliRunner().invoke(main, [command, "a.csv", option, "1"])
    assert found.exit_code == 2
    assert f"{option} is gone since kalprox 0.3; in its place stands {new}." in found.output


@pytest.mark.parametrize("estimator", [KalproxRegressor, KalproxClassifier])
def test_fit_and_from_formula_name_the_new_ones(estimator):
    with pytest.raises(TypeError, match=r"groups is gone since kalprox 0.3; in its place stands clusters"):
        estimator().fit(np.eye(4), [0, 1, 0, 1], groups=[0, 0, 1, 1])
    with pytest.raises(AttributeError, match=r"from_formula is gone since kalprox 0.3; .* parameter formula"):
        estimator.from_formula("y ~ x", None)
    assert not hasattr(estimator(), "from_formula")


@pytest.mark.parametrize("estimator", [KalproxRegressor, KalproxClassifier])
def test_parameters_are_still_those_of_scikit_learn(estimator):
    names = set(inspect.signature(estimator).parameters)
    assert set(estimator().get_params()) == names and len(names) <= 20
    assert clone(estimator(alpha=3.0)).alpha == 3.0
    with pytest.raises(TypeError, match="unexpected keyword argument 'penality'"):
        estimator(penality="l1")


def test_coefficients_that_rows_leave_open_are_said_to_be():
    rng = np.random.default_rng(3)
    X, y = rng.normal(size=(20, 50)), rng.normal(size=20)
    notes = " ".join(KalproxRegressor().fit(X, y).summary().notes)
    assert "neither the rows nor the penalty determine 50 of the coefficients" in notes and "alpha='auto'" in notes
    notes = " ".join(KalproxRegressor().fit(np.c_[X[:, :2], X[:, 0]], y).summary().notes)
    assert "determine 2 of the coefficients" in notes
    for model in (KalproxRegressor(penalty="ridge", alpha="auto").fit(X, y), KalproxRegressor().fit(X[:, :3], y)):
        assert "Undetermined" not in " ".join(model.summary().notes)
