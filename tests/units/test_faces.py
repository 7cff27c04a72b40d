"""The faces of one posterior agree: filter, refinement, estimator, job and report, on data that break assumptions.

All of them read the same information, so they agree to the digits that the arithmetic of different coordinates leaves:
the filter and refinement take a column of ones for the intercept, the estimator and the job centre their columns.
"""

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

import kalprox as kp
from kalprox import penalties
from kalprox.jobs.fit import FitJob
from kalprox.learning.learner import Learner
from kalprox.learning.settings import Settings
from kalprox.reports import summary
from kalprox.sources import Block
from kalprox.sources.columns import Columns
from kalprox.sources.table import Table

RNG = np.random.default_rng(3)
N, D = 400, 4
X = RNG.normal(size=(N, D)) + [0.0, 3.0, 0.0, -1.0]
Y = 2 + X @ [1.0, -0.5, 0.0, 0.25] + 0.3 * RNG.normal(size=N)
COPY, NEARLY = X.copy(), X.copy()
COPY[:, 3] = X[:, 0]  # rank deficient: two equal columns
NEARLY[:, 3] = X[:, 0] + 1e-7 * RNG.normal(size=N)  # collinear: condition 1e7
WEIGHTS = RNG.integers(0, 4, size=N).astype(float)
CASES = {
    "plain": (X, Y, None, {"penalty": None}),
    "ridge": (X, Y, None, {"alpha": 3.0}),
    "rank deficient": (COPY, Y, None, {"penalty": None}),
    "collinear": (NEARLY, Y, None, {"penalty": None}),
    "collinear ridge": (NEARLY, Y, None, {"alpha": 1e-3}),
    "weighted": (X, Y, WEIGHTS, {"penalty": "ridge", "alpha": 1.0}),
    "forgetting": (X, Y, None, {"penalty": "ridge", "alpha": 1.0, "forget": 0.99}),
    "l1": (X, Y, None, {"penalty": "l1", "alpha": 20.0}),
    "elastic net": (X, Y, WEIGHTS, {"penalty": "elasticnet", "alpha": 30.0}),
    "box": (X, Y, None, {"penalty": penalties.Box(0.0, 0.9)}),
    "noise given": (X, Y, None, {"penalty": "ridge", "alpha": 1.0, "noise": 0.09}),
    "few rows": (X[:3], Y[:3], None, {"penalty": "ridge", "alpha": 1.0}),
    "sigmoid": (X, 1 / (1 + np.exp(-(Y - 2))), None, {"link": "sigmoid", "alpha": 0.1}),
    "softplus l1": (X, np.log1p(np.exp(Y)), WEIGHTS, {"link": "softplus", "penalty": "l1", "alpha": 2.0}),
    "tanh, a copy": (COPY, np.tanh(Y - 2), None, {"link": "tanh", "penalty": None}),
}


def problem(settings, d):
    """h and g of the filter, with a column of ones for the intercept."""
    checked = Settings.of(**settings)
    g = checked.penalty.regularizer(checked.alpha).with_free_intercept(d)
    return checked, checked.model(), g


def read_filter(X, y, w, settings):
    checked, h, g = problem(settings, X.shape[1])
    ones = np.column_stack([np.ones(len(X)), X])
    if checked.is_exact:
        alg = kp.proximal_filter(h, g, gamma=checked.gamma, forget=checked.forgetting.per_row)
        state = alg.init(np.zeros(ones.shape[1]), None)
        for i in range(0, len(X), 70):
            state = alg.step(state, ones[i : i + 70], y[i : i + 70], None if w is None else w[i : i + 70])
        predicted = state.predict(ones[:17])
        return state.mean, np.sqrt(state.var()), float(state.noise.variance), predicted.mean, predicted.std
    rows = (ones, y) if w is None else (ones, y, w)
    out = kp.refine(h, g, rows, np.zeros(ones.shape[1]), gamma=checked.gamma)
    f, J = h.linearize_rows(out.mean, ones[:17])
    if not np.isfinite(out.cov).all():
        return out.mean, np.sqrt(np.diagonal(out.cov)), out.noise_var, f, None
    leverage = np.einsum("ij,jk,ik->i", J, out.cov, J)
    return out.mean, np.sqrt(np.diagonal(out.cov)), out.noise_var, f, np.sqrt(out.noise_var + leverage)


def read_belief(learner, X):
    belief, predicted = learner.belief, learner.predict(X[:17])
    return (
        np.r_[belief.intercept, belief.coef],
        np.r_[belief.intercept_std, belief.coef_std],
        float(belief.noise.variance),
        predicted.mean,
        predicted.std,
    )


def read_estimator(X, y, w, settings):
    model = kp.KalproxRegressor(**({"penalty": "ridge"} | settings)).fit(X, y, w)
    mean, std = model.predict(X[:17], return_std=True)
    coef, coef_std = np.r_[model.intercept_, model.coef_], np.r_[model.intercept_std_, model.coef_std_]
    return coef, coef_std, model.noise_var_, mean, std


def read_job(X, y, w, settings, folder):
    names = [f"x{j}" for j in range(X.shape[1])]
    columns = dict(zip(names, X.T, strict=True)) | {"y": y} | ({} if w is None else {"w": w})
    pa.parquet.write_table(pa.table(columns), folder / "rows.parquet")
    table = Table(str(folder / "rows.parquet"), Columns("y", None if w is None else "w", tuple(names)))
    fitted = FitJob(table, settings).run(folder / "model")
    rows = summary.coefficients(fitted).rows  # what the report and `kalprox show` print
    shown = np.array([row[2] for row in rows])
    stds = np.array([np.inf if row[3] == "undetermined" else np.nan if row[3] == "unknown" else row[3] for row in rows])
    coef, std, *rest = read_belief(fitted.learner, X)
    np.testing.assert_array_equal(shown, coef)
    np.testing.assert_array_equal(stds, std)
    return coef, std, *rest


SLOW = ("elastic net", "box", "softplus l1")  # a search in every block


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.slow] if case in SLOW else []) for case in CASES]
)
def test_all_faces_agree(case, tmp_path):
    X, y, w, settings = CASES[case]
    faces = {
        "estimator": read_estimator(X, y, w, settings),
        "filter": read_filter(X, y, w, settings),
        "job": read_job(X, y, w, settings, tmp_path),
    }
    learner = Learner(Settings.of(**settings))
    if learner.settings.is_exact:
        for i in range(0, len(X), 70):
            learner.learn(Block(X[i : i + 70], y[i : i + 70], None if w is None else w[i : i + 70]))
        faces["learner"] = read_belief(learner, X)
    # QR loses as many digits as the condition has; the forgetting of a stream multiplies roundings.
    rtol = {"collinear": 1e-7, "collinear ridge": 1e-7, "sigmoid": 1e-8, "softplus l1": 1e-8, "tanh, a copy": 1e-6}
    coef, std, noise, mean, scale = faces.pop("estimator")
    size = np.abs(coef).max()
    for name, (coef_, std_, noise_, mean_, scale_) in faces.items():
        tol = rtol.get(case, 1e-10)
        np.testing.assert_array_equal(np.isfinite(std_)[1:], np.isfinite(std)[1:], err_msg=f"{name}: which are known")
        known = np.isfinite(std)
        np.testing.assert_allclose(coef_[known], coef[known], rtol=tol, atol=tol * size, err_msg=f"{name}: coef")
        np.testing.assert_allclose(std_[known], std[known], rtol=tol, atol=1e-14, err_msg=f"{name}: std")
        np.testing.assert_allclose(noise_, noise, rtol=tol, err_msg=f"{name}: noise")
        np.testing.assert_allclose(mean_, mean, rtol=tol, atol=tol, err_msg=f"{name}: predictions")
        if scale_ is not None:
            np.testing.assert_allclose(scale_, scale, rtol=tol, err_msg=f"{name}: predictive std")


@pytest.mark.slow
def test_columns_equal_to_100_eps_are_undetermined_for_the_filter_too():
    """Over a million rows rounding alone tells such columns apart, so that no digit of their coefficients is known."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1_000_000, 2))
    X[:, 1] = X[:, 0] * (1 + 100 * np.finfo(float).eps * rng.choice([-1, 1], size=len(X)))
    y = X[:, 0] + rng.normal(size=len(X))
    model = kp.KalproxRegressor(penalty=None, fit_intercept=False).fit(X, y)
    alg = kp.proximal_filter(kp.models.Linear(), kp.regularizers.Zero(), gamma=None)
    state = alg.step(alg.init(np.zeros(2)), X, y)
    for coef, std in ((model.coef_, model.coef_std_), (state.mean, np.sqrt(state.var()))):
        np.testing.assert_allclose(coef, 0.5, atol=0.01)
        assert np.isinf(std).all()


@pytest.mark.parametrize("settings", [{}, {"penalty": None}, {"penalty": "l1"}, {"fit_intercept": False}])
@pytest.mark.parametrize("singles", [0, 1, 40])
def test_predictions_of_1_16_and_17_rows_are_the_same_numbers(settings, singles):
    model = kp.KalproxRegressor(**({"penalty": "ridge"} | settings)).partial_fit(X[:100], Y[:100])
    for i in range(100, 100 + singles):
        model.partial_fit(X[i : i + 1], Y[i : i + 1])
        model.predict(X[:1])
    mean, std = model.predict(X[200:217], return_std=True)
    for rows in (1, 16, 17):
        for begin in range(0, 17 - rows + 1):
            at = slice(begin, begin + rows)
            found = model.predict(X[200:217][at], return_std=True)
            np.testing.assert_allclose(found[0], mean[at], rtol=1e-13, atol=1e-14)
            np.testing.assert_allclose(found[1], std[at], rtol=1e-13)
            np.testing.assert_allclose(model.predict(X[200:217][at]), mean[at], rtol=1e-13, atol=1e-14)


def test_a_belief_does_not_change_when_its_learner_does():
    learner = Learner(Settings.of())
    learner.learn(Block(X[:100], Y[:100]))
    before, coef = learner.belief, learner.belief.coef.copy()
    covariance = before.covariance.copy()
    for i in range(100, 140):
        learner.learn(Block(X[i : i + 1], Y[i : i + 1]))
        learner.predict(X[:1])
    held = learner.belief
    held_coef = held.coef.copy()
    learner.learn(Block(X[140:400], Y[140:400]))
    np.testing.assert_array_equal(before.coef, coef)
    np.testing.assert_array_equal(before.covariance, covariance)
    np.testing.assert_array_equal(held.coef, held_coef)
    assert not np.array_equal(learner.belief.coef, coef)


def test_a_copy_of_an_estimator_learns_on_its_own():
    import copy

    model = kp.KalproxRegressor(penalty="ridge").partial_fit(X[:100], Y[:100]).partial_fit(X[100:101], Y[100:101])
    twin = copy.copy(model)
    coef = model.coef_.copy()
    for i in range(101, 130):
        twin.partial_fit(X[i : i + 1], Y[i : i + 1])
    np.testing.assert_array_equal(model.coef_, coef)
    assert (model.n_rows_seen_, twin.n_rows_seen_) == (101, 130)
