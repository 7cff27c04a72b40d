"""Robust and clustered standard errors: the sums by hand, statsmodels' numbers, and what the intervals cover."""

import numpy as np
import pytest
import scipy.stats
import statsmodels.api as sm
from data import autoregressive, clusters, linear, unequal

from kalprox import KalproxClassifier, KalproxRegressor
from kalprox.learning.sandwich import Sandwich

KINDS = ("robust", "clustered")


def by_hand(X, y, cuts, kind, *, weights=None, groups=None, alpha=0.0, noise=0.0, precision=False, forget=1.0):
    """The covariance of (intercept, coef) from sums over rows, each predicted by a solve with all rows before it.

    The penalty stands beside them with its curvature, as many rows of the noise variance `noise` would.
    """
    n, p = len(y), X.shape[1] + 1
    A, w = np.column_stack([np.ones(n), X]), np.ones(n) if weights is None else weights
    H = np.diag(np.r_[0.0, np.full(p - 1, alpha)])
    batch = np.searchsorted(cuts, np.arange(n), side="right") if groups is None else groups
    seen = np.arange(1, n + 1) if precision or weights is None else np.cumsum(w)
    M, sums, counted = np.zeros((p, p)), {}, 0
    for i in range(n):
        fade = forget ** (seen[i - 1] - seen[:i]) if i else np.ones(0)
        P = (A[:i].T * (w[:i] * fade)) @ A[:i] + H
        if np.linalg.matrix_rank(P) < p:
            continue
        theta = np.linalg.solve(P, (A[:i].T * (w[:i] * fade)) @ y[:i])
        s = (
            A[i] @ np.linalg.solve(P, A[i]) * (fade @ fade) / fade.sum()
        )  # weights that have faded count by their squares
        own = 1 / w[i] if precision else 1.0
        u = (y[i] - A[i] @ theta) / np.sqrt(own + s) * forget ** (seen[-1] - seen[i])
        counted += 1
        if kind == "robust":
            M += w[i] * u**2 * np.outer(A[i], A[i])
        else:
            sums[batch[i]] = sums.get(batch[i], 0) + (np.sqrt(w[i]) if precision else w[i]) * u * A[i]
    fade = forget ** (seen[-1] - seen)
    V = np.linalg.inv((A.T * (w * fade)) @ A + H)
    if kind == "robust":
        return V @ (M + noise * H) @ V
    M = sum(np.outer(s, s) for s in sums.values())
    names = len(set(batch))
    return V @ (M * names / (names - 1) + noise * H) @ V


def streamed(X, y, cuts=(), w=None, labels=None, **settings):
    model = KalproxRegressor(**{"penalty": None, **settings})
    for rows in np.split(np.arange(len(y)), cuts):
        model.partial_fit(X[rows], y[rows], *(None if a is None else a[rows] for a in (w, labels)))
    return model


@pytest.mark.parametrize(
    ("kind", "case"),
    [
        *((kind, case) for kind in KINDS for case in ("plain", "ridge", "frequency", "precision")),
        ("clustered", "groups"),
    ],
)
def test_the_sums_are_those_of_a_loop(kind, case):
    X, y = linear(40, 2)
    rng = np.random.default_rng(1)
    cuts, options = [10, 11, 25], {}
    if case in ("frequency", "precision"):
        options["weights"] = rng.integers(1, 4, size=40) + 0.0 if case == "frequency" else rng.gamma(3, size=40)
    if case == "groups":
        options["groups"] = rng.integers(0, 6, size=40)
    alpha = 3.0 if case == "ridge" else 0.0
    settings = {"weight_kind": case} if "weights" in options else {}
    settings |= {"penalty": "ridge", "alpha": alpha} if alpha else {}
    weights, groups = options.get("weights"), options.get("groups")
    model = streamed(X, y, cuts, weights, groups, coef_cov=kind, **settings)
    about = {"alpha": alpha, "noise": model.noise_var_, "precision": case == "precision"}
    expected = by_hand(X, y, cuts, kind, **about, **options)
    np.testing.assert_allclose(model.covariance_, expected[1:, 1:], rtol=1e-9)
    np.testing.assert_allclose(model.intercept_std_, expected[0, 0] ** 0.5, rtol=1e-9)
    np.testing.assert_allclose(model.coef_std_, np.diag(expected)[1:] ** 0.5, rtol=1e-9)


@pytest.mark.parametrize("likelihood", ["gaussian", "poisson"])
@pytest.mark.parametrize("batch", [1, 12, 120])
def test_what_the_rows_say_nothing_about_is_as_unknown_as_before(likelihood, batch):
    """A constant column: its standard error was 0, and its interval a point."""
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=(120, 2)), np.full(120, 3.0)])
    y = rng.poisson(np.exp(0.3 * X[:, 0] + 0.5)).astype(float)
    std = {}
    for kind in ("model", "robust"):
        for penalty in ("ridge", None):
            model = KalproxRegressor(likelihood=likelihood, penalty=penalty, coef_cov=kind)
            for i in range(0, 120, batch):
                model.partial_fit(X[i : i + batch], y[i : i + batch])
            std[kind, penalty] = model.coef_std_[2]
    assert std["robust", "ridge"] == pytest.approx(std["model", "ridge"], rel=1e-6) and std["model", "ridge"] > 0.5
    assert std["robust", None] == pytest.approx(std["model", None], rel=1e-6) and std["model", None] > 5


@pytest.mark.slow
def test_intervals_of_a_penalised_classifier_cover_coefficients_of_its_prior():
    """95% of 1,200, less 3.3 standard deviations and 1% for Laplace's form: without the prior it was 89%."""
    inside = []
    for seed in range(300):
        rng = np.random.default_rng(seed)
        X, b = rng.normal(size=(40, 4)), rng.normal(size=4)
        y = rng.random(40) < 1 / (1 + np.exp(-X @ b))
        low, high = KalproxClassifier(alpha=1.0, coef_cov="robust").fit(X, y).coef_interval()
        inside.append((low <= b) & (b <= high))
    assert np.mean(inside) > 0.95 - 3.3 * (0.95 * 0.05 / 1200) ** 0.5 - 0.01


@pytest.mark.parametrize("kind", KINDS)
def test_forgetting_fades_the_sums(kind):
    X, y = linear(60, 2)
    model = streamed(X, y, [20, 45], coef_cov=kind, forget=0.97)
    np.testing.assert_allclose(model.covariance_, by_hand(X, y, [20, 45], kind, forget=0.97)[1:, 1:], rtol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_several_targets_are_as_many_models(kind):
    X, y = linear(80, 3)
    Y, cuts = np.column_stack([y, 10 * y**2]), [30, 50]
    both = streamed(X, Y, cuts, coef_cov=kind)
    for j in range(2):
        one = streamed(X, Y[:, j], cuts, coef_cov=kind)
        np.testing.assert_allclose(both.covariance_[j], one.covariance_, rtol=1e-9)
        np.testing.assert_allclose(both.intercept_std_[j], one.intercept_std_, rtol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_batch_is_one_cluster_and_pieces_do_not_matter(kind):
    X, y = linear(9000, 2)
    labels = np.repeat([0, 1], [200, 8800])
    long = streamed(X, y, [200], coef_cov=kind)
    named = streamed(X, y, [100, 5000], labels=labels if kind == "clustered" else None, coef_cov=kind)
    np.testing.assert_allclose(long.covariance_, named.covariance_, rtol=1e-9)
    if kind == "clustered":
        assert long._belief.sandwich.count == named._belief.sandwich.count == 2


@pytest.mark.parametrize("shift", [0.0, 1e6])
def test_merging_adds_the_sums(shift):
    X, y = linear(60, 2)
    X = X + shift
    labels = np.arange(60) % 5
    for kind, groups in (("robust", None), ("clustered", None), ("clustered", labels)):
        halves = [
            streamed(X[r], y[r], [], None, None if groups is None else groups[r], coef_cov=kind)
            for r in (slice(0, 30), slice(30, 60))
        ]
        a, b = (half._belief for half in halves)
        merged = halves[0].merge(halves[1])._belief
        found = merged.sandwich.in_design(merged.design).total
        expected = sum(one.sandwich.in_design(merged.design).total for one in (a, b)) if groups is None else None
        if groups is None:
            np.testing.assert_allclose(found, expected, rtol=1e-6 if shift else 1e-11)
        else:  # a cluster that goes on is one cluster
            sums = [
                sum(one.sandwich.groups[str(g)][:-1] @ recentred(one.sandwich, merged.sandwich).T for one in (a, b))
                for g in range(5)
            ]
            total = sum(s[:, :, None] * s[:, None, :] for s in sums)
            np.testing.assert_allclose(
                merged.sandwich.in_design(merged.design).total,
                Sandwich(merged.sandwich.center, total).in_design(merged.design).total,
                rtol=1e-6,
            )
        assert merged.sandwich.count == (5 if groups is not None else a.sandwich.count + b.sandwich.count)


def recentred(one, other):
    J = np.eye(len(one.center) + 1)
    J[1:, 0] = one.center - other.center
    return J


def test_other_scores_than_were_summed_are_refused():
    X, y = linear(60, 2)
    for before, now in (("model", "robust"), ("robust", "clustered"), ("clustered", "robust")):
        model = streamed(X, y, [30], coef_cov=before).set_params(coef_cov=now)
        with pytest.raises(ValueError, match=f"coef_cov cannot change from '{before}' to '{now}'"):
            model.partial_fit(X, y)
    model = streamed(X, y, [30], coef_cov="robust").set_params(coef_cov="model").partial_fit(X, y)
    expected = KalproxRegressor(penalty=None).fit(np.vstack([X, X]), np.r_[y, y])
    np.testing.assert_allclose(model.coef_std_, expected.coef_std_, rtol=1e-9)
    with pytest.raises(ValueError, match="coef_cov cannot change from 'model' to 'robust'"):
        model.set_params(coef_cov="robust").partial_fit(X, y)


@pytest.mark.parametrize("data", [linear, unequal])
def test_robust_is_statsmodels_hc1(data):
    X, y, *_ = data(5000, 3, seed=0)
    ours = streamed(X, y, range(700, 5000, 700), coef_cov="robust")
    theirs = sm.OLS(y, sm.add_constant(X)).fit(cov_type="HC1")
    np.testing.assert_allclose(np.r_[ours.intercept_std_, ours.coef_std_], theirs.bse, rtol=0.02)


def test_clustered_is_statsmodels_cluster():
    X, y, _, labels = clusters(10_000, 3, 0)
    ours = streamed(X, y, range(700, 10_000, 700), labels=labels, coef_cov="clustered")
    theirs = sm.OLS(y, sm.add_constant(X)).fit(cov_type="cluster", cov_kwds={"groups": labels})
    np.testing.assert_allclose(np.r_[ours.intercept_std_, ours.coef_std_], theirs.bse, rtol=0.02)


def stream_of(kind, seed):
    """A stream, what it needs, and its true coefficients."""
    if kind == "time":
        X, y, theta = autoregressive(5000, 3, seed)
        return (X, y, range(100, 5000, 100)), "clustered", theta
    if kind == "unequal":
        X, y, theta = unequal(400, 3, seed)
        return (X, y, [100, 300]), "robust", theta
    X, y, theta, labels = clusters(1000, 3, seed)
    return (X, y, range(200, 1000, 200), None, labels), "clustered", theta


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "most"), [pytest.param("time", 0.6, marks=pytest.mark.slow), ("unequal", 0.9), ("groups", 0.85)]
)
def test_intervals_of_coefficients_cover(kind, most):
    seeds, hits = 100, []
    for seed in range(seeds):
        args, cov, theta = stream_of(kind, seed)
        models = streamed(*args, coef_cov=cov), streamed(*args[:2], diagnose=False)
        hits.append([(low <= theta) & (theta <= high) for low, high in (model.coef_interval() for model in models)])
    robust, model = np.mean(hits, axis=0)
    n = seeds * len(theta)  # the bounds are binomial, at 1 in 1,000, about the .93 to .97 that are promised
    assert scipy.stats.binom(n, 0.93).ppf(0.001) <= robust.sum() * seeds <= scipy.stats.binom(n, 0.97).ppf(0.999)
    assert model.min() < most


def test_scores_that_overflow_are_refused():
    """They were infinite in the model, which then could not be saved."""
    D, u = np.full((3, 2), 1e100), np.full(3, 1e60)
    with pytest.raises(FloatingPointError, match=r"overflow.* use coef_cov='model'"):
        Sandwich.zero(None, 2, None).after_rows(D, u, None)
    with pytest.raises(FloatingPointError, match="overflow"):
        Sandwich.zero(None, 2, None).after_clusters(D, u, None, np.ones(3), "a")
