"""Nonlinear links, functions, and the recursion of the paper."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from regressor_data import LINKS, linear_data, link_data
from sklearn.preprocessing import StandardScaler

from kalprox import KalproxRegressor, penalties, regularizers


@pytest.mark.parametrize("link", LINKS)
def test_a_link_s_fit_is_the_minimiser_with_its_laplace_covariance(link):
    X, y = link_data(link)
    alpha = 2.0
    model = KalproxRegressor(link=link, alpha=alpha).fit(X, y)

    def rows(t):  # the residuals, and the penalty's
        return np.r_[LINKS[link](t[0] + X @ t[1:]) - y, alpha**0.5 * t[1:]]

    start = np.r_[model.intercept_, model.coef_]
    best = scipy.optimize.least_squares(rows, start, xtol=1e-15, ftol=1e-15, gtol=1e-15, jac="3-point", method="lm")
    np.testing.assert_allclose(start, best.x, rtol=1e-7)
    P = np.linalg.inv(best.jac.T @ best.jac)
    data = best.jac[: len(y)]
    edf = np.trace(P @ data.T @ data)
    noise = (rows(best.x)[: len(y)] ** 2).sum() / (len(y) - edf)
    assert model.noise_var_ == pytest.approx(noise, rel=1e-6)
    np.testing.assert_allclose(model.covariance_, noise * P[1:, 1:], rtol=1e-5, atol=1e-12)
    assert model.intercept_std_ == pytest.approx((noise * P[0, 0]) ** 0.5, rel=1e-6)
    _, std = model.predict(X[:4], return_std=True)
    np.testing.assert_allclose(std, np.sqrt(noise * (1 + np.einsum("ij,jk,ik->i", data[:4], P, data[:4]))), rtol=1e-6)


@pytest.mark.parametrize("link", LINKS)
def test_a_link_s_stream_ends_near_the_fit(link):
    X, y = link_data(link, n=4000)
    fit = KalproxRegressor(link=link, alpha=0.1).fit(X, y)
    stream = KalproxRegressor(link=link, alpha=0.1)
    for i in range(0, 4000, 250):
        stream.partial_fit(X[i : i + 250], y[i : i + 250])
    assert (np.abs(stream.coef_ - fit.coef_) < 0.5 * fit.coef_std_).all()  # far less than what the data leave open
    np.testing.assert_allclose(stream.coef_std_, fit.coef_std_, rtol=0.05)
    assert stream.n_rows_seen_ == 4000
    assert stream.diagnostics_.verdict().word == "calibrated"
    both = KalproxRegressor(link=link, alpha=0.1).fit(X[:2000], y[:2000]).partial_fit(X[2000:], y[2000:])
    assert (np.abs(both.coef_ - fit.coef_) < 0.5 * fit.coef_std_).all()


@pytest.mark.parametrize(("link", "level"), [("softplus", 500.0), ("exp", 9.0), ("sigmoid", 4.0)])
def test_a_stream_s_prior_is_weak(link, level):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 2))
    y = LINKS[link](level + X @ [0.5, -0.3])
    y += 0.1 * y.std() * rng.normal(size=2000)
    fit, stream = KalproxRegressor(link=link, penalty=None).fit(X, y), KalproxRegressor(link=link, penalty=None)
    for i in range(0, 2000, 100):
        stream.partial_fit(X[i : i + 100], y[i : i + 100])
    assert (np.abs(stream.coef_ - fit.coef_) < 0.5 * fit.coef_std_).all()
    assert abs(stream.intercept_ - fit.intercept_) < 0.5 * fit.intercept_std_


def test_a_link_far_from_zero_and_standardised():
    X, y = link_data("sigmoid")
    plain = KalproxRegressor(link="sigmoid", alpha=1.0, penalty="ridge").fit(X, y)
    far = KalproxRegressor(link="sigmoid", alpha=1.0, penalty="ridge").fit(X + 1e4, y)
    np.testing.assert_allclose(far.coef_, plain.coef_, rtol=1e-8)
    np.testing.assert_allclose(far.coef_std_, plain.coef_std_, rtol=1e-8)
    scaler = StandardScaler().fit(X)
    outside = KalproxRegressor(link="sigmoid", alpha=1.0, penalty="ridge").fit(scaler.transform(X), y)
    inside = KalproxRegressor(link="sigmoid", alpha=1.0, standardize=True, penalty="ridge").fit(X, y)
    np.testing.assert_allclose(inside.coef_, outside.coef_ / scaler.scale_, rtol=1e-8)
    np.testing.assert_allclose(inside.coef_std_, outside.coef_std_ / scaler.scale_, rtol=1e-8)
    with pytest.raises(ValueError, match="standard deviations of its columns are not known"):
        KalproxRegressor(link="sigmoid", standardize=True, penalty="ridge").partial_fit(X, y)


def test_start_is_in_the_units_of_x():
    X, y = link_data("sigmoid")
    far = KalproxRegressor(link="sigmoid", penalty="ridge").fit(X, y)
    near = KalproxRegressor(link="sigmoid", start=np.r_[far.intercept_, far.coef_], penalty="ridge").fit(X, y)
    assert near.n_passes_ <= 4 < far.n_passes_  # one to see that it is there, and a few undamped steps
    np.testing.assert_allclose(near.coef_, far.coef_, rtol=1e-9)


def test_the_noise_does_not_move_the_estimate():
    X, y = link_data("sigmoid", n=25)
    learned, given = (
        KalproxRegressor(link="sigmoid", noise=noise, penalty="ridge").partial_fit(X, y) for noise in ("learn", 1e-4)
    )
    np.testing.assert_allclose(learned.coef_, given.coef_, rtol=1e-8)  # nor the weak prior's weight in (1)
    fits = [KalproxRegressor(link="sigmoid", noise=noise, penalty="ridge").fit(X, y) for noise in ("learn", 1e-4)]
    np.testing.assert_allclose(fits[0].coef_, fits[1].coef_, rtol=1e-12)


def test_a_link_with_every_penalty():
    X, y = link_data("tanh")
    for penalty in ("l1", "elasticnet", penalties.SmoothL1(0.1), penalties.Group([0, 0, 1])):
        model = KalproxRegressor(link="tanh", penalty=penalty, alpha=1e4).fit(X, y)
        if isinstance(penalty, penalties.SmoothL1):
            assert np.abs(model.coef_).max() < 1e-3  # rounded at zero, so never quite there
        else:
            assert (model.coef_ == 0).all() and np.tanh(model.intercept_) == pytest.approx(y.mean(), rel=1e-8)
    box = KalproxRegressor(link="tanh", penalty=penalties.Box(0, 0.2)).fit(X, y)
    assert ((box.coef_ >= 0) & (box.coef_ <= 0.2)).all() and box.coef_[1] == 0 and box.coef_std_[1] == 0
    custom = KalproxRegressor(link="tanh", penalty=regularizers.Custom(lambda t: jnp.sum(t**4))).fit(X, y)
    by_hand = KalproxRegressor(
        function=lambda theta, x: jnp.tanh(theta[0] + x @ theta[1:]),
        penalty=regularizers.Custom(lambda t: jnp.sum(t[1:] ** 4)),
        start=np.zeros(4),
    ).fit(X, y)
    np.testing.assert_allclose(np.r_[custom.intercept_, custom.coef_], by_hand.coef_, rtol=1e-8)
    np.testing.assert_allclose(np.r_[custom.intercept_std_, custom.coef_std_], by_hand.coef_std_, rtol=1e-8)


def test_identity_behind_a_function_is_the_linear_model():
    X, y = linear_data()
    function = KalproxRegressor(function=lambda theta, x: x @ theta, start=np.zeros(4), penalty="ridge", alpha=2.0).fit(
        X, y
    )
    linear = KalproxRegressor(alpha=2.0, fit_intercept=False).fit(X, y)
    np.testing.assert_allclose(function.coef_, linear.coef_, rtol=1e-10)
    np.testing.assert_allclose(function.covariance_, linear.covariance_, rtol=1e-9, atol=1e-14)
    np.testing.assert_allclose(function.predict(X[:9], return_std=True), linear.predict(X[:9], True), rtol=1e-9)


def test_a_start_with_more_entries_than_the_function_uses_is_said():
    """The model was fitted without a word, and only its summary called the entry undetermined."""
    x = np.linspace(0, 3, 60)[:, None]
    y = 2 * np.exp(-1.2 * x[:, 0]) + 0.01 * np.cos(40 * x[:, 0])

    def decay(theta, x):
        return theta[0] * jnp.exp(-theta[1] * x[0])

    with pytest.warns(RuntimeWarning, match=r"do not determine theta\[2\] of the function: its std is infinite"):
        model = KalproxRegressor(function=decay, start=[1.0, 1.0, 1.0]).fit(x, y)
    np.testing.assert_allclose(
        model.coef_[:2], KalproxRegressor(function=decay, start=[1.0, 1.0]).fit(x, y).coef_, rtol=1e-8
    )
