"""Weights that are no repetitions, and clusters that are given: what the standard errors make of them."""

import warnings

import numpy as np
import pytest
import statsmodels.api as sm

from kalprox import KalproxClassifier, KalproxRegressor

SLOPES = np.array([0.7, -0.4])


def rare(seed, n=1500):
    """Two classes, one of them in about 8% of the rows."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    return rng, X, (rng.random(n) < 1 / (1 + np.exp(2.9 - X @ SLOPES))).astype(int)


def by_hand(X, y, theta, weights, times=None, clusters=None):
    """The sandwich of a logistic regression whose rows have weights, and come so many times: HC3, or clustered."""
    A = np.column_stack([np.ones(len(X)), X])
    times = np.ones(len(X)) if times is None else times
    p = 1 / (1 + np.exp(-A @ theta))
    V = np.linalg.inv((A.T * (times * weights * p * (1 - p))) @ A)
    scores = A * (weights * (y - p))[:, None]
    if clusters is None:
        scores /= (1 - weights * p * (1 - p) * ((A @ V) * A).sum(axis=1))[:, None]
        return V @ (scores.T * times) @ scores @ V
    n, G = times.sum(), len(set(clusters))
    sums = np.stack([(scores * times[:, None])[clusters == g].sum(axis=0) for g in set(clusters)])
    return V @ sums.T @ sums @ V * G / (G - 1) * (n - 1) / (n - len(theta))


@pytest.mark.parametrize("kind", ["balanced", "dict", "precision", "frequency and balanced"])
@pytest.mark.parametrize("clustered", [False, True])
def test_standard_errors_of_weighted_classes_are_those_of_the_weighted_equations(kind, clustered):
    rng, X, y = rare(31)
    times, sample_weight, settings = np.ones(len(y)), None, {}
    if kind == "precision":
        weights = sample_weight = rng.gamma(2, size=len(y))
        settings = {"weight_kind": "precision"}
    else:
        if kind == "frequency and balanced":
            times = sample_weight = rng.integers(1, 4, size=len(y)).astype(float)
        each = times.sum() / (2 * np.bincount(y, times)) if kind != "dict" else np.array([0.5, 7.0])
        weights = each[y]
        settings = {"class_weight": {0: 0.5, 1: 7.0} if kind == "dict" else "balanced"}
    groups = rng.integers(0, 40, size=len(y)) if clustered else None
    model = KalproxClassifier(penalty=None, **settings).fit(X, y, sample_weight, clusters=groups)
    theta = np.r_[model.intercept_, model.coef_[0]]
    expected = by_hand(X, y, theta, weights, times, groups)
    if clustered and kind != "frequency and balanced":  # rows are counted by their weights in (n - 1) / (n - p) only
        n = len(y) if kind == "precision" else (weights * times).sum()
        expected *= (n - 1) / (n - 3) / ((len(y) - 1) / (len(y) - 3))
    np.testing.assert_allclose(model.covariance_[0], expected[1:, 1:], rtol=1e-7)
    np.testing.assert_allclose(model.intercept_std_[0], expected[0, 0] ** 0.5, rtol=1e-7)


@pytest.mark.parametrize("precision", [False, True])
def test_robust_errors_of_a_linear_fit_are_statsmodels_hc3(precision):
    rng = np.random.default_rng(3)
    X, w = rng.normal(size=(40, 3)), rng.gamma(2, size=40)
    y = X @ [1.0, 2.0, -1.0] + rng.normal(size=40) * (0.3 + X[:, 0] ** 2)
    A = sm.add_constant(X)
    theirs = (sm.WLS(y, A, weights=w) if precision else sm.OLS(y, A)).fit(cov_type="HC3")
    how = {"weight_kind": "precision"} if precision else {}
    ours = KalproxRegressor(penalty=None, coef_cov="robust", **how).fit(X, y, w if precision else None)
    np.testing.assert_allclose(ours.coef_std_, theirs.bse[1:], rtol=1e-9)
    np.testing.assert_allclose(ours.intercept_std_, theirs.bse[0], rtol=1e-9)


@pytest.mark.parametrize("likelihood", ["gaussian", "poisson", "bernoulli"])
@pytest.mark.parametrize("coef_cov", ["robust", "clustered"])
def test_a_frequency_is_that_many_rows(likelihood, coef_cov):
    rng = np.random.default_rng(8)
    X, times = rng.normal(size=(200, 2)), rng.integers(0, 4, size=200)
    y = {
        "gaussian": X @ SLOPES + rng.normal(size=200),
        "poisson": rng.poisson(np.exp(X @ SLOPES)).astype(float),
        "bernoulli": (rng.random(200) < 1 / (1 + np.exp(-X @ SLOPES))).astype(float),
    }[likelihood]
    groups = rng.integers(0, 20, size=200) if coef_cov == "clustered" else None
    again = np.repeat(np.arange(200), times)
    weighted, repeated = (
        KalproxRegressor(penalty=None, likelihood=likelihood, coef_cov=coef_cov).fit(
            X[rows], y[rows], weights, clusters=None if groups is None else groups[rows]
        )
        for rows, weights in ((np.arange(200), times.astype(float)), (again, None))
    )
    np.testing.assert_allclose(weighted.coef_std_, repeated.coef_std_, rtol=1e-8)


@pytest.mark.parametrize(("rows", "n"), [(1, 400), (100, 1500)])
def test_a_stream_of_weighted_classes_has_the_errors_of_fit(rows, n):
    _, X, y = rare(5, n)
    whole = KalproxClassifier(penalty=None, class_weight={1: 9.0}).fit(X, y)
    stream = KalproxClassifier(penalty=None, class_weight={1: 9.0})
    for start in range(0, len(y), rows):
        stream.partial_fit(X[start : start + rows], y[start : start + rows], classes=[0, 1])
    # Both estimate the same from the same rows; without the squares of the weights the ratio is near a half.
    np.testing.assert_allclose(stream.coef_std_, whole.coef_std_, rtol=0.15)
    model = KalproxClassifier(penalty=None, class_weight={1: 9.0}, coef_cov="model").fit(X, y)
    assert (model.coef_std_ < 0.7 * whole.coef_std_).all()


@pytest.mark.parametrize(
    ("settings", "change"), [({"structure": "diagonal"}, "structure=None"), ({"forget": "auto"}, "a forget other than")]
)
def test_weights_that_are_taken_for_repetitions_are_said(settings, change):
    _, X, y = rare(6, 300)
    model = KalproxClassifier(class_weight={1: 9.0}, **settings).partial_fit(X, y, classes=[0, 1])
    for read in (lambda: model.coef_std_, lambda: model.coef_interval(), lambda: model.covariance_):
        with pytest.warns(UserWarning, match=f"repetitions, and are too small where .* need {change}"):
            read()
    assert "for repetitions" in " ".join(str(model.summary()).split())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        meant = KalproxClassifier(class_weight={1: 9.0}, coef_cov="model", **settings).partial_fit(X, y, classes=[0, 1])
        if "forget" in settings:  # a diagonal has a doubt of its own
            assert np.isfinite(meant.coef_std_).all()
        model.predict_proba(X)


def coverage(model_of, seeds):
    inside = []
    for seed in range(seeds):
        model, truth = model_of(seed)
        low, high = model.coef_interval(0.95)
        inside.append((np.ravel(low) < truth) & (truth < np.ravel(high)))
    return np.mean(inside, axis=0)


def weighted_classes(seed):
    _, X, y = rare(1000 + seed)
    return KalproxClassifier(penalty=None, class_weight="balanced").fit(X, y), SLOPES


def streamed_classes(seed):
    _, X, y = rare(2000 + seed)
    model = KalproxClassifier(penalty=None, class_weight={1: 12.0})
    for start in range(0, len(y), 150):
        model.partial_fit(X[start : start + 150], y[start : start + 150], classes=[0, 1])
    return model, SLOPES


def precise_counts(seed):
    rng = np.random.default_rng(3000 + seed)
    X, w = rng.normal(size=(600, 2)), rng.gamma(0.5, size=600)
    y = rng.poisson(np.exp(0.2 + X @ SLOPES)).astype(float)
    return KalproxRegressor(likelihood="poisson", penalty=None, weight_kind="precision").fit(X, y, w), SLOPES


def test_intervals_of_weighted_classes_cover_few_seeds():
    # 15 seeds and two coefficients: fewer than 25 of 30 inside have a probability below 1e-2 at 95%, and were usual.
    assert coverage(weighted_classes, 15).mean() >= 25 / 30


@pytest.mark.slow
@pytest.mark.parametrize("model_of", [weighted_classes, streamed_classes, precise_counts])
def test_intervals_of_weighted_rows_cover(model_of):
    # 100 seeds at 95%: three standard deviations of the binomial law are 0.065.
    found = coverage(model_of, 100)
    assert (np.abs(found - 0.95) < 0.065).all(), found


def test_tiny_frequencies_are_called_precisions():
    rng = np.random.default_rng(4)
    X = rng.normal(size=(80, 4))
    y, w = X.sum(axis=1) + rng.normal(size=80), rng.random(80) / 40
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = KalproxRegressor(penalty=None).fit(X, y, w)
    assert "weight_kind='precision' (--weight-kind precision)" in str(model.summary()).replace("\n    ", " ")
    few = KalproxRegressor(penalty=None).fit(X[:4], y[:4])
    assert "precision" not in str(few.summary())
    right = KalproxRegressor(penalty=None, weight_kind="precision").fit(X, y, w)
    assert np.isfinite(right.coef_std_).all()


# ---- clusters --------------------------------------------------------------------------------------------


def schools(seed=0, schools=30, pupils=12):
    rng = np.random.default_rng(seed)
    school = np.repeat(np.arange(schools), pupils)
    X = np.column_stack([rng.normal(size=schools)[school], rng.normal(size=len(school))])
    return X, X @ [0.5, 1.0] + rng.normal(size=schools)[school] + rng.normal(size=len(school)), school


def test_clusters_that_are_given_are_used():
    X, y, school = schools()
    theirs = sm.OLS(y, sm.add_constant(X)).fit(cov_type="cluster", cov_kwds={"groups": school})
    ours = KalproxRegressor(penalty=None).fit(X, y, clusters=school)
    np.testing.assert_allclose(ours.coef_std_, theirs.bse[1:], rtol=1e-8)
    stream = KalproxRegressor(penalty=None)
    for start in range(0, len(y), 60):
        stream.partial_fit(X[start : start + 60], y[start : start + 60], clusters=school[start : start + 60])
    assert "30 clusters" in " ".join(str(stream.summary()).split())
    assert stream.coef_std_[0] > 1.5 * KalproxRegressor(penalty=None).fit(X, y).coef_std_[0]
    for kind in ("model", "robust"):
        with pytest.raises(ValueError, match=f"coef_cov='{kind}' takes no account of them"):
            KalproxRegressor(coef_cov=kind, penalty="ridge").fit(X, y, clusters=school)
        with pytest.raises(ValueError, match=f"coef_cov='{kind}' takes no account of them"):
            KalproxRegressor(coef_cov=kind, penalty="ridge").partial_fit(X, y, clusters=school)


def test_a_cluster_whose_rows_come_in_many_batches_is_one():
    rng = np.random.default_rng(8)
    group = rng.integers(0, 40, 2000)
    X = np.column_stack([rng.normal(size=40)[group], rng.normal(size=2000)])
    y = X @ [1.0, 2.0] + rng.normal(size=40)[group] + rng.normal(size=2000)
    whole, stream = KalproxRegressor(penalty=None).fit(X, y, clusters=group), KalproxRegressor(penalty=None)
    for start in range(0, 2000, 50):
        rows = slice(start, start + 50)
        stream.partial_fit(X[rows], y[rows], clusters=group[rows])
    np.testing.assert_allclose(stream.coef_std_, whole.coef_std_, rtol=0.05)
    assert stream.coef_std_[0] > 3 * KalproxRegressor(penalty=None).fit(X, y).coef_std_[0]


def test_clusters_cannot_begin_or_be_lost_on_the_way(tmp_path):
    X, y, school = schools(1)
    model = KalproxRegressor(penalty=None).partial_fit(X[:120], y[:120])
    with pytest.raises(ValueError, match="the rows learned so far had none"):
        model.partial_fit(X[120:], y[120:], clusters=school[120:])
    model = KalproxRegressor(penalty=None).partial_fit(X[:120], y[:120], clusters=school[:120])
    model.save(tmp_path / "model")
    for one in (KalproxRegressor.load(tmp_path / "model"), model.set_params(diagnose=False)):
        one.partial_fit(X[120:], y[120:], clusters=school[120:])
        np.testing.assert_allclose(
            one.coef_std_, KalproxRegressor(penalty=None).fit(X, y, clusters=school).coef_std_, rtol=0.1
        )
        with pytest.raises(ValueError, match="clusters of all rows"):
            one.merge(KalproxRegressor(penalty=None, diagnose=one.diagnose).fit(X[:50] + 1, y[:50]))


def test_clusters_of_a_structure_are_refused():
    X, y, school = schools(2)
    with pytest.raises(ValueError, match="leave structure out"):
        KalproxRegressor(structure="diagonal", penalty="ridge").fit(X, y, clusters=school)


@pytest.mark.parametrize("shuffled", [False, True])
def test_streamed_clusters_of_counts_have_the_errors_of_fit(shuffled):
    rng = np.random.default_rng(6)
    group = np.repeat(np.arange(120), 12)
    X = np.column_stack([rng.normal(size=(len(group), 2)), rng.normal(size=120)[group]])
    y = rng.poisson(np.exp(0.4 + X @ [0.3, -0.2, 0.2] + 0.5 * rng.normal(size=120)[group])).astype(float)
    order = rng.permutation(len(y)) if shuffled else np.arange(len(y))
    X, y, group = X[order], y[order], group[order]
    whole = KalproxRegressor(likelihood="poisson", penalty=None).fit(X, y, clusters=group)
    stream = KalproxRegressor(likelihood="poisson", penalty=None)
    for start in range(0, len(y), 40):
        rows = slice(start, start + 40)
        stream.partial_fit(X[rows], y[rows], clusters=group[rows])
    np.testing.assert_allclose(stream.coef_std_, whole.coef_std_, rtol=0.15)


def test_a_stream_of_counts_that_is_saved_in_its_warm_up_keeps_its_clusters(tmp_path):
    rng = np.random.default_rng(9)
    group = np.repeat(np.arange(60), 10)
    X = rng.normal(size=(600, 2))
    y = rng.poisson(np.exp(X @ SLOPES + 0.4 * rng.normal(size=60)[group])).astype(float)
    model = KalproxRegressor(likelihood="poisson", penalty=None).partial_fit(X[:15], y[:15], clusters=group[:15])
    model.save(tmp_path / "model")
    again = KalproxRegressor.load(tmp_path / "model")
    for one in (model, again):
        for start in range(15, 600, 45):
            one.partial_fit(X[start : start + 45], y[start : start + 45], clusters=group[start : start + 45])
    np.testing.assert_array_equal(model.coef_std_, again.coef_std_)


def unequal_clusters(seed, sizes):
    rng = np.random.default_rng(seed)
    group, G = np.repeat(np.arange(len(sizes)), sizes), len(sizes)
    X = np.column_stack([rng.normal(size=len(group)), rng.normal(size=G)[group]])
    y = (
        X.sum(axis=1)
        + rng.normal(size=G)[group]
        + rng.normal(size=len(group))
        + 0.5 * rng.normal(size=G)[group] * X[:, 0]
    )
    return KalproxRegressor(penalty=None).fit(X, y, clusters=group), np.ones(2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The clusters are worth")
@pytest.mark.parametrize("sizes", [(25,) * 10, (500, *(20,) * 19)])
def test_few_and_unequal_clusters_cover(sizes):
    # With clusters - 1 degrees of freedom, 82% and 63% of 120 were inside. Fewer than 104 have a probability of 1e-4.
    assert coverage(lambda seed: unequal_clusters(70 + seed, sizes), 60).mean() >= 104 / 120


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The clusters are worth")
@pytest.mark.parametrize("sizes", [(40,) * 5, (25,) * 10, (500, *(20,) * 19), (300, *(20,) * 9)])
def test_few_and_unequal_clusters_cover_over_many_seeds(sizes):
    # 400 seeds: 90%, less three standard deviations of the binomial law.
    found = coverage(lambda seed: unequal_clusters(5000 + seed, sizes), 400)
    assert (found >= 0.9 - 3 * (0.9 * 0.1 / 400) ** 0.5).all(), found


def test_the_summary_says_how_many_clusters_a_giant_leaves():
    giant, _ = unequal_clusters(1, (500, *(20,) * 19))
    text = " ".join(str(giant.summary()).split())
    assert "20 clusters; for one coefficient they are worth" in text
    assert (giant.summary().dof < 8).all()
    equal, _ = unequal_clusters(1, (20,) * 200)
    assert "worth" not in str(equal.summary()).split("R2")[0]
    assert (equal.summary().dof > 30).all() and (equal.summary().dof <= 199).all()


@pytest.mark.slow
@pytest.mark.parametrize("batches", [80, 300])
def test_a_giant_among_many_batches_is_known(batches):
    """Batches without labels are clusters, too: of 79 degrees of freedom about 2 are left, and 56% were inside."""
    rng = np.random.default_rng(16)
    labelled, unlabelled = (KalproxRegressor(penalty=None, coef_cov="clustered") for _ in range(2))
    for i in range(batches):
        X = rng.normal(size=(40 * batches if i == 3 else 20, 1)) * [[1.0, 0.0]] + [[0.0, rng.normal()]]
        y = X.sum(axis=1) + rng.normal() + 0.5 * rng.normal() * X[:, 0] + rng.normal(size=len(X))
        unlabelled.partial_fit(X, y)
        labelled.partial_fit(X, y, clusters=np.full(len(X), i))
    np.testing.assert_allclose(unlabelled.coef_std_, labelled.coef_std_, rtol=1e-9)
    with pytest.warns(RuntimeWarning, match=r"The clusters are worth [23]\.?\d? equal ones for one coefficient"):
        low, high = labelled.coef_interval()
    if batches < 256:
        with pytest.warns(RuntimeWarning, match="The clusters are worth"):
            np.testing.assert_allclose(unlabelled.coef_interval(), (low, high), rtol=1e-9)
    assert unlabelled.summary().dof.min() < 8


def batches_as_clusters(seed, sizes):
    rng = np.random.default_rng(seed)
    model = KalproxRegressor(penalty=None, coef_cov="clustered", diagnose=False)
    for size in sizes:
        X = rng.normal(size=(size, 1))
        model.partial_fit(X, X[:, 0] * (1 + 0.5 * rng.normal()) + rng.normal() + rng.normal(size=size))
    return model


@pytest.mark.parametrize("place", [0, 5])
def test_a_large_first_batch_that_hides_its_cluster_is_said(place):
    """With 400 rows first, and 59 batches of 20, 95% intervals covered 58%, half of them without a word."""
    sizes = [20] * 59
    model = batches_as_clusters(23, [*sizes[:place], 400, *sizes[place:]])
    with pytest.warns(RuntimeWarning, match=r"About \d\d% of what the rows of a cluster have in common .* hides? it"):
        model.coef_interval()


@pytest.mark.parametrize("sizes", [[20] * 20, [*[20] * 40, 400, *[20] * 19], [40, *[20] * 30]], ids=len)
def test_batches_that_hide_nothing_are_no_doubt(sizes):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message="The clusters are worth")
        batches_as_clusters(24, sizes).coef_interval()


@pytest.mark.slow
def test_robust_errors_of_few_rows_cover():
    def model_of(seed):
        rng = np.random.default_rng(300 + seed)
        X = rng.normal(size=(25, 2))
        y = X.sum(axis=1) + rng.normal(size=25) * (0.2 + np.abs(X[:, 0]))
        return KalproxRegressor(penalty=None, coef_cov="robust").fit(X, y), np.ones(2)

    # Of 300 at 95%, fewer than 273 have a probability below 1e-2; 83% were inside.
    assert coverage(model_of, 150).mean() >= 273 / 300


@pytest.mark.parametrize("grouped", [False, True])
def test_the_sandwich_of_a_student_likelihood_has_the_second_derivative_of_its_loss(grouped):
    from kalprox.likelihoods import Student

    rng = np.random.default_rng(12)
    X = rng.normal(size=(400, 2))
    y = X @ [1.0, -1.0] + rng.normal(size=400) * (0.1 + 1.5 * np.abs(X[:, 0]))
    groups = rng.integers(0, 40, size=400) if grouped else None
    how = {} if grouped else {"coef_cov": "robust"}
    model = KalproxRegressor(penalty=None, likelihood=Student(dof=4.0, scale=0.5), **how).fit(X, y, clusters=groups)
    A, nu = np.column_stack([np.ones(400), X]), 4.0
    r = (y - A @ np.r_[model.intercept_, model.coef_]) / 0.5
    slope, bend = (nu + 1) * r / (nu + r**2), (nu + 1) * (nu - r**2) / (nu + r**2) ** 2
    H = np.linalg.inv((A.T * bend) @ A)
    scores = A * (0.5 * slope)[:, None]
    if grouped:
        scores = np.stack([scores[groups == g].sum(axis=0) for g in set(groups)])
    expected = np.sqrt(np.diag(H @ scores.T @ scores @ H))[1:]
    # What is left are the corrections for the coefficients fitted: of leverage, and of clusters.
    np.testing.assert_allclose(model.coef_std_, expected, rtol=0.03)
