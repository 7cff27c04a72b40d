"""Missing features: what the estimators learn and predict, and what they refuse."""

import numpy as np
import pytest
import scipy.sparse
from scipy.stats import binom
from sklearn.utils.estimator_checks import check_estimator

from kalprox import KalproxClassifier, KalproxRegressor

COEF = np.array([1.0, -2.0, 0.5])
CORRELATION = np.linalg.cholesky([[1, 0.7, 0.4], [0.7, 1, 0.5], [0.4, 0.5, 1]])
HOW = ["impute", "marginalize"]


def _data(seed, n=400, missing=0.3):
    """Correlated features, of which a share is missing completely at random, and a linear target."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3)) @ CORRELATION.T * [1, 2, 0.5] + [5, 0, -3]
    y = 2 + X @ COEF + rng.normal(size=n)
    Z = X.copy()
    Z[rng.random(X.shape) < missing] = np.nan
    return X, Z, y


def _fits(missing, seeds, n=400, how="marginalize", batch=None):
    """Coefficients, whether their intervals cover, and how many of 50 new rows with gaps their intervals cover."""
    coefs, covered, predicted = [], [], []
    for seed in range(seeds):
        _, Z, y = _data(seed, n, missing)
        _, new, target = _data(seed + 10_000, 50, missing)
        model = KalproxRegressor(penalty=None, missing=how, diagnose=False)
        if batch is None:
            model.fit(Z, y)
        else:
            for i in range(0, n, batch):
                model.partial_fit(Z[i : i + batch], y[i : i + batch])
        low, high = model.coef_interval()
        coefs.append(model.coef_)
        covered.append((low <= COEF) & (high >= COEF))
        low, high = model.predict_interval(new)
        predicted.append(((low <= target) & (target <= high)).sum())
    return np.array(coefs), np.sum(covered, axis=0), int(np.sum(predicted))


def _check_unbiased_and_covering(missing, seeds, **how):
    coefs, covered, predicted = _fits(missing, seeds, **how)
    error = coefs.mean(axis=0) - COEF
    assert (np.abs(error) < 4 * coefs.std(axis=0) / seeds**0.5).all(), error
    assert (covered >= binom.ppf(1e-5, seeds, 0.95)).all(), covered
    # Rows of one seed share their model: their number is worth half as many, as a model of 400 rows errs little.
    low, high = binom.ppf([1e-5, 1 - 1e-5], 25 * seeds, 0.95) / (25 * seeds)
    assert low < predicted / (50 * seeds) < high, predicted


def test_marginalised_coefficients_are_unbiased_and_intervals_cover():
    _check_unbiased_and_covering(0.3, 20)


@pytest.mark.slow
@pytest.mark.parametrize(("missing", "batch"), [(0.1, None), (0.3, 25), (0.5, None), (0.5, 25)])
def test_marginalised_coefficients_are_unbiased_for_any_share_of_gaps(missing, batch):
    _check_unbiased_and_covering(missing, 24, n=800, batch=batch)


@pytest.mark.slow
def test_a_stream_with_gaps_is_unbiased_from_its_first_rows():
    coefs, covered, _ = _fits(0.3, 30, n=240, batch=40)
    assert (np.abs(coefs.mean(axis=0) - COEF) < 4 * coefs.std(axis=0) / 30**0.5).all()
    assert (covered >= binom.ppf(1e-5, 30, 0.95)).all()


def test_imputed_means_bias_what_marginalising_does_not_and_complete_rows_know_less():
    coefs, _, _ = _fits(0.3, 20, how="impute")
    assert abs(coefs.mean(axis=0)[0] - COEF[0]) > 10 * coefs.std(axis=0)[0] / 20**0.5
    stds, known = [], []
    for seed in range(10):
        _, Z, y = _data(seed)
        whole = ~np.isnan(Z).any(axis=1)
        stds.append(KalproxRegressor(penalty=None, missing="marginalize").fit(Z, y).coef_std_)
        known.append(KalproxRegressor(penalty=None).fit(Z[whole], y[whole]).coef_std_)
    assert (np.mean(stds, axis=0) < 0.95 * np.mean(known, axis=0)).all()


@pytest.mark.parametrize("how", HOW)
def test_without_gaps_nothing_changes(how):
    X, _, y = _data(0)
    plain, other = KalproxRegressor(penalty="ridge"), KalproxRegressor(missing=how, penalty="ridge")
    for i in range(0, 400, 40):
        plain.partial_fit(X[i : i + 40], y[i : i + 40])
        other.partial_fit(X[i : i + 40], y[i : i + 40])
    np.testing.assert_array_equal(plain.coef_, other.coef_)
    np.testing.assert_array_equal(plain.predict(X[:3], return_std=True), other.predict(X[:3], return_std=True))
    assert other.n_rows_with_gaps_ == 0


def test_impute_is_the_mean_of_the_rows_before():
    X = np.array([[1.0, 2.0], [3.0, np.nan], [5.0, 6.0], [np.nan, 1.0]])
    y = np.array([1.0, 2.0, 0.0, 3.0])
    model = KalproxRegressor(missing="impute", penalty="ridge").fit(X, y)
    filled = np.array([[1.0, 2.0], [3.0, 3.0], [5.0, 6.0], [3.0, 1.0]])
    np.testing.assert_allclose(model.coef_, KalproxRegressor(penalty="ridge").fit(filled, y).coef_, rtol=1e-10)
    assert model.n_rows_with_gaps_ == 2
    model = KalproxRegressor(missing="impute", penalty="ridge").partial_fit(filled[:3], y[:3]).partial_fit(X[3:], y[3:])
    np.testing.assert_allclose(model.coef_, KalproxRegressor(penalty="ridge").fit(filled, y).coef_, rtol=1e-10)


def test_the_std_of_a_row_with_gaps_is_that_of_noise_leverage_and_what_is_open():
    X, _, y = _data(0, 2000)
    model = KalproxRegressor(penalty=None, missing="marginalize").fit(X, y)
    row = np.array([[np.nan, 1.0, np.nan]])
    mean, std = model.predict(row, return_std=True)
    S, m = np.cov(X.T, bias=True), X.mean(axis=0)
    off = ~np.eye(3, dtype=bool)
    S[off] *= 2000 / 2005  # as if 5 more rows had no correlations
    u, B = [0, 2], S[[0, 2], 1] / S[1, 1]
    x = np.array([[m[0] + B[0] * (1 - m[1]), 1.0, m[2] + B[1] * (1 - m[1])]])
    C = S[np.ix_(u, u)] - np.outer(B, S[u, 1])
    _, known = model.predict(x, return_std=True)
    np.testing.assert_allclose(mean, model.predict(x), rtol=1e-10)
    np.testing.assert_allclose(std**2, known**2 + model.coef_[u] @ C @ model.coef_[u], rtol=1e-9)
    _, alone = model.predict(row, return_std=True, sigma=0)
    np.testing.assert_allclose(alone**2 + model.noise_var_, std**2, rtol=1e-9)
    np.testing.assert_allclose(model.predict(np.repeat(row, 3, axis=0), return_std=True)[1], std[0], rtol=1e-9)
    low, high = model.predict_interval(row)
    assert high - low > 3.9 * known


@pytest.mark.parametrize("how", HOW)
def test_prequential_predictions_are_issued_before_the_row(how):
    _, Z, y = _data(1, 600)
    mean, std = KalproxRegressor(penalty=None, missing=how).prequential(Z, y)
    other = y.copy()
    other[300:] += 100
    again, _ = KalproxRegressor(penalty=None, missing=how).prequential(Z, other)
    np.testing.assert_array_equal(mean[:300], again[:300])
    assert np.isfinite(std[10:]).all()
    if how == "marginalize":
        inside = (np.abs(y - mean) < 1.96 * std)[50:].sum()
        low, high = binom.ppf([1e-4, 1 - 1e-4], 550, 0.95)
        assert low - 5 <= inside <= high


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("more", [{}, {"coef_cov": "robust"}, {"noise": "inputs"}, {"forget": 0.999}])
def test_a_column_whose_first_value_comes_late(how, more):
    """Rows that were learned before have its mean, as if it had been known, and not a zero far from all values."""
    X, _, y = _data(2, 600, 0)
    Z = X + [0, 0, 1000.0]
    Z[:200, 2] = np.nan
    more = {} if how == "marginalize" and "noise" in more else more  # which is refused
    model = KalproxRegressor(penalty=None, missing=how, **more)
    for i in range(0, 600, 10):
        model.partial_fit(Z[i : i + 10], y[i : i + 10])
    assert abs(model.coef_[2] - 0.5) < 5 * model.coef_std_[2] < 2


@pytest.mark.parametrize("how", HOW)
def test_a_column_that_is_always_missing_is_named(how):
    _, Z, y = _data(0)
    Z[:, 1] = np.nan
    with pytest.warns(RuntimeWarning, match="'x1' had no value in any row"):
        model = KalproxRegressor(missing=how, penalty="ridge").fit(Z, y)
    assert model.coef_[1] == 0
    without = KalproxRegressor(missing=how, penalty="ridge").fit(
        Z[:, [0, 2]], y
    )  # correlations are shrunk by one row less
    np.testing.assert_allclose(model.predict(Z[:5]), without.predict(Z[:5, [0, 2]]), rtol=0.01)


@pytest.mark.parametrize("how", HOW)
def test_rows_one_by_one_begin_with_gaps(how):
    _, Z, y = _data(3, 150)
    Z[0], Z[7] = np.nan, np.nan
    model = KalproxRegressor(missing=how, penalty="ridge")
    for i in range(150):
        model.partial_fit(Z[i : i + 1], y[i : i + 1])
    assert model.n_rows_seen_ == 150 and model.n_rows_with_gaps_ == np.isnan(Z).any(axis=1).sum()
    mean, std = model.predict(np.full((1, 3), np.nan), return_std=True)
    assert abs(mean[0] - y.mean()) < 1 and std[0] > 1


def test_sorted_rows():
    _, Z, y = _data(4, 800)
    order = np.argsort(np.nan_to_num(Z[:, 0], nan=5.0))
    model = KalproxRegressor(penalty=None, missing="marginalize").fit(Z[order], y[order])
    assert (np.abs(model.coef_ - COEF) < 4 * model.coef_std_).all()


@pytest.mark.parametrize("how", HOW)
def test_saved_models_go_on(how, tmp_path):
    _, Z, y = _data(5)
    model = (
        KalproxRegressor(missing=how, penalty="ridge").partial_fit(Z[:100], y[:100]).partial_fit(Z[100:130], y[100:130])
    )
    model.save(tmp_path / "model")
    other = KalproxRegressor.load(tmp_path / "model")
    assert other.missing == how and other.n_rows_with_gaps_ == model.n_rows_with_gaps_
    for one in (model, other):
        one.partial_fit(Z[130:], y[130:])
    np.testing.assert_array_equal(model.coef_, other.coef_)
    np.testing.assert_array_equal(model.predict(Z[:9], return_std=True), other.predict(Z[:9], return_std=True))


@pytest.mark.parametrize("how", HOW)
def test_merged_models(how):
    _, Z, y = _data(6)
    one, two = (KalproxRegressor(penalty=None, missing=how).fit(Z[i::2], y[i::2]) for i in (0, 1))
    whole = KalproxRegressor(penalty=None, missing=how).fit(Z, y)
    one.merge(two)
    assert one.n_rows_with_gaps_ == whole.n_rows_with_gaps_
    np.testing.assert_allclose(one.coef_, whole.coef_, atol=whole.coef_std_.max())


def test_a_model_of_complete_rows_predicts_rows_with_gaps():
    X, Z, y = _data(0)
    model = KalproxRegressor(penalty="ridge").fit(X, y)
    with pytest.raises(ValueError, match="missing='impute'"):
        model.predict(Z[:20])
    mean, std = model.set_params(missing="marginalize").predict(Z[:20], return_std=True)
    expected = KalproxRegressor(missing="marginalize", penalty="ridge").fit(X, y).predict(Z[:20], return_std=True)
    np.testing.assert_allclose((mean, std), expected, rtol=1e-10)


@pytest.mark.parametrize("how", HOW)
def test_infinity_is_an_error(how):
    _, Z, y = _data(0)
    bad = np.where(np.isnan(Z), np.inf, Z)
    with pytest.raises(ValueError, match="NaN or infinity") as error:
        KalproxRegressor(missing=how, penalty="ridge").fit(bad, y)
    assert "missing=" not in str(error.value)
    with pytest.raises(ValueError, match="NaN or infinity"):
        KalproxRegressor(missing=how, penalty="ridge").fit(Z, y).predict(bad[:5])


@pytest.mark.parametrize("how", HOW)
def test_frames_with_objects_and_nullable_numbers(how):
    pd = pytest.importorskip("pandas")
    _, Z, y = _data(0, 50)
    expected = KalproxRegressor(missing=how, penalty="ridge").fit(Z, y).predict(Z[:5])
    frame = pd.DataFrame(Z, columns=list("abc"))
    for X in (frame, frame.astype(object).where(frame.notna(), pd.NA), frame.astype(object).where(frame.notna(), None)):
        np.testing.assert_allclose(
            KalproxRegressor(missing=how, penalty="ridge").fit(X, y).predict(X[:5]), expected, rtol=1e-10
        )
    nullable = frame.convert_dtypes()
    np.testing.assert_allclose(
        KalproxRegressor(missing=how, penalty="ridge").fit(nullable, y).predict(nullable[:5]), expected
    )
    lists = [[None if np.isnan(x) else x for x in row] for row in Z.tolist()]
    np.testing.assert_allclose(
        KalproxRegressor(missing=how, penalty="ridge").fit(lists, y).predict(lists[:5]), expected
    )


def test_what_is_refused_says_what_to_do():
    _, Z, y = _data(0)
    with pytest.raises(ValueError, match="missing must be one of raise, drop, impute, marginalize"):
        KalproxRegressor(missing="mean").fit(Z, y)
    with pytest.raises(ValueError, match=r"or missing='impute'.*one model per target"):
        KalproxRegressor(missing="marginalize", penalty="ridge").fit(Z, np.column_stack([y, y]))
    assert KalproxRegressor(missing="impute", penalty="ridge").fit(Z, np.column_stack([y, y])).coef_.shape == (2, 3)
    for settings in (
        {"likelihood": "poisson"},
        {"link": "exp"},
        {"noise": "inputs"},
    ):
        with pytest.raises(ValueError, match=r"[uU]se .*missing='impute'"):
            KalproxRegressor(missing="marginalize", **({"penalty": "ridge"} | settings)).fit(Z, y)
    with pytest.raises(ValueError, match="A sparse X needs"):
        KalproxRegressor(missing="impute", penalty="ridge").fit(scipy.sparse.csr_matrix(np.nan_to_num(Z)), y)
    with pytest.raises(ValueError, match="Leave engine out"):
        KalproxRegressor(missing="impute", engine="local", penalty="ridge").fit(np.nan_to_num(Z), y)
    with pytest.raises(ValueError, match=r"Use fit\."):
        KalproxRegressor(missing="impute", penalty="ridge").fit(Z, y).set_params(missing="marginalize").partial_fit(
            Z, y
        )
    with pytest.raises(ValueError, match="Nothing can stand for column"):
        KalproxClassifier(missing="impute").partial_fit([[np.nan, 1.0]], [0], classes=[0, 1])


@pytest.mark.parametrize("how", HOW)
def test_classes(how):
    X, Z, y = _data(0, 1500)
    labels = y + np.random.default_rng(0).logistic(size=1500) > y.mean()
    known = KalproxClassifier().fit(X, labels)
    model = KalproxClassifier(missing=how).fit(Z, labels)
    if how == "marginalize":  # means in place of correlated features may turn the sign of a coefficient
        np.testing.assert_allclose(model.coef_, known.coef_, rtol=0.3)
        proba, std = model.predict_proba(np.full((1, 3), np.nan), return_std=True)
        assert 0.4 < proba[0, 0] < 0.6 and std[0, 0] > 0.2
    proba = model.predict_proba(Z)
    np.testing.assert_allclose(model.decision_function(Z), np.log(proba[:, 1] / proba[:, 0]), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(np.vstack([model.predict_proba(Z[i : i + 1]) for i in range(5)]), proba[:5], rtol=1e-6)
    # Probabilities are calibrated: of the rows, in ten groups by probability, as many are positive as they say.
    for part in np.array_split(np.argsort(proba[:, 1]), 10) if how == "marginalize" else ():
        p = proba[part, 1]
        assert abs((labels[part] - p).sum()) < 4 * np.sqrt((p * (1 - p)).sum())
    stream = KalproxClassifier(missing=how)
    for i in range(0, 1500, 100):
        stream.partial_fit(Z[i : i + 100], labels[i : i + 100], classes=[False, True])
    np.testing.assert_allclose(stream.coef_, model.coef_, rtol=0.35)
    several = KalproxClassifier(missing=how).fit(Z, np.digitize(y, np.quantile(y, [0.3, 0.7])))
    np.testing.assert_allclose(several.predict_proba(Z[:50]).sum(axis=1), 1)


@pytest.mark.parametrize("how", HOW)
def test_tags_and_checks_of_scikit_learn(how):
    assert KalproxRegressor(missing=how, penalty="ridge").__sklearn_tags__().input_tags.allow_nan
    assert KalproxClassifier(missing=how).__sklearn_tags__().input_tags.allow_nan
    assert not KalproxRegressor(penalty="ridge").__sklearn_tags__().input_tags.allow_nan


@pytest.mark.slow
@pytest.mark.parametrize(
    "estimator",
    [KalproxRegressor(missing="impute", penalty="ridge"), KalproxRegressor(missing="marginalize", penalty="ridge")],
)
def test_checks_of_scikit_learn(estimator):
    check_estimator(estimator)
