"""Streams of classes and counts with a structure, and their model files."""

import warnings

import numpy as np
import pytest
import scipy.sparse
from pairwise import product
from scipy.optimize import minimize

from kalprox import KalproxClassifier, KalproxRegressor, model_file
from kalprox.large.information import Weighed
from kalprox.large.rows import learn_rows
from kalprox.learning.saving import plain_setting
from kalprox.learning.settings import Settings
from kalprox.likelihoods import Bernoulli, Huber, Poisson, Student
from kalprox.model_file import ModelFileError
from kalprox.structures import Blocks, Diagonal, LastLayer, LowRank, UnderstatedWarning

# What a structure drops is said wherever a std is read; that it is said has tests of its own.
pytestmark = pytest.mark.filterwarnings("ignore::kalprox.structures.UnderstatedWarning")


def _classes(n, d, seed=0, sparse=False):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) * (rng.random((n, d)) < (0.3 if sparse else 1.0))
    coef = rng.normal(size=d) / np.sqrt(d)
    y = (rng.random(n) < 1 / (1 + np.exp(1 - X @ coef))).astype(int)
    return (scipy.sparse.csr_matrix(X) if sparse else X), y


def _map(A, m, D, y):
    """Return the minimiser of the logistic loss and 1/2 (t - m)'A(t - m), and its Hessian, by dense formulas."""
    theta = m
    for _ in range(50):
        p = 1 / (1 + np.exp(-D @ theta))
        H = A + (D.T * (p * (1 - p))) @ D
        theta = theta - np.linalg.solve(H, A @ (theta - m) + D.T @ (p - y))
    return theta, H


@pytest.mark.parametrize(
    ("likelihood", "structure", "sparse"),
    product(
        [Bernoulli(), Poisson(), Huber(scale=1.0), Student(scale=2.0)],
        [Diagonal(), LowRank(3), LowRank(8), Blocks([3, 5])],
        [False, True],
    ),
)
def test_the_mean_after_a_piece_is_the_minimiser(likelihood, structure, sparse):
    rng = np.random.default_rng(1)
    D, y, w = rng.normal(size=(40, 8)), rng.integers(0, 2, 40).astype(float), rng.uniform(0.5, 2.0, 40)
    offset, zero = rng.normal(size=40) / 4, np.zeros(8)
    before = structure.start(zero, np.linspace(1.0, 2.0, 8)).fold(rng.normal(size=(20, 8)), rng.normal(size=20))
    P = np.stack([before.apply(row) for row in np.eye(8)])
    m = before.mean

    def objective(theta):
        return w @ likelihood.loss(y, D @ theta + offset) + (theta - m) @ P @ (theta - m) / 2

    rows = Weighed(scipy.sparse.csr_matrix(D) if sparse else D, y, w, w, w)
    found, _, converged = learn_rows(before, likelihood, None, rows, offset)
    assert converged
    best = minimize(objective, m, method="BFGS", options={"gtol": 1e-9, "maxiter": 1000})
    # the scale is given, so that the spread of a robust loss is all that is learned
    np.testing.assert_allclose(found.mean, best.x, atol=2e-5 if likelihood.majorizes else 1e-6)


def test_a_stream_with_all_directions_is_the_recursion_of_dense_matrices():
    X, y = _classes(1000, 3)
    model = KalproxClassifier(structure=LowRank(4), diagnose=False)
    model.partial_fit(X[:4], y[:4], classes=[0, 1])
    for i in range(4, 1000, 60):  # 80 rows would be fitted in several passes
        model.partial_fit(X[i : i + 60], y[i : i + 60])
    belief = model._learner.belief
    D = np.c_[np.ones(1000), X - X[:4].mean(axis=0)]
    m, A = np.asarray(belief.data.prior_mean), np.diag(belief.data.prior_precision)
    first, _ = _map(np.eye(1) * 0.01, np.zeros(1), np.ones((4, 1)), y[:4])
    assert m[0] == pytest.approx(first[0], abs=0.01) and A[0, 0] == 0.01
    m, A = _map(A, m, D[:4], y[:4])
    for i in range(4, 1000, 60):
        m, A = _map(A, m, D[i : i + 60], y[i : i + 60])
    np.testing.assert_allclose(belief.data.mean, m, atol=1e-8)
    np.testing.assert_allclose(model.coef_std_[0], np.sqrt(np.linalg.inv(A).diagonal()[1:]), rtol=1e-6)
    batch = KalproxClassifier().fit(X, y)
    np.testing.assert_array_less(np.abs(model.coef_ - batch.coef_), 0.3 * batch.coef_std_)
    np.testing.assert_allclose(model.coef_std_, batch.coef_std_, rtol=0.05)


@pytest.mark.slow
def test_counts_end_within_a_tenth_of_a_standard_error_of_the_batch():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(8000, 3))
    exposure = rng.uniform(0.5, 2.0, 8000)
    y = rng.poisson(exposure * np.exp(X @ [0.3, -0.2, 0.1] + 0.5)).astype(float)
    for name in ("poisson", "quasi-poisson"):
        batch = KalproxRegressor(likelihood=name, penalty="ridge").fit(X, y, exposure=exposure)
        stream = KalproxRegressor(likelihood=name, structure=LowRank(4), penalty="ridge").partial_fit(
            X, y, exposure=exposure
        )
        np.testing.assert_array_less(np.abs(stream.coef_ - batch.coef_), 0.1 * batch.coef_std_)
        assert abs(stream.intercept_ - batch.intercept_) < 0.1 * batch.intercept_std_
        np.testing.assert_allclose(stream.coef_std_, batch.coef_std_, rtol=0.05)
        assert "calibrated" in str(stream.diagnostics_.verdict())


def test_a_diagonal_with_disjoint_columns_is_exact():
    """Rows of one column each have no correlations to lose, and one piece of them no linearisation elsewhere."""
    rng = np.random.default_rng(2)
    X = scipy.sparse.csr_matrix(np.eye(6)[rng.integers(6, size=200)])
    y = rng.integers(0, 2, 200)
    how = {"fit_intercept": False, "alpha": 0.5}
    model = KalproxClassifier(structure="diagonal", diagnose=False, **how).partial_fit(X, y, classes=[0, 1])
    batch = KalproxClassifier(**how).fit(X, y)
    np.testing.assert_allclose(model.coef_, batch.coef_, atol=1e-7)
    np.testing.assert_allclose(model.coef_std_, batch.coef_std_, rtol=1e-7)  # and nothing warns


@pytest.mark.parametrize("structure", ["diagonal", LowRank(4)], ids=str)
def test_sparse_and_dense_rows_and_weights_and_repeated_rows_agree(structure):
    X, y = _classes(120, 9, sparse=True)
    given = {"structure": structure, "diagnose": False, "fit_intercept": False}
    sparse, dense, weighted, repeated = (KalproxClassifier(**given) for _ in range(4))
    sparse.partial_fit(X, y, classes=[0, 1])
    dense.partial_fit(X.toarray(), y, classes=[0, 1])
    np.testing.assert_allclose(sparse.coef_, dense.coef_, rtol=1e-8, atol=1e-10)
    weighted.partial_fit(X, y, classes=[0, 1], sample_weight=np.full(120, 2.0))
    repeated.partial_fit(scipy.sparse.vstack([X, X]).tocsr(), np.r_[y, y], classes=[0, 1])
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, rtol=1e-6, atol=1e-8)
    ones = KalproxClassifier(**given)
    for i in range(120):
        ones.partial_fit(X[i], y[i : i + 1], classes=[0, 1])
    assert np.corrcoef(ones.coef_[0], sparse.coef_[0])[0, 1] > 0.95


def test_a_classifier_of_sparse_rows_reads_as_others_do():
    X, y = _classes(600, 50, sparse=True)
    labels = np.array(["no", "yes"])[y]
    model = KalproxClassifier(structure="diagonal")
    for i in range(0, 600, 200):
        model.partial_fit(X[i : i + 200], labels[i : i + 200], classes=["no", "yes"])
    assert model.coef_.shape == (1, 50) and model.score(X, labels) > 0.7 and model.converged_
    proba, std = model.predict_proba(X[:5], return_std=True)
    np.testing.assert_allclose(proba.sum(axis=1), 1.0)
    assert (std > 0).all() and model.diagnostics_.log_loss < np.log(2)
    with pytest.warns(UnderstatedWarning):
        assert (model.coef_std_ > 0).all()
    with pytest.raises(ValueError, match="a number, a count or two classes"):
        KalproxClassifier(structure="diagonal").partial_fit(X, np.arange(600) % 3, classes=[0, 1, 2])
    with pytest.raises(ValueError, match="y must be at least 0"):
        KalproxRegressor(structure="diagonal", likelihood="poisson").partial_fit(X, y - 1.0)


@pytest.mark.slow
def test_outliers_do_not_move_a_stream():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 3))
    y = X @ [1.0, -1.0, 0.5] + 10 + rng.normal(size=3000)
    y[rng.random(3000) < 0.05] += 50
    model = KalproxRegressor(structure=LowRank(4), likelihood="huber", penalty="ridge").partial_fit(X, y)
    batch = KalproxRegressor(likelihood="huber", penalty="ridge").fit(X, y)
    np.testing.assert_array_less(np.abs(model.coef_ - batch.coef_), 0.3 * batch.coef_std_)
    np.testing.assert_allclose(model.coef_std_, batch.coef_std_, rtol=0.1)
    assert abs(model.n_outliers_ - batch.n_outliers_) < 10


# ---- model files -------------------------------------------------------------------------------------


def _stream(kind, structure):
    X, y = _classes(300, 6, sparse=True)
    if kind == "bernoulli":
        return KalproxClassifier(structure=structure).partial_fit(X[:200], y[:200], classes=[0, 1]), X, y
    y = y + np.random.default_rng(5).normal(size=300) ** 2
    return KalproxRegressor(structure=structure, likelihood=kind, penalty="ridge").partial_fit(X[:200], y[:200]), X, y


@pytest.mark.parametrize(
    ("kind", "structure", "samples"),
    product(["gaussian", "bernoulli", "huber"], ["diagonal", LowRank(3), LastLayer([1, 4], rank=2)], [True, False]),
)
def test_a_model_is_loaded_as_it_was_and_learns_on_bit_for_bit(kind, structure, samples, tmp_path):
    model, X, y = _stream(kind, structure)
    model.save(tmp_path / "model", samples=samples)
    again = type(model).load(tmp_path / "model")
    assert again.structure == structure and type(again.structure) is type(structure)
    compare = np.testing.assert_array_equal if samples else np.testing.assert_allclose
    read = (
        (lambda m: m.predict_proba(X, return_std=True))
        if kind == "bernoulli"
        else (lambda m: m.predict(X, return_std=True))
    )
    for _ in range(1 + samples):  # directions that were turned round otherwise as rows are learned
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnderstatedWarning)
            compare(again.coef_std_, model.coef_std_)
        compare(np.stack(read(again)), np.stack(read(model)))
        compare(again.coef_, model.coef_)
        assert again.n_rows_seen_ == model.n_rows_seen_
        for one in (model, again):
            one.partial_fit(X[200:], y[200:])


@pytest.mark.slow
def test_a_fit_is_loaded_as_it_was(tmp_path):
    X, y = _classes(200, 5, sparse=True)
    for model in (
        KalproxRegressor(structure=LowRank(2), penalty="l1").fit(X, y.astype(float)),
        KalproxClassifier(structure="diagonal", standardize=True).fit(X, np.arange(200) % 3),
        KalproxRegressor(structure=LowRank(2), likelihood="negative-binomial").fit(X, np.arange(200.0) % 7),
    ):
        model.save(tmp_path / "model")
        again = type(model).load(tmp_path / "model")
        np.testing.assert_array_equal(again.coef_, model.coef_)
        np.testing.assert_array_equal(again.predict(X), model.predict(X))


def test_numbers_of_columns_are_arrays_and_not_text(tmp_path):
    X = scipy.sparse.random_array((50, 1 << 14), density=1e-3, rng=np.random.default_rng(0), format="csr")
    model = KalproxRegressor(structure="diagonal", penalty="ridge").partial_fit(X, np.arange(50.0))
    model.save(tmp_path / "model")
    assert len(str(model_file.read(tmp_path / "model")[0])) < 2000


@pytest.mark.parametrize(
    "change",
    [
        {"belief.data.precision.base.p": np.zeros(7)},
        {"belief.data.precision.base.p": np.ones(6)},
        {"belief.data.precision.W": np.zeros((99, 7)), "belief.data.precision.gram": np.zeros((99, 99))},
        {"belief.data.precision.gram": np.eye(2)},
        {"belief.data.precision.gram": -10 * np.eye(15)},
        {"belief.data.mean": np.full(7, np.nan)},
        {"belief.data.mean": np.full(7, 1e200)},
        {"belief.data.rss": np.array(-1.0)},
        {"belief.data.traces": np.zeros(3)},
        {"belief.noise_found.variance": np.array(-1.0)},
        {"belief.seen.squares": np.full(6, -1.0)},
        {"belief.fixed.scale": np.zeros(6)},
    ],
    ids=str,
)
def test_what_learning_cannot_have_produced_is_refused(change, tmp_path):
    _stream("gaussian", LowRank(3))[0].save(tmp_path / "model")
    header, arrays = model_file.read(tmp_path / "model")
    assert set(change) <= set(arrays)
    model_file.write(tmp_path / "model", header, arrays | change)
    with pytest.raises(ModelFileError):
        KalproxRegressor.load(tmp_path / "model")
    for settings in ({"structure": {"structure": "LowRank", "fields": {"rank": 0}}}, {"structure": {"structure": "x"}}):
        model_file.write(tmp_path / "model", header | {"settings": header["settings"] | settings}, arrays)
        with pytest.raises(ModelFileError):
            KalproxRegressor.load(tmp_path / "model")


def test_structures_are_plain_settings():
    for structure in (Diagonal(), LowRank(7), Blocks([2, 3]), LastLayer(2, rank=3), LastLayer([0, 4])):
        assert Settings.of(structure=structure).structure == structure
        assert "structure" in plain_setting("structure", structure)


@pytest.mark.parametrize("structure", ["diagonal", pytest.param(LowRank(20), marks=pytest.mark.slow)])
@pytest.mark.parametrize("sparse", [False, True])
def test_the_noise_is_that_of_the_predictions_of_late_rows(structure, sparse):
    """Errors of the first rows, whose variances the structure understates, had made the std twice too large."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(4500, 200)) * (rng.random((4500, 200)) < 0.5 if sparse else 1.0)
    y = X @ rng.normal(size=200) + rng.normal(size=4500)
    rows = scipy.sparse.csr_array(X) if sparse else X
    model = KalproxRegressor(structure=structure, alpha=1.0, penalty="ridge")
    for i in range(0, 4000, 500):
        model.partial_fit(rows[i : i + 500], y[i : i + 500])
    mean, std = model.predict(rows[4000:], return_std=True)
    # 500 squares have a relative std of 0.06; the noise has about 900 degrees of freedom, and falls on the way.
    assert 0.75 < np.mean(((y[4000:] - mean) / std) ** 2) < 1.2
    assert 800 < model.noise_dof_ < 1000 and model.diagnostics_.verdict().word != "drifting"


@pytest.mark.parametrize(
    "structure",
    [pytest.param("diagonal", id="diagonal"), pytest.param(LowRank(2), id="LowRank", marks=pytest.mark.slow)],
)
def test_changes_are_found_with_a_structure(structure):
    """They are looked for in the residuals, which need no matrix."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1200, 5))
    y = X @ [1.0, 2.0, 0.0, 0.0, 1.0] + rng.normal(size=1200)
    for jump, found in ((2.0, 1), (0.0, 0)):
        model = KalproxRegressor(structure=structure, change_points=True, penalty="ridge")
        for i in range(0, 1200, 50):
            model.partial_fit(X[i : i + 50], y[i : i + 50] + jump * (i >= 600))
        assert len(model.change_points_) == found
        assert all(590 < change.row < 620 for change in model.change_points_)


@pytest.mark.parametrize("structure", ["diagonal", LowRank(2)], ids=["diagonal", "LowRank"])
def test_imputed_rows_are_those_with_the_means_filled_in(structure):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 4))
    gaps = np.where(rng.random(X.shape) < 0.1, np.nan, X)
    filled = np.where(np.isnan(gaps), np.nanmean(gaps, axis=0), gaps)
    y = X[:, 0] + rng.normal(size=200)
    found = KalproxRegressor(structure=structure, missing="impute", penalty="ridge").fit(gaps, y)
    expected = KalproxRegressor(structure=structure, penalty="ridge").fit(filled, y)
    np.testing.assert_allclose(found.coef_, expected.coef_, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.coef_std_, expected.coef_std_, rtol=1e-9)
    np.testing.assert_allclose(found.predict(gaps), expected.predict(filled), rtol=1e-9, atol=1e-12)
