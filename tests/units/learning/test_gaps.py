"""Moments of features that are missing in some rows, and what they say of the missing ones."""

import numpy as np
import pytest

from kalprox import KalproxClassifier
from kalprox.base.tree import Saved, flatten
from kalprox.information import Information
from kalprox.learning.gaps import FeatureMoments, Gaps
from kalprox.sources import Block

COV = np.array([[1.0, 0.7, 0.4], [0.7, 2.0, 0.5], [0.4, 0.5, 0.5]])
MEAN = np.array([5.0, 0.0, -3.0])


def _rows(n, seed=0, missing=0.3):
    rng = np.random.default_rng(seed)
    X = rng.multivariate_normal(MEAN, COV, size=n)
    Z = X.copy()
    Z[rng.random(X.shape) < missing] = np.nan
    return X, Z


def _known(weight=1e12):
    """Moments that are known as if from so many rows that nothing is shrunk."""
    return FeatureMoments(weight, MEAN, np.full(3, weight), COV)


def test_a_missing_feature_has_its_conditional_mean_and_variance():
    x = np.array([[np.nan, 1.0, np.nan], [np.nan, np.nan, np.nan], [1.0, 2.0, 3.0]])
    coef = np.array([1.0, -2.0, 0.5])
    done = _known().completed(x, coef)
    B = COV[[0, 2], 1] / COV[1, 1]
    np.testing.assert_allclose(done.X[0, [0, 2]], MEAN[[0, 2]] + B * 1.0, rtol=1e-9)
    C = COV[np.ix_([0, 2], [0, 2])] - np.outer(B, COV[[0, 2], 1])
    np.testing.assert_allclose(done.open, [coef[[0, 2]] @ C @ coef[[0, 2]], coef @ COV @ coef, 0], rtol=1e-9)
    np.testing.assert_allclose(done.X[1], MEAN)
    np.testing.assert_array_equal(done.X[2], x[2])


def test_several_outputs_have_the_covariance_of_what_is_left_open():
    coef = np.array([[1.0, -2.0, 0.5], [0.0, 1.0, 0.0]])
    done = _known().completed(np.full((1, 3), np.nan), coef)
    np.testing.assert_allclose(done.open[0], coef @ COV @ coef.T, rtol=1e-9)


def test_a_random_draw_agrees_with_the_conditional_distribution():
    """Over many rows, what was hidden lies about its conditional mean with the stated variance."""
    X, Z = _rows(20_000)
    coef = np.array([1.0, -2.0, 0.5])
    done = _known().completed(Z, coef)
    gap = np.isnan(Z).any(axis=1)
    z = ((X - done.X) @ coef)[gap] / np.sqrt(done.open[gap])
    assert abs(z.mean()) < 4 / len(z) ** 0.5
    assert abs((z**2).mean() - 1) < 4 * (2 / len(z)) ** 0.5


def _naive_em(Z, steps=400):
    """Gaussian maximum likelihood with missing values, row by row, as a textbook has it."""
    mean = np.nanmean(Z, axis=0)
    cov = np.diag(np.nanvar(Z, axis=0))
    for _ in range(steps):
        total, square = np.zeros(3), np.zeros((3, 3))
        for z in Z:
            u = np.isnan(z)
            x, C = z.copy(), np.zeros((3, 3))
            if u.any():
                B = cov[np.ix_(u, ~u)] @ np.linalg.inv(cov[np.ix_(~u, ~u)])
                x[u] = mean[u] + B @ (z[~u] - mean[~u])
                C[np.ix_(u, u)] = cov[np.ix_(u, u)] - B @ cov[np.ix_(~u, u)]
            total, square = total + x, square + np.outer(x, x) + C
        mean = total / len(Z)
        cov = square / len(Z) - np.outer(mean, mean)
    return mean, cov


def test_the_first_batch_has_the_moments_of_maximum_likelihood():
    _, Z = _rows(300)
    found = FeatureMoments.of_batch(Z, np.ones(300), with_cov=True)
    mean, cov = _naive_em(Z, 20)
    scale = np.sqrt(np.outer(np.diag(cov), np.diag(cov)))
    # Correlations are shrunk by 5 rows in 300, at each step.
    np.testing.assert_allclose(found.mean, mean, atol=0.03)
    assert np.abs((found.cov - cov) / scale).max() < 0.06


def test_moments_of_complete_rows_are_those_of_the_information():
    X, _ = _rows(200)
    info = Information.from_rows(X, X[:, 0])
    moments = FeatureMoments.of_information(info, with_cov=True)
    np.testing.assert_allclose(moments.mean, X.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(moments.cov, np.cov(X.T, bias=True), rtol=1e-10)
    whole = FeatureMoments.of_batch(X, np.ones(200), with_cov=True)
    np.testing.assert_allclose(whole.cov, moments.cov, rtol=1e-10)


@pytest.mark.parametrize("with_cov", [True, False])
def test_rows_one_after_the_other_and_merged_are_the_rows_together(with_cov):
    X, _ = _rows(120)
    whole = FeatureMoments.of_batch(X, np.ones(120), with_cov=with_cov)
    parts = [FeatureMoments.of_batch(X[:50], np.ones(50), with_cov=with_cov)]
    later = parts[0].after(X[50:], parts[0].completed(X[50:]), np.ones(70))
    parts.append(FeatureMoments.of_batch(X[50:], np.ones(70), with_cov=with_cov))
    for one in (later, parts[0].merge(parts[1])):
        np.testing.assert_allclose(one.mean, whole.mean, rtol=1e-12)
        np.testing.assert_allclose(one.seen, whole.seen)
        if with_cov:
            np.testing.assert_allclose(one.cov, whole.cov, rtol=1e-10)


def test_a_weight_of_two_is_two_rows_and_forgetting_fades():
    X, _ = _rows(40)
    w = np.random.default_rng(0).integers(0, 3, 40).astype(float)
    one = FeatureMoments.of_batch(X, w, with_cov=True)
    two = FeatureMoments.of_batch(np.repeat(X, w.astype(int), axis=0), np.ones(int(w.sum())), with_cov=True)
    np.testing.assert_allclose(one.cov, two.cov, rtol=1e-10)
    later = one.after(X + 100, one.completed(X + 100), np.ones(40), left=1e-9)
    np.testing.assert_allclose(later.mean, X.mean(axis=0) + 100, rtol=1e-6)


def test_more_features_than_rows_leave_something_open():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(6, 30))
    moments = FeatureMoments.of_batch(X, np.ones(6), with_cov=True)
    row = X[:1].copy()
    row[0, 3] = np.nan
    done = moments.completed(row, np.eye(30)[3])
    assert 0.2 * X[:, 3].var() < done.open[0] <= X[:, 3].var()


def test_constant_collinear_and_unseen_columns():
    x = np.random.default_rng(0).normal(size=50)
    X = np.column_stack([x, 2 * x, np.full(50, 7.0), np.full(50, np.nan)])
    moments = FeatureMoments.of_batch(X, np.ones(50), with_cov=True)
    assert moments.unseen.tolist() == [3]
    done = moments.completed(np.array([[1.0, np.nan, np.nan, np.nan], [np.nan, 2.0, 7.0, np.nan]]), np.ones(4))
    np.testing.assert_allclose(done.X[0], [1, 2, 7, 0], atol=0.3)
    assert np.isfinite(done.open).all() and (done.open >= 0).all()


def test_a_constant_column_may_get_another_value_afterwards():
    rng = np.random.default_rng(0)
    X, y = np.column_stack([rng.normal(size=30), np.zeros(30)]), rng.normal(size=30)
    moved = Information.from_rows(X, y).with_origin(np.array([1]), np.array([50.0]))
    X[:, 1] = 50
    more, target = rng.normal(size=(20, 2)) + [0, 50], rng.normal(size=20)
    both = moved.fold(more, target).with_intercept().solve()
    whole = Information.from_rows(np.vstack([X, more]), np.append(y, target)).with_intercept().solve()
    np.testing.assert_allclose(both, whole, rtol=1e-9)
    with pytest.raises(ValueError, match="constant"):
        moved.with_origin(np.array([0]), np.array([1.0]))


def _restored(gaps, d):
    header, arrays = {}, {}
    flatten("gaps", gaps, header, arrays)
    return Saved(header, arrays).tree(Gaps, "gaps", {"d": d, "k": None, "o": None})


def test_the_account_is_saved():
    _, Z = _rows(20)
    moments = FeatureMoments.of_batch(Z, np.ones(20), with_cov=True)
    gaps = Gaps(unlabelled=3).after(Z, np.ones(20), moments).holding(Block(Z, np.arange(20.0)), start=True)
    back = _restored(gaps, 3)
    assert (back.rows, back.unlabelled) == (gaps.rows, 3) == (int(np.isnan(Z).any(axis=1).sum()), 3)
    np.testing.assert_array_equal(back.cells, np.isnan(Z).sum(axis=0))
    np.testing.assert_array_equal(back.moments.cov, moments.cov)
    np.testing.assert_array_equal(back.held[0].X, Z)
    assert _restored(Gaps(), 3).moments is None


def test_accounts_add():
    _, Z = _rows(20)
    moments = FeatureMoments.of_batch(Z, np.ones(20), with_cov=False)
    one = Gaps(unlabelled=3).after(Z, np.ones(20), moments)
    both = one.merge(Gaps(unlabelled=1))
    assert both.unlabelled == 4 and both.rows == one.rows and both.moments is None
    np.testing.assert_array_equal(one.merge(one).cells, 2 * one.cells)


def test_the_moments_of_classes_are_those_of_all_rows_in_short_and_long_batches():
    """Batches of more than 64 rows of classes come as a source of blocks; their rows are held as others are."""
    X, Z = _rows(340)
    y = (X[:, 0] > MEAN[0]).astype(int)
    model = KalproxClassifier(missing="marginalize")
    for start, stop in ((0, 20), (20, 320), (320, 340)):
        model.partial_fit(Z[start:stop], y[start:stop], classes=[0, 1])
    found, whole = model._learner.gaps.moments, FeatureMoments.of_batch(Z, np.ones(340), with_cov=True)
    assert found.weight == 340
    np.testing.assert_allclose(found.mean, whole.mean, atol=0.1)
