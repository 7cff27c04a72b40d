"""KalproxClassifier: scikit-learn's checks, equality with other libraries, streams, merges, files and errors."""

import copy
import pickle
import re
import warnings

import numpy as np
import pytest
import scipy.sparse
from scipy import stats
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from kalprox import KalproxClassifier, KalproxRegressor
from kalprox.learning.belief import ApproximateMerge
from kalprox.model_file import ModelFileError


@pytest.fixture(scope="module")
def two():
    """1,500 rows of two classes, in columns far from zero."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1500, 4)) * [1.0, 2.0, 0.5, 1.0] + [0.0, 5.0, -3.0, 1.0]
    f = (X - [0, 5, -3, 1]) @ [1.0, -0.5, 0.0, 0.4] - 0.5
    return X, np.where(rng.random(len(X)) < 1 / (1 + np.exp(-f)), "yes", "no")


@pytest.fixture(scope="module")
def three():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(2000, 3)) + [1.0, 0.0, -2.0]
    F = X @ np.array([[1.0, 0.0, -1.0], [0.5, -0.5, 0.0], [0.0, 0.3, -0.3]])
    return X, (F + rng.gumbel(size=F.shape)).argmax(axis=1)


def streamed(model, X, y, size=100):
    classes = np.unique(y)
    for i in range(0, len(y), size):
        model.partial_fit(X[i : i + size], y[i : i + size], classes=classes)
    return model


# ---- the minimiser ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", ["two", "three"])
@pytest.mark.parametrize("alpha", [1.0, 30.0])
def test_equals_logistic_regression(data, alpha, request):
    X, y = request.getfixturevalue(data)
    ours = KalproxClassifier(alpha=alpha).fit(X, y)
    theirs = LogisticRegression(C=1 / alpha, solver="newton-cholesky", tol=1e-14, max_iter=200).fit(X, y)
    assert (
        ours.converged_ and ours.coef_.shape == theirs.coef_.shape and ours.intercept_.shape == theirs.intercept_.shape
    )
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=0, atol=1e-8)
    shift = theirs.intercept_ - (theirs.intercept_.mean() if data == "three" else 0)  # which probabilities do not see
    np.testing.assert_allclose(ours.intercept_, shift, rtol=0, atol=1e-8)
    if data == "three":
        np.testing.assert_allclose(ours.decision_function(X[:5]).sum(axis=1), 0, atol=1e-10)


def test_weights_and_class_weights_equal_those_of_logistic_regression(two):
    X, y = two
    weights = np.random.default_rng(2).integers(0, 4, len(y)).astype(float)
    for class_weight in ("balanced", {"no": 1.0, "yes": 3.0}):
        ours = KalproxClassifier(class_weight=class_weight).fit(X, y, weights)
        how = {"solver": "newton-cholesky", "tol": 1e-14, "max_iter": 200}
        theirs = LogisticRegression(class_weight=class_weight, **how).fit(X, y, weights)
        np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=0, atol=1e-8)


def test_standard_errors_equal_those_of_statsmodels(two, three):
    sm = pytest.importorskip("statsmodels.api")
    X, y = two
    ours, design = KalproxClassifier(penalty=None).fit(X, y), sm.add_constant(X)
    theirs = sm.Logit(y == "yes", design).fit(disp=0, tol=1e-14, maxiter=100)
    np.testing.assert_allclose(ours.coef_[0], theirs.params[1:], atol=1e-8)
    np.testing.assert_allclose(ours.coef_std_[0], theirs.bse[1:], rtol=1e-8)
    np.testing.assert_allclose(ours.intercept_std_[0], theirs.bse[0], rtol=1e-8)
    robust = KalproxClassifier(penalty=None, coef_cov="robust").fit(X, y)
    V, p = np.asarray(theirs.cov_params()), theirs.predict()
    scores = design * ((y == "yes") - p)[:, None] / (1 - p * (1 - p) * ((design @ V) * design).sum(axis=1))[:, None]
    np.testing.assert_allclose(robust.coef_std_[0], np.diag(V @ scores.T @ scores @ V)[1:] ** 0.5, rtol=1e-7)

    X, y = three
    ours = KalproxClassifier(penalty=None).fit(X, y)
    theirs = sm.MNLogit(y, sm.add_constant(X)).fit(disp=0, tol=1e-14, maxiter=100, method="newton")
    np.testing.assert_allclose((ours.coef_[1:] - ours.coef_[0]).T, theirs.params[1:], atol=1e-8)
    # The covariance of a coefficient, less the mean over classes, from that of the contrasts with the first class.
    C = np.asarray(theirs.cov_params())  # ordered by class, then by input
    p = X.shape[1] + 1
    K = np.vstack([np.full((1, 2), -1 / 3), np.eye(2) - 1 / 3])  # from contrasts to deviations from the mean
    whole = np.kron(K, np.eye(p)) @ C @ np.kron(K, np.eye(p)).T
    expected = np.sqrt(np.diag(whole)).reshape(3, p)
    np.testing.assert_allclose(ours.coef_std_, expected[:, 1:], rtol=1e-7)
    np.testing.assert_allclose(ours.intercept_std_, expected[:, 0], rtol=1e-7)


@pytest.mark.parametrize("data", ["two", "three"])
def test_l1_has_the_zeros_of_scikit_learn(data, request):
    X, y = request.getfixturevalue(data)
    X = np.hstack([X, np.random.default_rng(3).normal(size=(len(X), 6))])
    ours = KalproxClassifier(penalty="l1", alpha=20.0).fit(X, y)
    how = {"solver": "saga", "l1_ratio": 1.0, "C": 1 / 20, "tol": 1e-10, "max_iter": 20_000, "random_state": 0}
    theirs = LogisticRegression(**how).fit(StandardScaler(with_std=False).fit_transform(X), y)
    assert 0 < (ours.coef_ == 0).sum() < ours.coef_.size
    np.testing.assert_array_equal(ours.coef_ == 0, theirs.coef_ == 0)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-5)  # what saga reaches
    low, high = ours.coef_interval()
    assert np.isfinite(low).all() and np.isfinite(high).all()


# ---- probabilities ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", ["two", "three"])
def test_probabilities_are_averaged_over_the_posterior(data, request):
    X, y = request.getfixturevalue(data)
    model = KalproxClassifier().fit(X[:60], y[:60])  # few rows, so that averaging matters
    proba, std = model.predict_proba(X[:40], return_std=True)
    coef, intercept = model.sample(20_000, random_state=0)
    f = np.einsum("ij,scj->sic", X[:40], coef) + intercept[:, None, :]
    f = np.concatenate([np.zeros_like(f), f], axis=2) if data == "two" else f
    p = np.exp(f - f.max(axis=2, keepdims=True))
    p /= p.sum(axis=2, keepdims=True)
    np.testing.assert_allclose(proba, p.mean(axis=0), atol=5 * 0.5 / 20_000**0.5)
    np.testing.assert_allclose(std, p.std(axis=0), atol=0.015)
    np.testing.assert_allclose(proba.sum(axis=1), 1, atol=1e-12)
    np.testing.assert_array_equal(model.predict(X[:40]), model.classes_[proba.argmax(axis=1)])
    np.testing.assert_allclose(model.predict_log_proba(X[:40]), np.log(proba))
    at_estimate = LogisticRegression(solver="newton-cholesky", tol=1e-12).fit(X[:60], y[:60]).predict_proba(X[:40])
    assert proba.max() < at_estimate.max()  # less certain than the estimate alone


def test_a_row_far_from_all_others_is_not_certain():
    X, y = load_iris(return_X_y=True)
    model = KalproxClassifier().fit(X, y)
    proba, std = model.predict_proba(1000 * np.array([[1.0, -1.0, 1.0, -1.0]]), return_std=True)
    assert proba.max() < 0.95 and std.max() > 0.2


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [1e-6, 1.0])
def test_coverage_of_coefficients_and_probabilities(alpha):
    """95% intervals over 50 streams, with coefficients from the ridge prior; how many cover is binomial."""
    covered, inside, tried, shown = 0, 0, 0, 0
    for seed in range(50):
        rng = np.random.default_rng(seed)
        X, b = rng.normal(size=(500, 3)), rng.normal(size=3)
        y = rng.random(500) < 1 / (1 + np.exp(-X @ b))
        model = streamed(KalproxClassifier(alpha=alpha, fit_intercept=False), X, y, 50)
        low, high = model.coef_interval()
        covered, tried = covered + int(((low <= b) & (b <= high)).sum()), tried + 3
        x = rng.normal(size=(5, 3))
        draws = model.sample(400, random_state=seed)[0][:, 0] @ x.T  # the log odds
        low, high = np.quantile(draws, [0.025, 0.975], axis=0)
        inside, shown = inside + int(((low <= x @ b) & (x @ b <= high)).sum()), shown + 5
    for hits, n, share in ((covered, tried, 1), (inside, shown, 5)):  # the five log odds of a stream are dependent
        sd = (0.95 * 0.05 * n * share) ** 0.5
        assert abs(hits - 0.95 * n) < 3.3 * sd + 0.01 * n  # and 1% for the quantiles of 400 draws and Laplace's form


# ---- streams -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("data", ["two", "three"])
@pytest.mark.parametrize("size", [1, 37, 2000])
def test_a_stream_ends_within_a_tenth_of_a_standard_error(data, size, request):
    X, y = request.getfixturevalue(data)
    if size == 1:
        X, y = X[:600], y[:600]
    whole, stream = KalproxClassifier().fit(X, y), streamed(KalproxClassifier(), X, y, size)
    assert stream.n_rows_seen_ == len(y)
    assert (np.abs(stream.coef_ - whole.coef_) / whole.coef_std_).max() < 0.1
    assert (np.abs(stream.intercept_ - whole.intercept_) / whole.intercept_std_).max() < 0.1
    # Moments are matched to the average curvature under the belief, which is that at the minimiser up to O(1 / rows).
    np.testing.assert_allclose(stream.coef_std_, whole.coef_std_, rtol=60 / len(y))


@pytest.mark.slow
def test_rare_events_in_a_stream():
    rng = np.random.default_rng(5)
    X = rng.normal(size=(6000, 3))
    y = rng.random(6000) < 1 / (1 + np.exp(5 - X @ [1.0, 0.5, 0.0]))
    assert 30 < y.sum() < 200
    whole, stream = KalproxClassifier().fit(X, y), streamed(KalproxClassifier(), X, y, 60)
    assert (np.abs(stream.coef_ - whole.coef_) / whole.coef_std_).max() < 0.1


def test_a_stream_sorted_by_class_waits_until_both_have_come(two):
    X, y = two
    order = np.argsort(y, kind="stable")
    stream = streamed(KalproxClassifier(), X[order], y[order], 50)
    whole = KalproxClassifier().fit(X, y)
    assert (np.abs(stream.coef_ - whole.coef_) / whole.coef_std_).max() < 1.0
    assert (stream.predict(X) == y).mean() > (whole.predict(X) == y).mean() - 0.02


def test_prequential_probabilities_do_not_know_their_row(two):
    X, y = two
    one, other = KalproxClassifier(), KalproxClassifier()
    proba = one.prequential(X[:300], y[:300], classes=["no", "yes"])
    assert proba.shape == (300, 2)
    changed = y[:300].copy()
    changed[-1] = "no" if y[299] == "yes" else "yes"
    np.testing.assert_array_equal(other.prequential(X[:300], changed, classes=["no", "yes"]), proba)
    assert one.predict_proba(X[:1])[0, 1] != other.predict_proba(X[:1])[0, 1]


def test_separable_rows_stay_finite_with_a_penalty_and_say_so_without():
    X = np.r_[np.arange(-20.0, 0.0), np.arange(1.0, 21.0)][:, None]
    y = (X[:, 0] > 0).astype(int)
    model = streamed(KalproxClassifier(), X, y, 7)
    assert np.isfinite(model.coef_).all() and model.coef_std_[0, 0] > 0.1 * model.coef_[0, 0]
    with pytest.warns(match="separate the classes without an error. Set a penalty"):
        KalproxClassifier(penalty=None).fit(X, y)


# ---- merging and refining -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("data", ["two", "three"])
@pytest.mark.parametrize("cut", [20, 750])
def test_streams_merge_and_refine(data, cut, request):
    X, y = request.getfixturevalue(data)
    whole = KalproxClassifier().fit(X, y)
    first, second = KalproxClassifier(), KalproxClassifier()
    for model, rows in ((first, slice(0, cut)), (second, slice(cut, None))):
        for i in range(0, len(y[rows]), 50):
            model.partial_fit(X[rows][i : i + 50], y[rows][i : i + 50], classes=np.unique(y))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        first.merge(second)
    off = (np.abs(first.coef_ - whole.coef_) / whole.coef_std_).max()
    assert first.n_rows_seen_ == len(y)
    if not said:  # the rows of a stream in its warm-up are learned by the other
        assert off < 0.1
    else:
        assert said[0].category is ApproximateMerge
        stated = float(re.search(r"about ([\d.]+) standard errors", str(said[0].message))[1])
        assert off < 0.1 + 3 * stated and stated < 0.1 + 10 * off
        assert "Merge" in str(first.summary()) or "merge" in first._repr_html_().lower()
    first.refine(X, y)
    np.testing.assert_allclose(first.coef_, whole.coef_, atol=1e-7 * whole.coef_std_.min())
    assert first.n_passes_ <= 6


def test_eight_machines_and_a_few_passes(two):
    X, y = two
    whole = KalproxClassifier().fit(X, y)
    machines = [KalproxClassifier().fit(X[i::8], y[i::8]) for i in range(8)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ApproximateMerge)
        for other in machines[1:]:
            machines[0].merge(other)
    assert (np.abs(machines[0].coef_ - whole.coef_) / whole.coef_std_).max() < 1.0
    machines[0].refine(X, y)
    assert (np.abs(machines[0].coef_ - whole.coef_) / whole.coef_std_).max() < 1e-7
    assert machines[0].n_passes_ <= 6


@pytest.mark.slow
def test_merge_refuses_the_same_rows_and_other_classes(two, three):
    X, y = two
    one, same = streamed(KalproxClassifier(), X, y), streamed(KalproxClassifier(), X, y, 77)
    before = one.coef_.copy()
    with pytest.raises(ValueError, match="rows in common"):
        one.merge(same)
    other = streamed(KalproxClassifier(), *three)
    with pytest.raises(ValueError, match="differ in likelihood"):
        one.merge(other)
    with pytest.raises(ValueError, match="the same features and classes"):
        one.merge(streamed(KalproxClassifier(), X[:, :3], y))
    np.testing.assert_array_equal(one.coef_, before)


# ---- files, copies, pipelines ---------------------------------------------------------------------------------


@pytest.mark.parametrize("labels", [["no", "yes"], [0, 1], [False, True], [1.0, 2.0], ["a", "b", "c"], [3, 5, 9]])
@pytest.mark.parametrize("rows", [15, pytest.param(900, marks=pytest.mark.slow)])
def test_files_keep_the_classes(labels, rows, three, tmp_path):
    X, codes = three
    y = np.array(labels)[np.minimum(codes, len(labels) - 1)]
    model = streamed(KalproxClassifier(class_weight={labels[0]: 2.0}), X[:rows], y[:rows])
    model.save(tmp_path / "model")
    same = KalproxClassifier.load(tmp_path / "model")
    assert (
        same.classes_.tolist() == model.classes_.tolist()
        and same.predict(X[:3]).dtype.kind == np.array(labels).dtype.kind
    )
    np.testing.assert_array_equal(same.predict_proba(X[:20]), model.predict_proba(X[:20]))
    for one in (model, same, copied := copy.copy(model), pickled := pickle.loads(pickle.dumps(model))):
        one.partial_fit(X[rows : rows + 50], y[rows : rows + 50])
    for one in (same, copied, pickled):
        np.testing.assert_allclose(one.coef_, model.coef_, rtol=1e-10)
    assert float(same.diagnostics_.rows) == float(model.diagnostics_.rows)


def test_files_of_the_other_estimator_are_refused(two, tmp_path):
    X, y = two
    KalproxClassifier().fit(X, y).save(tmp_path / "classes")
    KalproxRegressor(penalty="ridge").fit(X, X[:, 0]).save(tmp_path / "numbers")
    with pytest.raises(ModelFileError, match=re.escape("use KalproxClassifier.load")):
        KalproxRegressor.load(tmp_path / "classes")
    with pytest.raises(ModelFileError, match=re.escape("use KalproxRegressor.load")):
        KalproxClassifier.load(tmp_path / "numbers")


@pytest.mark.slow
def test_pipelines_searches_sparse_rows_and_reports(two, tmp_path):
    X, y = load_breast_cancer(return_X_y=True)
    pipeline = make_pipeline(StandardScaler(), KalproxClassifier())
    assert cross_val_score(pipeline, X, y, cv=5, scoring="neg_log_loss").mean() > -0.11
    found = GridSearchCV(KalproxClassifier(), {"alpha": [1.0, 100.0]}, cv=3, scoring="neg_log_loss").fit(*two)
    assert found.best_params_["alpha"] in (1.0, 100.0)
    X, y = two
    dense, sparse = KalproxClassifier().fit(X, y), KalproxClassifier().fit(scipy.sparse.csr_matrix(X), y)
    np.testing.assert_allclose(sparse.coef_, dense.coef_, rtol=1e-10)
    np.testing.assert_allclose(sparse.predict_proba(scipy.sparse.csr_matrix(X)), dense.predict_proba(X), rtol=1e-9)
    assert "yes" in str(dense.summary()) and dense.to_frame().shape[0] == 5
    assert "intercept" in dense._repr_html_()
    assert dense.plot() is not None
    assert dense.report(tmp_path / "page.html").stat().st_size > 10_000


# ---- mistakes ---------------------------------------------------------------------------------------------------


def test_mistakes_are_named_and_nothing_is_lost(two):
    X, y = two
    model = KalproxClassifier()
    with pytest.raises(ValueError, match="classes must be given in the first call"):
        model.partial_fit(X, y)
    assert not hasattr(model, "classes_")
    with pytest.raises(ValueError, match="at least two classes"):
        model.fit(X, np.full(len(X), "no"))
    with pytest.raises(ValueError, match="'maybe'; the classes are"):
        model.partial_fit(X[:2], ["yes", "maybe"], classes=["no", "yes"])
    streamed(model, X[:500], y[:500])
    coef = model.coef_.copy()
    with pytest.raises(ValueError, match="'maybe'; the classes are"):
        model.partial_fit(X[:2], ["yes", "maybe"])
    with pytest.raises(ValueError, match="classes must be those of the first call"):
        model.partial_fit(X[:2], ["yes", "no"], classes=["no", "yes", "maybe"])
    with pytest.raises(ValueError, match="not among the classes"):
        model.partial_fit(X[:2], [0, 1])
    with pytest.raises(ValueError, match="are missing"):
        model.partial_fit(X[:2], np.array(["yes", None], object))
    with pytest.raises(ValueError, match="needs fit, which has all rows"):
        KalproxClassifier(class_weight="balanced").partial_fit(X, y, classes=["no", "yes"])
    np.testing.assert_array_equal(model.coef_, coef)
    assert model.classes_.tolist() == ["no", "yes"]
    with pytest.raises(ValueError, match="class_weight has labels that are not among the classes, 'yess'"):
        KalproxClassifier(class_weight={"yess": 2.0}).fit(X, y)
    with pytest.raises(ValueError, match=r"[Nn]egative"):
        KalproxClassifier().fit(X, y, -np.ones(len(y)))
    with pytest.raises(TypeError):
        KalproxClassifier(likelihood="poisson")


def test_bad_rows_are_skipped_on_demand(two):
    X, y = two[0][:300].copy(), two[1][:300].astype(object)
    X[3, 1], y[7] = np.nan, None
    good = np.ones(300, bool)
    good[[3, 7]] = False
    model = KalproxClassifier(missing="drop").fit(X, y)
    assert (model.n_rows_rejected_, model.n_rows_unlabelled_) == (1, 1)
    np.testing.assert_allclose(model.coef_, KalproxClassifier().fit(X[good], y[good]).coef_, rtol=1e-12)
    proba = model.predict_proba(X[:5])
    assert np.isnan(proba[3]).all() and np.isfinite(proba[[0, 1, 2, 4]]).all()
    with pytest.raises(ValueError, match="row 3"):
        model.predict(X[:5])


def test_a_network_as_the_model():
    import jax.numpy as jnp

    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, (800, 1))
    y = rng.random(800) < 1 / (1 + np.exp(4 - 4 * x[:, 0] ** 2))

    def bump(theta, x):
        return theta[0] + theta[1] * jnp.square(x[0])

    model = KalproxClassifier(function=bump, start=np.zeros(2)).fit(x, y)
    np.testing.assert_allclose(model.coef_[0], [-4, 4], atol=4 * model.coef_std_.max())
    assert stats.chi2.sf((((model.coef_[0] - [-4, 4]) / model.coef_std_[0]) ** 2).max(), 2) > 1e-4


# ---- data that nobody made for it -----------------------------------------------------------------------------------


FAR_ELSEWHERE = [(30, 1e3), (30, 1e6), (700, 1e3), (700, 1e6), (1499, 1e6)]


@pytest.mark.parametrize(
    ("where", "size"),
    [(1499, 1e3), *(pytest.param(*one, marks=pytest.mark.slow) for one in FAR_ELSEWHERE)],
)
def test_a_value_far_from_all_others_does_not_take_over_the_stream(two, size, where):
    """The weak prior of a stream rests on the spread of the columns, which one value must not determine."""
    X, y = two[0].copy(), two[1]
    X[where] = size
    whole, stream = KalproxClassifier().fit(X, y), streamed(KalproxClassifier(), X, y, 50)
    assert (np.abs(stream.coef_ - whole.coef_) / whole.coef_std_).max() < 0.5
    rows = KalproxClassifier()
    streamed(rows, X[:1000], y[:1000])
    rows.partial_fit(np.full((1, 4), size), ["yes"])  # a single row takes another way
    expected = KalproxClassifier().fit(np.r_[X[:1000], np.full((1, 4), size)], np.r_[y[:1000], ["yes"]])
    assert (np.abs(rows.coef_ - expected.coef_) / expected.coef_std_).max() < 0.5


@pytest.mark.slow
def test_a_stream_with_l1_is_linearised_where_the_rows_lead(two):
    """A penalty that holds coefficients at zero while there are few rows must not fix where rows are linearised."""
    X, y = two
    for alpha, most in ((2.0, 0.1), (20.0, 0.5)):
        model = KalproxClassifier(penalty="l1", alpha=alpha)
        whole, stream = copy.copy(model).fit(X, y), streamed(model, X, y, 50)
        free = whole.coef_ != 0
        np.testing.assert_array_equal(stream.coef_ != 0, free)
        off = np.abs(stream.coef_ - whole.coef_)[free] / KalproxClassifier().fit(X, y).coef_std_[free]
        assert off.max() < most


@pytest.mark.slow
@pytest.mark.parametrize("coef_cov", ["robust", "clustered"])
def test_robust_errors_of_a_stream_count_the_rows_of_its_warm_up(coef_cov):
    rng = np.random.default_rng(7)
    X = rng.normal(size=(6000, 3))
    y = (rng.random(6000) < 1 / (1 + np.exp(-X @ [1.0, -1.0, 0.5]))).astype(int)
    groups = np.repeat(np.arange(300), 20)
    whole = KalproxClassifier(coef_cov=coef_cov).fit(X, y, clusters=groups if coef_cov == "clustered" else None)
    stream = KalproxClassifier(coef_cov=coef_cov)
    for i in range(0, 6000, 20):
        stream.partial_fit(X[i : i + 20], y[i : i + 20], classes=[0, 1])
    np.testing.assert_allclose(stream.coef_std_, whole.coef_std_, rtol=0.1)


def test_few_rows_are_no_doubt_where_the_objective_is_convex(two):
    """The minimiser of few rows is that of their objective, and what was predicted of them is judged."""
    X, y = two
    model = streamed(KalproxClassifier(), X[:400], y[:400], 50)
    whole = KalproxClassifier().fit(X[:400], y[:400])
    assert model._learner.state.proximal.held is not None  # the warm-up has not ended
    assert model.converged_ and "not converged" not in model._repr_html_()
    assert (np.abs(model.coef_ - whole.coef_) / whole.coef_std_).max() < 0.1
    assert model.diagnostics_.verdict().word == "calibrated" and model.diagnostics_.rows > 300


def test_classes_that_one_input_determines_say_so_in_the_stream_too():
    rng = np.random.default_rng(8)
    X = rng.normal(size=(2000, 3))
    model = streamed(KalproxClassifier(), X, X[:, 0] > 0, 100)
    assert (model.predict(X) == (X[:, 0] > 0)).mean() > 0.99


@pytest.mark.parametrize("classes", [2, 3])
def test_sparse_rows_of_a_stream_are_predicted_as_dense_ones_are(classes):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 3))
    y = np.digitize(X[:, 0] + rng.logistic(size=40), [0.0, 1.0][: classes - 1])
    model = KalproxClassifier()
    for i in range(40):
        model.partial_fit(X[i : i + 1], y[i : i + 1], classes=np.arange(classes))
    for n in (1, 5):
        sparse = model.predict_proba(scipy.sparse.csr_array(X[:n]))
        np.testing.assert_allclose(sparse, model.predict_proba(X[:n]), rtol=1e-10)
