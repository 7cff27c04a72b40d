"""Laws of models whose answer is a formula, sums of squares with a penalty: each holds to rounding."""

import itertools

import numpy as np
import pytest
from scenarios import COEF, LEVELS, Rows, Scenario, readings
from scipy import stats
from truth import design, shape, share_of_rows, weights

from kalprox import KalproxClassifier, KalproxRegressor
from kalprox.forgetting import ByTime, Window

pytestmark = pytest.mark.filterwarnings("ignore")
PENALTIES = [name for name in LEVELS["penalty"] if name != "l1 auto"]  # that one has blocks of rows in their order
VARIANTS = [
    {},
    {"intercept": "no"},
    {"standardize": "yes"},
    {"noise": "given"},
    {"weights": "frequency"},
    {"weights": "precision"},
    {"target": "two numbers"},
]
QUICK = ("ridge", "ridge auto")  # other penalties have searches; one case of each is quick


def _case(penalty, more):
    scenario = Scenario({"penalty": penalty} | more)
    return pytest.param(scenario, marks=() if penalty in QUICK or not more else pytest.mark.slow, id=str(scenario))


scenarios = pytest.mark.parametrize("scenario", [_case(*one) for one in itertools.product(PENALTIES, VARIANTS)])


def assert_close(ours, theirs, *, but=()):
    assert ours.keys() == theirs.keys()
    for name in theirs:
        if name not in but:
            np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-8, atol=1e-9, err_msg=name)


@scenarios
def test_the_order_of_rows_does_not_matter(scenario):
    rows = scenario.rows()
    shuffled = rows[np.random.default_rng(1).permutation(len(rows))]
    assert_close(readings(scenario.fit(shuffled), rows), readings(scenario.fit(rows), rows))


@scenarios
def test_the_order_of_merges_does_not_matter_and_every_row_counts_once(scenario):
    rows = scenario.rows()
    whole = readings(scenario.fit(rows), rows)
    first, second, third = rows[:50], rows[50:110], rows[110:]
    one_by_one = scenario.fit(third).merge(scenario.fit(first)).merge(scenario.fit(second))
    assert_close(readings(one_by_one, rows), whole)
    nested = scenario.fit(first).merge(scenario.fit(third).merge(scenario.fit(second)))
    assert_close(readings(nested, rows), whole)


def test_the_same_rows_are_not_merged_twice():
    rows = Scenario({}).rows()
    model, other = (
        KalproxRegressor(penalty="ridge").fit(rows.X, rows.y),
        KalproxRegressor(penalty="ridge").fit(rows.X, rows.y),
    )
    with pytest.raises(ValueError, match="same rows"):
        model.merge(other)
    assert model.n_rows_seen_ == len(rows)


@scenarios
def test_a_constant_added_to_the_target_moves_the_intercept_alone(scenario):
    if scenario.label("intercept") == "no":
        pytest.skip("there is no intercept")
    rows = scenario.rows()
    before, after = scenario.fit(rows), scenario.model().fit(rows.X, rows.y + 100, **rows.about)
    np.testing.assert_allclose(after.intercept_, before.intercept_ + 100, rtol=1e-9)
    for name in ("coef_", "coef_std_", "intercept_std_", "noise_var_"):
        np.testing.assert_allclose(getattr(after, name), getattr(before, name), rtol=1e-6, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("penalty", ["none", "ridge", "ridge auto", "group"])
@pytest.mark.parametrize("intercept", ["yes", "no"])
def test_the_unit_of_the_target_is_that_of_the_coefficients(penalty, intercept):
    """All terms of the sum are squares of it with a ridge; a norm, of degree one, needs its alpha in this unit too."""
    scenario = Scenario({"penalty": penalty, "intercept": intercept})
    rows = scenario.rows()
    more = {"alpha": 30.0} if penalty == "group" else {}
    ours, theirs = scenario.model(**more).fit(rows.X, 10 * rows.y), scenario.fit(rows)
    np.testing.assert_allclose(ours.coef_, 10 * theirs.coef_, rtol=1e-6)
    np.testing.assert_allclose(ours.coef_std_, 10 * theirs.coef_std_, rtol=1e-6)
    np.testing.assert_allclose(ours.noise_var_, 100 * theirs.noise_var_, rtol=1e-6)


@pytest.mark.parametrize("penalty", [name for name in PENALTIES if name != "box"])
@pytest.mark.parametrize("target", ["number", "count", "two classes"])
def test_the_units_of_standardised_columns_do_not_matter(target, penalty):
    if target != "number" and penalty == "ridge auto":
        pytest.skip("alpha is found by a search that ends within a thousandth")
    scenario = Scenario({"penalty": penalty, "standardize": "yes", "target": target})
    rows, unit = scenario.rows(), np.array([1000.0, 0.01, 1.0])
    ours, theirs = scenario.model().fit(rows.X * unit, rows.y), scenario.fit(rows)
    np.testing.assert_allclose(np.ravel(ours.coef_) * unit, np.ravel(theirs.coef_), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, rtol=1e-6)
    np.testing.assert_allclose(np.ravel(ours.coef_std_) * unit, np.ravel(theirs.coef_std_), rtol=1e-6)


# ---- intervals and predictions ---------------------------------------------------------------------------


@pytest.mark.parametrize("penalty", ["none", "ridge", "ridge auto", "smooth l1"])
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_intervals_are_those_of_student_with_the_stated_errors(penalty, variant):
    scenario = Scenario({"penalty": penalty} | variant)
    rows = scenario.rows()
    model, new = scenario.fit(rows), rows.X[:4] + 1
    freedom = np.inf if scenario.label("noise") == "given" else model.noise_dof_
    mean, std = model.predict(new, return_std=True)
    for level in (0.5, 0.9, 0.95):
        factor = stats.t.ppf((1 + level) / 2, np.reshape(freedom, (-1, 1)))
        low, high = model.coef_interval(level)
        for end, sign in ((low, -1), (high, 1)):
            expected = model.coef_ + sign * (factor * model.coef_std_).reshape(end.shape)
            np.testing.assert_allclose(end, expected, rtol=1e-8)
        low, high = model.predict_interval(new, level)
        for end, sign in ((low, -1), (high, 1)):
            np.testing.assert_allclose(end, mean + sign * (factor.T * std).reshape(end.shape), rtol=1e-8)


@pytest.mark.parametrize("level", [0.5, 0.9])
def test_intervals_of_counts_are_quantiles_if_their_mean_is_known(level):
    rng = np.random.default_rng(8)
    X = rng.integers(0, 2, size=(4000, 1)).astype(float)
    model = KalproxRegressor(likelihood="poisson").fit(X, rng.poisson(20 + 20 * X[:, 0]))
    low, high = model.predict_interval([[0.0], [1.0]], level)
    mean = model.predict([[0.0], [1.0]])
    np.testing.assert_allclose(low, stats.poisson.ppf((1 - level) / 2, mean), atol=1)
    np.testing.assert_allclose(high, stats.poisson.ppf((1 + level) / 2, mean), atol=1)


@pytest.mark.parametrize("penalty", ["none", "ridge"])
@pytest.mark.parametrize(
    "variant",
    [
        {},
        {"intercept": "no"},
        {"noise": "given"},
        {"weights": "frequency"},
        {"weights": "precision"},
        {"forget": "by row"},
        {"forget": "window"},
        {"forget": "by time"},
    ],
    ids=str,
)
def test_a_prediction_has_the_variance_of_its_noise_and_of_its_coefficients(penalty, variant):
    scenario = Scenario({"penalty": penalty} | variant)
    rows = scenario.rows(seed=4)
    model, new = scenario.fit(rows), rows.X[:4] + 1
    A = design(scenario.labels, new)
    leverage = np.einsum("ni,ij,nj->n", A, shape(scenario.labels, rows.X, rows.about), A)
    mean, std = model.predict(new, return_std=True)
    np.testing.assert_allclose(mean, new @ model.coef_ + model.intercept_, rtol=1e-9)
    np.testing.assert_allclose(std, np.sqrt(model.noise_var_ * (1 + leverage)), rtol=1e-8)
    np.testing.assert_allclose(model.predict(new, return_std=True, sigma=0)[1] ** 2, model.noise_var_ * leverage)
    np.testing.assert_allclose(model.predict(new, return_std=True, sigma=3)[1] ** 2, model.noise_var_ * (9 + leverage))


@pytest.mark.parametrize("variant", [{"forget": "by row"}, {"forget": "by time"}, {"forget": "window"}], ids=str)
@pytest.mark.parametrize("penalty", ["none", "ridge"])
def test_standard_errors_of_rows_that_fade_are_those_of_their_weights(penalty, variant):
    scenario = Scenario({"penalty": penalty} | variant)
    rows = scenario.rows(seed=5)
    model = scenario.fit(rows)
    w = weights(scenario.labels, rows.about, len(rows))
    if penalty == "none":
        worth = w.sum() / share_of_rows(scenario.labels, len(rows))
        squares = w @ (rows.y - rows.X @ model.coef_ - model.intercept_) ** 2
        np.testing.assert_allclose(model.noise_dof_, worth - 4, rtol=1e-9)
        np.testing.assert_allclose(model.noise_var_, squares / w.sum() * worth / (worth - 4), rtol=1e-9)
    errors = np.sqrt(model.noise_var_ * np.diag(shape(scenario.labels, rows.X, rows.about)))
    np.testing.assert_allclose(model.coef_std_, errors[1:], rtol=1e-8)
    np.testing.assert_allclose(model.intercept_std_, errors[0], rtol=1e-8)


# ---- forgetting, offsets, late rows ----------------------------------------------------------------------


@pytest.mark.parametrize("penalty", ["none", "ridge", "l1"])
def test_forgetting_that_forgets_nothing_is_none(penalty):
    scenario = Scenario({"penalty": penalty})
    rows = scenario.rows()
    plain = readings(scenario.fit(rows), rows)
    assert_close(readings(scenario.fit(rows, forget=1.0), rows), plain)
    assert_close(readings(scenario.fit(rows, forget=Window(len(rows))), rows), plain)
    at_once = scenario.model(forget=ByTime(3.0)).fit(rows.X, rows.y, times=np.full(len(rows), 7.0))
    assert_close(readings(at_once, rows), plain)


@pytest.mark.slow
@pytest.mark.parametrize("penalty", ["none", "ridge", "l1"])
def test_a_window_is_a_fit_of_its_rows(penalty):
    windowed, plain = Scenario({"penalty": penalty, "forget": "window"}), Scenario({"penalty": penalty})
    rows = plain.rows()
    for size in (1, 7, 160):
        found = windowed.partial_fit(rows, size)
        assert_close(readings(found, rows), readings(plain.fit(rows[-60:]), rows), but=("rows",))


def test_time_fades_as_rows_do_that_come_one_a_unit():
    rows = Scenario({}).rows()
    by_row = KalproxRegressor(forget=0.5 ** (1 / 40), penalty="ridge").fit(rows.X, rows.y)
    by_time = KalproxRegressor(forget=ByTime(40.0), penalty="ridge").fit(rows.X, rows.y, times=np.arange(len(rows)))
    assert_close(readings(by_time, rows), readings(by_row, rows))


def test_what_is_known_fades_until_the_time_of_a_prediction():
    rows = Scenario({}).rows()
    model = KalproxRegressor(penalty=None, noise=0.5, forget=ByTime(40.0))
    model.fit(rows.X, rows.y, times=np.arange(len(rows)))
    now = model.predict(rows.X[:3], return_std=True, sigma=0)[1]
    later = model.predict(rows.X[:3], return_std=True, sigma=0, time=159.0 + 80.0)[1]
    np.testing.assert_allclose(later**2, 4 * now**2, rtol=1e-9)


@pytest.mark.parametrize("target", ["count", "dispersed count", "negative binomial", "huber", "two classes"])
def test_a_constant_offset_is_taken_from_the_intercept(target):
    scenario = Scenario({"target": target})
    rows = scenario.rows()
    plain, shifted = scenario.fit(rows), scenario.model().fit(rows.X, rows.y, offset=np.full(len(rows), 0.7))
    np.testing.assert_allclose(shifted.intercept_, plain.intercept_ - 0.7, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(shifted.coef_, plain.coef_, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(shifted.coef_std_, plain.coef_std_, rtol=1e-4)


@pytest.mark.parametrize("way", ["fit", "partial_fit"])
def test_an_exposure_is_an_offset_of_its_logarithm(way):
    scenario = Scenario({"target": "count", "offset": "yes"})
    rows = scenario.rows()
    ours = getattr(scenario.model(), way)(rows.X, rows.y, exposure=np.exp(rows.about["offset"]))
    theirs = getattr(scenario.model(), way)(rows.X, rows.y, offset=rows.about["offset"])
    assert_close(readings(ours, rows), readings(theirs, rows))


def test_an_offset_of_a_new_row_multiplies_its_count():
    scenario = Scenario({"target": "count", "offset": "yes"})
    rows = scenario.rows()
    model, none = scenario.fit(rows), np.zeros(4)
    ours, theirs = model.predict(rows.X[:4], offset=none + 0.5), model.predict(rows.X[:4], offset=none)
    np.testing.assert_allclose(ours, np.exp(0.5) * theirs, rtol=1e-9)


@pytest.mark.parametrize("forget", [1.0, 0.97])
def test_a_row_whose_target_comes_late_is_learned_when_it_comes(forget):
    rows = Scenario({}).rows()
    y, late = rows.y.copy(), np.arange(len(rows)) % 5 == 2
    y[late] = np.nan
    model = KalproxRegressor(forget=forget, missing="drop", penalty="ridge")
    model.partial_fit(rows.X, y, keys=np.arange(len(rows)))
    assert (model.n_rows_seen_, model.n_rows_pending_) == (len(rows) - late.sum(), late.sum())
    model.learn_late(np.flatnonzero(late), rows.y[late])
    order = np.concatenate([np.flatnonzero(~late), np.flatnonzero(late)])
    assert_close(
        readings(model, rows),
        readings(KalproxRegressor(forget=forget, penalty="ridge").fit(rows.X[order], rows.y[order]), rows),
    )


def test_a_target_that_never_comes_is_a_row_that_was_not_there():
    rows = Scenario({"late targets": "yes"}).rows()
    known = np.isfinite(rows.y)
    skipping = KalproxRegressor(missing="drop", penalty="ridge")
    assert_close(
        readings(skipping.fit(rows.X, rows.y), rows),
        readings(KalproxRegressor(penalty="ridge").fit(rows.X[known], rows.y[known]), rows),
    )
    assert skipping.n_rows_unlabelled_ == (~known).sum()


def test_a_row_that_is_skipped_is_a_row_that_was_not_there():
    rows = Scenario({}).rows()
    X = rows.X.copy()
    X[[3, 80], 1] = np.nan
    model = KalproxRegressor(missing="drop", penalty="ridge").fit(X, rows.y)
    kept = np.delete(np.arange(len(rows)), [3, 80])
    assert_close(
        readings(model, rows), readings(KalproxRegressor(penalty="ridge").fit(rows.X[kept], rows.y[kept]), rows)
    )
    assert model.n_rows_rejected_ == 2


# ---- classes, paths and refinement -----------------------------------------------------------------------


def test_the_names_of_two_classes_do_not_matter_but_for_their_order():
    rows = Scenario({"target": "two classes"}).rows()
    ours = KalproxClassifier().fit(rows.X, np.array(["yes", "no"])[rows.y])  # sorted, no comes first: it was 1
    theirs = KalproxClassifier().fit(rows.X, rows.y)
    assert list(ours.classes_) == ["no", "yes"]
    np.testing.assert_allclose(ours.coef_, -theirs.coef_, rtol=1e-6)
    np.testing.assert_allclose(ours.predict_proba(rows.X), theirs.predict_proba(rows.X)[:, ::-1], rtol=1e-6)


@pytest.mark.parametrize("target", ["two classes", "three classes"])
def test_probabilities_sum_to_one_and_the_largest_is_predicted(target):
    scenario = Scenario({"target": target})
    rows = scenario.rows()
    model = scenario.fit(rows)
    p = model.predict_proba(rows.X)
    np.testing.assert_allclose(p.sum(axis=1), 1, rtol=1e-12)
    np.testing.assert_array_equal(model.predict(rows.X), model.classes_[p.argmax(axis=1)])
    np.testing.assert_allclose(model.predict_log_proba(rows.X), np.log(p), rtol=1e-9)
    assert model.score(rows.X, rows.y) == np.mean(model.predict(rows.X) == rows.y)


@pytest.mark.parametrize("penalty", ["ridge", "l1", "elasticnet"])
def test_a_path_has_the_fits_of_its_alphas(penalty):
    scenario = Scenario({"penalty": penalty})
    rows = scenario.rows()
    path = scenario.fit(rows).path(alphas=[0.5, 7.0])
    for alpha, coef, intercept in zip(path.alphas, path.coef, path.intercept, strict=True):
        fitted = scenario.model(alpha=float(alpha)).fit(rows.X, rows.y)
        np.testing.assert_allclose(coef, fitted.coef_, rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(intercept, fitted.intercept_, rtol=1e-7)


@pytest.mark.parametrize("target", ["count", "two classes", "student"])
def test_a_refined_stream_is_a_fit(target):
    scenario = Scenario({"target": target})
    rows = scenario.rows()
    refined = scenario.partial_fit(rows, 40).refine(rows.X, rows.y, **rows.about)
    ours, theirs = readings(refined, rows), readings(scenario.fit(rows), rows)
    for name in theirs:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-5, atol=1e-7, err_msg=name)


def test_draws_have_the_stated_mean_and_covariance():
    rows = Scenario({}).rows()
    model = KalproxRegressor(noise=0.5, penalty="ridge").fit(rows.X, rows.y)
    draws = model.sample(20_000, random_state=0)
    coef = draws[0] if isinstance(draws, tuple) else draws
    coef = coef[:, -len(COEF) :]
    np.testing.assert_allclose(coef.mean(axis=0), model.coef_, atol=5 * model.coef_std_.max() / 20_000**0.5)
    np.testing.assert_allclose(coef.std(axis=0), model.coef_std_, rtol=5 / 40_000**0.5)


# ---- what was predicted, and the score -------------------------------------------------------------------


@pytest.mark.parametrize(
    "labels",
    [
        {},
        {"noise": "given"},
        {"penalty": "none"},
        {"penalty": "l1"},
        {"intercept": "no"},
        {"forget": "by row"},
        {"forget": "window"},
        {"weights": "precision"},
        {"target": "two numbers"},
    ],
    ids=str,
)
def test_log_densities_of_rows_before_they_were_learned_sum_to_the_score(labels):
    scenario = Scenario(labels)
    rows = scenario.rows(n=40)
    model, judged, log_score, squares = scenario.model(), 0, 0.0, 0.0
    for i in range(len(rows)):
        row = rows[i : i + 1]
        weight = row.about.get("sample_weight", np.ones(1))
        if i:
            mean, std = model.predict(row.X, return_std=True, sigma=1 / np.sqrt(weight))
            if np.isfinite(std).all():
                freedom = np.inf if scenario.label("noise") == "given" else model.noise_dof_
                log_score += np.sum(stats.t.logpdf((row.y - mean) / std, freedom) - np.log(std))
                squares += np.sum((row.y - mean) ** 2)
                judged += row.y.size
        model.partial_fit(row.X, row.y, **row.about)
    score = model.diagnostics_
    assert float(score.rows) == judged
    np.testing.assert_allclose(float(score.log_score), log_score, rtol=1e-9)
    np.testing.assert_allclose(float(score.rmse), np.sqrt(squares / judged), rtol=1e-9)
    at_once = scenario.model()
    mean, _ = at_once.prequential(rows.X, rows.y, **rows.about)
    np.testing.assert_allclose(float(at_once.diagnostics_.log_score), log_score, rtol=1e-9)
    assert float(at_once.diagnostics_.rows) == judged


@pytest.mark.parametrize("variant", [{}, {"offset": "yes"}, {"weights": "frequency"}], ids=str)
@pytest.mark.parametrize("target", ["two classes", "three classes"])
def test_log_probabilities_of_classes_sum_to_the_score(target, variant):
    if target == "three classes" and "offset" in variant:
        pytest.skip("offsets are for two classes")
    scenario = Scenario({"target": target} | variant)
    rows = scenario.rows(n=40)
    weights = rows.about.get("sample_weight", np.ones(len(rows)))
    model, p = scenario.prequential(rows)
    said = np.log(p[np.arange(len(rows)), rows.y])
    known = np.isfinite(said)
    score = model.diagnostics_
    assert float(score.rows) == weights[known].sum()
    np.testing.assert_allclose(float(score.log_score), weights[known] @ said[known], rtol=1e-9)
    np.testing.assert_allclose(float(score.log_loss), -np.average(said[known], weights=weights[known]), rtol=1e-9)


def test_coverage_counts_the_rows_inside_their_intervals():
    rows = Scenario({}).rows()
    model = KalproxRegressor(noise=0.5, penalty="ridge")
    mean, std = model.prequential(rows.X, rows.y)
    judged = np.isfinite(std)
    u = np.abs(rows.y - mean)[judged] / std[judged]
    score = model.diagnostics_
    for level, inside in zip((0.5, 0.8, 0.95), score.coverage, strict=True):
        assert inside == pytest.approx(np.mean(u <= stats.norm.ppf((1 + level) / 2)), abs=1e-12)
    assert float(score.nis) == pytest.approx(np.mean(u**2), rel=1e-9)
    assert float(score.bias) == pytest.approx(np.mean((rows.y - mean)[judged]), rel=1e-9)


@pytest.mark.parametrize("target", ["number", "count", "dispersed count", "huber", "two classes", "three classes"])
def test_the_score_is_that_of_predictions_and_not_of_the_fit(target):
    """Targets that no column says anything about are fitted better than they are, and predicted worse."""
    rng = np.random.default_rng(9)
    scenario, X = Scenario({"target": target}), rng.normal(size=(600, 12))
    y = {"number": rng.normal(size=600), "huber": rng.normal(size=600)}.get(target, rng.poisson(5, 600))
    y = rng.integers(0, scenario.classes, 600) if scenario.classes else y.astype(float)
    model = scenario.partial_fit(Rows(X, y), 25, alpha=0.1)
    score = model.diagnostics_
    judged = int(score.rows)
    assert judged > 80  # the others are those of a warm-up
    if scenario.classes:
        fitted = -np.mean(model.predict_log_proba(X)[np.arange(600), y])
        assert fitted < np.log(scenario.classes) < float(score.log_loss)
    else:
        fitted = np.sqrt(np.mean((y - model.predict(X)) ** 2))
        assert fitted < y.std() and y[-judged:].std() < float(score.rmse)
