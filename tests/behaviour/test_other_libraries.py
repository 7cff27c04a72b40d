"""KalproxRegressor has the numbers of other libraries on real data."""

import numpy as np
import pytest
import scipy.optimize
import statsmodels.api as sm
from regressor_data import X_DIABETES, X_SCALED, Y_DIABETES
from sklearn.linear_model import BayesianRidge, ElasticNet, Lasso, LinearRegression, Ridge

from kalprox import KalproxRegressor, penalties

LONGLEY = sm.datasets.longley.load_pandas()

# Reaction velocity against substrate concentration, cells treated with Puromycin (12 rows) or not (11):
# M. A. Treloar, "Effects of Puromycin on Galactosyltransferase in Golgi Membranes", M.Sc. thesis, University of
# Toronto, 1974; printed in D. M. Bates, D. G. Watts, "Nonlinear Regression Analysis and Its Applications", 1988.
CONCENTRATIONS = np.repeat([0.02, 0.06, 0.11, 0.22, 0.56, 1.1], 2)
TREATED = CONCENTRATIONS, np.array([76, 47, 97, 107, 123, 139, 159, 152, 191, 201, 207, 200.0])
UNTREATED = CONCENTRATIONS[:11], np.array([67, 51, 84, 86, 98, 115, 131, 124, 144, 158, 160.0])


def test_equal_to_ridge():
    ours, theirs = KalproxRegressor(alpha=3.0).fit(X_DIABETES, Y_DIABETES), Ridge(alpha=3.0).fit(X_DIABETES, Y_DIABETES)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-9)
    assert ours.intercept_ == pytest.approx(theirs.intercept_, rel=1e-9)


@pytest.mark.parametrize("alpha", [0.0, 1e-8, 1e4, 1e12])
def test_ridge_of_any_strength_is_optimal(alpha):
    model = KalproxRegressor(alpha=alpha).fit(X_DIABETES, Y_DIABETES)
    Z = X_DIABETES - X_DIABETES.mean(0)
    residual = Y_DIABETES - Y_DIABETES.mean() - Z @ model.coef_
    gradient = alpha * model.coef_ - Z.T @ residual
    size = alpha * np.abs(model.coef_) + np.abs(Z).T @ np.abs(residual)
    assert (np.abs(gradient) <= 1e-12 * size).all()


@pytest.mark.parametrize("l1_ratio", [1.0, 0.3])
def test_equal_to_lasso_and_elastic_net(l1_ratio):
    n, alpha = len(Y_DIABETES), 2.0
    name = "l1" if l1_ratio == 1 else "elasticnet"
    ours = KalproxRegressor(
        penalty=penalties.ElasticNet(l1_ratio) if name == "elasticnet" else "l1", alpha=n * alpha
    ).fit(X_SCALED, Y_DIABETES)
    make = Lasso if l1_ratio == 1 else lambda **kw: ElasticNet(l1_ratio=l1_ratio, **kw)
    theirs = make(alpha=alpha, tol=1e-14, max_iter=100_000).fit(X_SCALED, Y_DIABETES)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-7, atol=1e-9)  # their tol is on the gap, n var(y)
    np.testing.assert_array_equal(ours.coef_ == 0, theirs.coef_ == 0)
    assert ours.intercept_ == pytest.approx(theirs.intercept_, rel=1e-10)


def test_equal_to_linear_regression_and_longley_ols():
    X, y = LONGLEY.exog.to_numpy(float), LONGLEY.endog.to_numpy(float)  # condition number 5e9, with the constant
    ours, theirs = KalproxRegressor(penalty=None).fit(X, y), sm.OLS(y, sm.add_constant(X)).fit()
    np.testing.assert_allclose(np.r_[ours.intercept_, ours.coef_], theirs.params, rtol=1e-8)
    np.testing.assert_allclose(np.r_[ours.intercept_std_, ours.coef_std_], theirs.bse, rtol=1e-8)
    np.testing.assert_allclose(ours.covariance_, theirs.cov_params()[1:, 1:], rtol=1e-7)
    assert ours.noise_var_ == pytest.approx(theirs.scale, rel=1e-8) and ours.noise_dof_ == theirs.df_resid == 9
    predicted = theirs.get_prediction(sm.add_constant(X)).summary_frame(alpha=0.1)
    low, high = ours.predict_interval(X, level=0.9)
    np.testing.assert_allclose(low, predicted["obs_ci_lower"], rtol=1e-8)
    np.testing.assert_allclose(high, predicted["obs_ci_upper"], rtol=1e-8)
    X, y = X_DIABETES, Y_DIABETES
    ours, theirs = KalproxRegressor(penalty=None).fit(X, y), LinearRegression().fit(X, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-9)
    np.testing.assert_allclose(ours.coef_std_, sm.OLS(y, sm.add_constant(X)).fit().bse[1:], rtol=1e-9)


def test_equal_to_bayesian_ridge_given_its_alpha_and_lambda():
    theirs = BayesianRidge(tol=1e-12, max_iter=2000).fit(X_SCALED, Y_DIABETES)
    noise_var, alpha = 1 / theirs.alpha_, theirs.lambda_ / theirs.alpha_
    ours = KalproxRegressor(alpha=alpha, noise=noise_var).fit(X_SCALED, Y_DIABETES)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-8)
    np.testing.assert_allclose(ours.covariance_, theirs.sigma_, rtol=1e-8, atol=1e-8 * np.abs(theirs.sigma_).max())
    # theirs leaves the intercept's uncertainty out: noise / rows
    _, std = theirs.predict(X_SCALED, return_std=True)
    expected = np.sqrt(std**2 + noise_var / len(Y_DIABETES))
    np.testing.assert_allclose(ours.predict(X_SCALED, return_std=True)[1], expected, rtol=1e-8)


def test_equal_to_curve_fit_and_r_on_puromycin():
    def velocity(theta, x):
        return theta[0] * x[0] / (theta[1] + x[0])

    for (conc, rate), published in (
        (TREATED, ((212.7, 6.947), (0.06412, 0.008281))),  # R's nls, as summary() prints it
        (UNTREATED, ((160.3, 6.480), (0.04771, 0.007782))),
    ):
        model = KalproxRegressor(function=velocity, penalty=None, start=[200.0, 0.05]).fit(conc[:, None], rate)
        assert model.converged_ and model.intercept_ == 0
        for i, (value, error) in enumerate(published):
            assert float(f"{model.coef_[i]:.4g}") == value and float(f"{model.coef_std_[i]:.4g}") == error
        best, cov = scipy.optimize.curve_fit(
            lambda x, vm, k: vm * x / (k + x),
            conc,
            rate,
            [200, 0.05],
            jac=lambda x, vm, k: np.c_[x / (k + x), -vm * x / (k + x) ** 2],
            ftol=1e-15,
            xtol=1e-15,
            gtol=1e-15,
        )
        np.testing.assert_allclose(model.coef_, best, rtol=1e-7)
        np.testing.assert_allclose(model.covariance_, cov, rtol=1e-6)
