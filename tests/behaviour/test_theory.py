"""What the paper claims of convergence, as theorems with numbers: one test for each result."""

import numpy as np
import pytest
from scipy.stats import chi2

import kalprox as kp
from kalprox import KalproxRegressor

ALPHA = 0.7


def sequences():
    """Targets that know the predictions: each is chosen after x was predicted, as far from it as is allowed."""
    rng = np.random.default_rng(0)
    gaussian = rng.normal(size=(60, 4))
    scales = gaussian * 10.0 ** rng.uniform(-2, 2, size=(60, 1))
    repeated = np.repeat(gaussian[:6], 10, axis=0) + 1e-3 * gaussian
    noise = rng.normal(size=60)
    return {
        "random": (gaussian, lambda t, p: gaussian[t].sum() + noise[t]),
        "adversarial": (gaussian, lambda t, p: -1.0 if p > 0 else 1.0),
        "adversarial, rows of every size": (scales, lambda t, p: -1.0 if p > 0 else 1.0),
        "adversarial, rows nearly repeated": (repeated, lambda t, p: -1.0 if p > 0 else 1.0),
    }


SEQUENCES = sequences()


def by_filter(X, answer):
    """Predictions p_t, leverages s_t and targets of the proximal filter, one row at a time."""
    alg = kp.proximal_filter(kp.models.Linear(), kp.regularizers.Ridge(ALPHA), gamma=1.0)
    state, played = alg.init(np.zeros(X.shape[1]), None), []
    for t, x in enumerate(X):
        predicted = alg.predict(state, x)
        y = answer(t, float(predicted.mean))
        played.append((float(predicted.mean), float(predicted.std) ** 2 - 1, y))
        state = alg.step(state, x[None], np.array([y]))
    return np.array(played).T


def by_regressor(X, answer, minimax=False):
    """The same of the regressor, or its minimax predictions in place of p_t."""
    model, played = KalproxRegressor(alpha=ALPHA, noise=1.0, fit_intercept=False), []
    for t, x in enumerate(X):
        if t == 0:
            p, s = 0.0, float(x @ x) / ALPHA  # nothing has been learned: theta is 0, and V is I / alpha
        else:
            mean, std = model.predict(x[None], return_std=True)
            p, s = float(mean[0]), float(std[0]) ** 2 - 1
            p = float(model.predict(x[None], minimax=True)[0]) if minimax else p
        y = answer(t, p)
        played.append((p, s, y))
        model.partial_fit(x[None], [y])
    return np.array(played).T


def ridge_optimum(X, y):
    """min over theta of |y - X theta|^2 + alpha |theta|^2, by a QR factorisation of all rows at once."""
    d = X.shape[1]
    stacked = np.concatenate([X, ALPHA**0.5 * np.eye(d)])
    targets = np.concatenate([y, np.zeros(d)])
    theta = np.linalg.lstsq(stacked, targets, rcond=None)[0]
    return ((targets - stacked @ theta) ** 2).sum()


@pytest.mark.parametrize("play", [by_filter, by_regressor])
@pytest.mark.parametrize("name", SEQUENCES)
def test_the_losses_of_a_stream_add_up_to_the_optimum_of_ridge_regression(name, play):
    """sum_t (y_t - p_t)^2 / (1 + s_t) = min over theta of sum_t (y_t - x_t'theta)^2 + alpha |theta|^2.

    p_t and s_t are the prediction and the leverage of row t before it was learned. The identity holds for every
    sequence: each row adds (y - p)^2 / (1 + s) to the optimum, by Woodbury's identity. It is how one pass gets to the
    minimiser of all rows. Source: K. S. Azoury and M. K. Warmuth, "Relative loss bounds for on-line density estimation
    with the exponential family of distributions", Machine Learning 43, 2001; F. Zhdanov and Y. Kalnishkan, "An identity
    for kernel ridge regression", Theoretical Computer Science 473, 2013.
    """
    X, answer = SEQUENCES[name]
    p, s, y = play(X, answer)
    np.testing.assert_allclose(((y - p) ** 2 / (1 + s)).sum(), ridge_optimum(X, y), rtol=1e-12)


@pytest.mark.parametrize("name", [name for name in SEQUENCES if name != "random"])
def test_the_regret_of_minimax_predictions_is_bounded_for_every_sequence(name):
    """sum_t (y_t - q_t)^2 - min over theta of (...) = sum_t y_t^2 s_t / (1 + s_t) - s_t q_t^2.

    q_t = p_t / (1 + s_t) is the forecaster of Vovk, Azoury and Warmuth. With u = y and p = (1 + s) q, a row adds
    (u - q)^2 - (u - (1 + s) q)^2 / (1 + s) = u^2 s / (1 + s) - s q^2 to the regret, which is the identity. As
    s / (1 + s) <= log(1 + s), and the 1 + s_t multiply to det(I + X'X / alpha), the regret is at most
    Y^2 log det(I + X'X / alpha) <= d Y^2 log(1 + n B^2 / (alpha d)), |y| <= Y and |x| <= B; the last step is the
    inequality of arithmetic and geometric means for the eigenvalues. Source: V. Vovk, "Competitive on-line statistics",
    International Statistical Review 69, 2001; Azoury and Warmuth (2001); N. Cesa-Bianchi and G. Lugosi, "Prediction,
    Learning, and Games", 2006, theorem 11.8.
    """
    X, answer = SEQUENCES[name]
    q, s, y = by_regressor(X, answer, minimax=True)
    n, d = X.shape
    regret = ((y - q) ** 2).sum() - ridge_optimum(X, y)
    scale = (y**2).sum()
    np.testing.assert_allclose(regret, (y**2 * s / (1 + s) - s * q**2).sum(), rtol=0, atol=1e-12 * scale)
    determinant = np.linalg.slogdet(np.eye(d) + X.T @ X / ALPHA)[1]
    np.testing.assert_allclose(np.log1p(s).sum(), determinant, rtol=1e-10)
    largest = (X**2).sum(axis=1).max()
    assert regret <= determinant <= d * np.log1p(n * largest / (ALPHA * d))


def test_plain_ridge_predictions_break_the_bound_that_minimax_predictions_keep():
    """One short row of target 1, then a long one of target -1: ridge predicts 1 / |x_1| there, and pays for it.

    The bound is that of the test above, with d = 1, Y = 1, B = 1, n = 2 and alpha |u|^2 included in the comparison.
    """
    small, alpha = 0.01, 1e-6
    model = KalproxRegressor(alpha=alpha, fit_intercept=False, noise=1.0).partial_fit([[small]], [1.0])
    X, y = np.array([[small], [1.0]]), np.array([1.0, -1.0])
    best = (y**2).sum() - (X[:, 0] @ y) ** 2 / ((X**2).sum() + alpha)
    bound = np.log1p(2 / alpha)
    first = 1.0  # nothing is known before the first row, and both predict 0
    losses = {minimax: first + (-1 - model.predict([[1.0]], minimax=minimax)[0]) ** 2 for minimax in (False, True)}
    assert losses[True] - best <= bound < 100 * bound < losses[False] - best


def test_with_an_intercept_the_regret_is_bounded_by_the_range_of_the_targets():
    """From the second row on, q = m + (p - m) / (1 + s), m the mean of the targets so far, s the full leverage.

    The identity of a row, above, holds with u = y - m. Hence the regret is at most the sum of (y - m)^2 s / (1 + s),
    and so at most D^2 log(det A_n / det A_1), where D is the range of the targets and A_t the information about
    intercept and coefficients after t rows, penalty included. The bound does not change when a constant is added to
    all targets, nor does the regret.
    """
    X, _ = SEQUENCES["adversarial"]
    for shift in (0.0, 1e3):
        model, losses, y, falls = KalproxRegressor(alpha=ALPHA), [], [1.0 + shift], []
        for t, x in enumerate(X):
            if t == 0:
                model.partial_fit(x[None], y)
                continue
            q, m = float(model.predict(x[None], minimax=True)[0]), np.mean(y)
            y.append((-1.0 if q - shift > 0 else 1.0) + shift)
            D = np.column_stack([np.ones(t), X[:t]])
            A = D.T @ D + ALPHA * np.diag([0.0, 1, 1, 1, 1])
            s = np.append(1, x) @ np.linalg.solve(A, np.append(1, x))
            losses.append((y[-1] - q) ** 2)
            falls.append((y[-1] - m) ** 2 * s / (1 + s) - s * (q - m) ** 2)
            model.partial_fit(x[None], y[-1:])
        targets = np.array(y) - np.mean(y)
        regret = sum(losses) - ridge_optimum(X - X.mean(axis=0), targets)
        np.testing.assert_allclose(regret, sum(falls), rtol=0, atol=1e-9 if shift else 1e-11)
        D = np.column_stack([np.ones(len(X)), X])
        penalty = ALPHA * np.diag([0.0, 1, 1, 1, 1])
        first, last = (np.linalg.slogdet(D[:t].T @ D[:t] + penalty)[1] for t in (1, len(X)))
        assert regret <= 4 * (last - first)


def test_minimax_predictions_are_the_fit_with_the_row_itself_and_several_targets_are_alike():
    """x'(A + x x')^-1 b: the ridge fit at x after one more row (x, m), m = 0 or, with an intercept, the mean."""
    rng = np.random.default_rng(1)
    X, Y, new = rng.normal(size=(20, 3)), rng.normal(size=(20, 2)) + 5, rng.normal(size=(4, 3))
    for intercept in (False, True):
        m = Y.mean(axis=0) if intercept else np.zeros(2)
        model = KalproxRegressor(alpha=ALPHA, fit_intercept=intercept)
        found = model.fit(X, Y).predict(new, minimax=True)
        for x, q in zip(new, found, strict=True):
            again = KalproxRegressor(alpha=ALPHA, fit_intercept=intercept).fit(np.vstack([X, x]), np.vstack([Y, m]))
            np.testing.assert_allclose(q, again.predict(x[None])[0], rtol=1e-12)
        single = model.fit(X, Y[:, 1]).predict(new, minimax=True)
        np.testing.assert_allclose(single, found[:, 1], rtol=1e-13)
    undetermined = KalproxRegressor(penalty=None).fit(X[:2], Y[:2, 0])
    np.testing.assert_allclose(undetermined.predict(new, minimax=True), Y[:2, 0].mean(), rtol=1e-12)


def test_minimax_predictions_are_refused_where_nothing_is_known_of_them():
    X, y = np.random.default_rng(2).normal(size=(30, 2)), np.linspace(0.1, 0.9, 30)
    with pytest.raises(ValueError, match=r"minimax=True has no standard deviation.*Call predict twice"):
        KalproxRegressor(penalty="ridge").fit(X, y).predict(X, return_std=True, minimax=True)
    with pytest.raises(ValueError, match=r"minimax=True needs a quadratic penalty.*got penalty='l1'"):
        KalproxRegressor(penalty="l1").fit(X, y).predict(X, minimax=True)
    with pytest.raises(ValueError, match=r"minimax=True needs link='identity'.*minimax=False"):
        KalproxRegressor(link="sigmoid", penalty="ridge").fit(X, y).predict(X, minimax=True)


def efficiency(link, penalty, seeds, n, d=4, noise=0.25, batch=500):
    """The sum over seeds of e'I e: e the error of a stream's estimate, I the Fisher information of its n rows."""
    total = 0.0
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        X, theta = rng.normal(size=(n, d)), rng.normal(size=d)
        u = X @ theta
        h, slope = (u, np.ones(n)) if link == "identity" else (1 / (1 + np.exp(-u)), 1 / (2 + 2 * np.cosh(u)))
        y = h + noise**0.5 * rng.normal(size=n)
        model = KalproxRegressor(link=link, penalty=penalty, noise=noise, fit_intercept=False)
        for start in range(0, n, batch):
            model.partial_fit(X[start : start + batch], y[start : start + batch])
        total += (((model.coef_ - theta) @ (slope[:, None] * X).T) ** 2).sum() / noise
    return total


@pytest.mark.slow
@pytest.mark.parametrize(("penalty", "n"), [(None, 10), (None, 1000), ("ridge", 1000)])
def test_a_linear_stream_is_efficient(penalty, n):
    """e'I e / d -> 1, the bound of Cramer and Rao: I = X'X / noise is the Fisher information of the rows.

    For least squares e'I e has the chi-square law with d degrees of freedom for every n >= d, so that the sum over
    independent streams has it with d times as many. The weight 1 of ridge changes e by 1 part in n. Bounds of
    probability 1e-3. Source: A. W. van der Vaart, "Asymptotic Statistics", 1998, chapter 8.
    """
    seeds, d = 100, 4
    low, high = chi2.ppf([5e-4, 1 - 5e-4], seeds * d)
    assert low < efficiency("identity", penalty, seeds, n, d, batch=7 if n == 10 else 500) < high


@pytest.mark.slow
def test_a_sigmoid_stream_is_efficient_behind_its_warm_up():
    """e'I e / d -> 1 with I = sum_t h'(x_t'theta)^2 x_t x_t' / noise, although every row is linearised only once.

    e'I e tends to the chi-square law with d degrees of freedom if the errors of linearisation vanish faster than
    1 / sqrt(n), which holding rows until the leverage is small is for. Bounds of probability 1e-3 for the sum over
    independent streams. Source: van der Vaart (1998), chapter 5.
    """
    seeds, d = 16, 4
    low, high = chi2.ppf([5e-4, 1 - 5e-4], seeds * d)
    assert low < efficiency("sigmoid", None, seeds, 8000, d, batch=2000) < high
