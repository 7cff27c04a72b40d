"""Ridge with fewer rows than columns: the row space against explicit inverses, and the triangle of few rows."""

import numpy as np
import pytest

from kalprox.information import Information, merge
from kalprox.linalg import row_space
from kalprox.posterior import InformationPosterior
from kalprox.regularizers import Quadratic, Ridge, Weighted, Zero

D = 90


def rows(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Columns of different sizes, one of zeros, two equal ones, one far from zero, and two equal rows."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, D)) * np.exp(rng.standard_normal(D))
    X[:, 3], X[:, 4], X[:, 6] = 0.0, X[:, 5], X[:, 6] + 30
    X[n // 2 :][:1] = X[0]
    return X, rng.standard_normal(n)


def penalties() -> dict[str, np.ndarray]:
    h = np.exp(np.random.default_rng(1).standard_normal(D))
    return {"ridge": np.full(D, 2.5), "weak": np.full(D, 1e-2), "each its own": h, "two free": np.where(h > 3, 0, h)}


@pytest.mark.parametrize("name", penalties())
@pytest.mark.parametrize("n", [1, 2, 20, 60])
def test_ridge_of_few_rows_equals_least_squares_with_more_rows(name: str, n: int) -> None:
    h, (X, y) = penalties()[name], rows(n)
    info = Information.from_rows(X, y)
    posterior = InformationPosterior(info, Weighted(Ridge(1.0), h), gamma=1.0)
    if n < (h == 0).sum():
        assert not posterior.proper
        return
    assert posterior._row_space is not None and posterior.proper
    stack = np.concatenate([X, np.diag(h**0.5)])
    inverse = np.linalg.inv(np.linalg.qr(stack, mode="r"))
    C = inverse @ inverse.T
    scale = np.sqrt(np.outer(C.diagonal(), C.diagonal()))
    mean = np.linalg.lstsq(stack, np.append(y, np.zeros(D)), rcond=None)[0]
    np.testing.assert_allclose(posterior.mean, mean, atol=1e-9 * np.abs(mean).max())
    assert posterior.mean[3] == 0
    np.testing.assert_allclose(np.asarray(posterior.cov()) / scale, C / scale, atol=1e-9)
    np.testing.assert_allclose(posterior.var(), C.diagonal(), rtol=1e-8)
    factor = posterior.factor
    np.testing.assert_allclose((factor.L @ factor.L.T) / scale, C / scale, atol=1e-9)
    at = np.concatenate([X[:3], np.random.default_rng(2).standard_normal((4, D))])
    np.testing.assert_allclose(posterior.leverage(at), np.einsum("ij,jk,ik->i", at, C, at), rtol=1e-8)
    np.testing.assert_allclose(posterior.edf, np.trace(C @ X.T @ X), rtol=1e-9)


@pytest.mark.parametrize("forget", [1.0, 0.5])
def test_the_row_space_and_the_square_triangle_agree(forget: float, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = rows(40)
    info = Information.from_rows(X[:25], np.column_stack([y, -2 * y])[:25]).forget(forget)
    info = info.fold(X[25:], np.column_stack([y, -2 * y])[25:])
    at = np.concatenate([X[:3], np.random.default_rng(2).standard_normal((4, D))])

    def readings() -> list[np.ndarray]:
        p = InformationPosterior(info.with_intercept(), Weighted(Ridge(0.3), np.append(0.0, np.ones(D))), gamma=2.0)
        found = p.mean, p.var(), p.cov(), p.leverage(np.column_stack([np.ones(7), at])), p.edf, p.rss
        return [np.asarray(one) for one in found]

    wide = readings()
    monkeypatch.setattr(row_space, "_FEWEST", 10**9)
    for one, other in zip(wide, readings(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-10 * np.abs(other).max())


def test_without_a_penalty_the_solution_has_minimum_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = rows(30)
    info = Information.from_rows(X, y)
    posterior = InformationPosterior(info, Zero(), gamma=1.0)
    assert posterior._row_space is not None and not posterior.proper
    np.testing.assert_allclose(posterior.mean, np.linalg.pinv(X) @ y, atol=1e-10)
    assert float(posterior.edf) == np.linalg.matrix_rank(X)
    assert np.isinf(posterior.var()).all()
    outside = np.random.default_rng(3).standard_normal((2, D))
    expected = np.einsum("ij,jk,ik->i", X, np.linalg.pinv(X.T @ X, rcond=1e-12), X)
    np.testing.assert_allclose(posterior.leverage(np.concatenate([X, outside])), [*expected, np.inf, np.inf], rtol=1e-8)
    new = posterior.factor.along_null(np.concatenate([X, outside]))
    assert np.abs(new[:30]).max() < 1e-12 * np.abs(new[30:]).max()
    assert posterior.factor.n_undetermined == D - float(posterior.edf)
    cov = np.asarray(posterior.cov())
    monkeypatch.setattr(row_space, "_FEWEST", 10**9)
    dense = np.asarray(InformationPosterior(info, Zero(), gamma=1.0).cov())
    np.testing.assert_array_equal(np.isinf(cov), np.isinf(dense))


def test_draws_have_the_covariance() -> None:
    X, y = rows(10)
    posterior = InformationPosterior(Information.from_rows(X, y), Ridge(0.5), gamma=4.0)
    factor = posterior.factor
    unit = np.eye(factor.normals)
    C = factor.draws(unit).T @ factor.draws(unit)
    np.testing.assert_allclose(C / 4, posterior.cov(), atol=1e-10 * np.abs(C).max())
    assert posterior.sample(3, np.random.RandomState(0)).shape == (3, D)


def test_a_penalty_below_rounding_is_left_to_the_rule_for_rank() -> None:
    X, y = rows(20)
    posterior = InformationPosterior(Information.from_rows(X, y), Ridge(1e-30), gamma=1.0)
    assert posterior._row_space is None
    assert np.isinf(posterior.var()).any()


def test_a_general_quadratic_penalty_uses_the_square_triangle() -> None:
    X, y = rows(20)
    A = np.eye(D) - np.eye(D, k=1) / 2
    posterior = InformationPosterior(Information.from_rows(X, y), Quadratic(A), gamma=1.0)
    np.testing.assert_allclose(posterior.mean, np.linalg.solve(X.T @ X + A.T @ A, X.T @ y), atol=1e-9)


def test_the_triangle_has_no_more_rows_than_were_folded() -> None:
    X, y = rows(150)
    info, sizes = Information.zero(D), []
    for stop in (1, 5, 40, 91, 92, 120, 150):
        start = 0 if not sizes else sizes[-1][0]
        info = info.fold(X[start:stop], y[start:stop])
        sizes.append((stop, len(info.T)))
        B = np.column_stack([np.ones(stop), X[:stop] - info.shift[:D], y[:stop] - info.shift[D]])
        np.testing.assert_allclose(info.T.T @ info.T, B.T @ B, atol=1e-11 * np.abs(B.T @ B).max())
        assert not np.tril(info.T, -1).any() and (info.T.diagonal() >= 0).all()
        assert info.R.shape == (D, D) and info.z.shape == (D,)
    assert [size for _, size in sizes] == [1, 5, 40, 91, 92, 92, 92]


@pytest.mark.parametrize("cut", [3, 60, 120])
def test_merging_and_subtracting_few_rows(cut: int) -> None:
    X, y = rows(150)
    a, b = Information.from_rows(X[:cut], y[:cut]), Information.from_rows(X[cut:], y[cut:])
    whole = Information.from_rows(X, y)
    for merged in (merge(a, b), merge(b, a)):
        np.testing.assert_allclose(merged.precision(), whole.precision(), rtol=1e-9, atol=1e-8)
        assert float(merged.rows) == 150
    few = merge(Information.from_rows(X[:3], y[:3]), Information.from_rows(X[3:7], y[3:7]))
    assert len(few.T) == 7
    left = whole.subtract(Information.from_rows(X[:3], y[:3]))
    np.testing.assert_allclose(left.precision(), X[3:].T @ X[3:], rtol=1e-8, atol=1e-6)
