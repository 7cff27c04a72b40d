"""The calibration of classes: scores of scikit-learn, blocks and merging, verdicts over many streams, and plots."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest
from scipy import special, stats
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss, roc_auc_score

from kalprox.calibration import FALSE_ALARMS, CategoryCalibration, ClassCalibration
from kalprox.predictive import Categories, Classes, Counts


def stated(kind, n, rng):
    """Probabilities of yes."""
    center, spread = {
        "half": (0.0, 1.5),
        "rare": (-4.6, 0.7),
        "constant": (-4.6, 0.0),
        "extreme": (0.0, 5.0),
        "narrow": (-1.0, 0.1),
    }[kind]
    return special.expit(center + spread * rng.normal(size=n))


def several(n, rng, classes=4, sharp=1.5):
    p = special.softmax(sharp * rng.normal(size=(n, classes)), axis=1)
    return p, np.eye(classes)[(rng.random((n, 1)) > p.cumsum(axis=1)).sum(axis=1).clip(0, classes - 1)]


def fields(score):
    apart = (
        "not_judged",
        "changes",
        "missingness",
        "targets",
        "pull",
        "of_class",
        "shared",
        "segment_shared",
        "predictive",
    )
    names = [f.name for f in dataclasses.fields(score) if f.name not in apart]
    names += ["by_class"] if hasattr(score, "by_class") else []
    return {name: np.asarray(getattr(score, name)) for name in names}


def same(a, b, rtol=1e-12, leave=()):
    for name, one in fields(a).items():
        if name not in leave:
            np.testing.assert_allclose(one, fields(b)[name], rtol=rtol, atol=rtol * float(a.rows), err_msg=name)


@pytest.mark.parametrize("kind", ["half", "rare", "extreme", "narrow"])
def test_scores_are_those_of_scikit_learn(kind):
    rng = np.random.default_rng(0)
    p = stated(kind, 20_000, rng)
    y, w = rng.random(p.size) < p, rng.integers(1, 4, size=p.size) + 0.0
    for weights in (None, w):
        score = ClassCalibration().add(Classes(p), y, weights)
        assert float(score.log_loss) == pytest.approx(log_loss(y, p, sample_weight=weights), rel=1e-9)
        assert float(score.brier) == pytest.approx(brier_score_loss(y, p, sample_weight=weights), rel=1e-12)
        assert float(score.accuracy) == pytest.approx(accuracy_score(y, p > 0.5, sample_weight=weights), rel=1e-12)
        assert score.auc == pytest.approx(roc_auc_score(y, p, sample_weight=weights), abs=1e-3)


def test_scores_of_several_classes_are_those_of_scikit_learn():
    rng = np.random.default_rng(1)
    p, y = several(3000, rng)
    score = CategoryCalibration().add(Categories(p), y)
    assert float(score.log_loss) == pytest.approx(log_loss(y, p))
    assert float(score.brier) == pytest.approx(((y - p) ** 2).sum(axis=1).mean())
    assert float(score.accuracy) == pytest.approx((p.argmax(axis=1) == y.argmax(axis=1)).mean())
    assert float(score.bias) == pytest.approx(score.accuracy - p.max(axis=1).mean())
    assert score.verdict().word == "calibrated" and "the most probable class came" in str(score.verdict())


@pytest.mark.slow
def test_blocks_and_merging_do_not_matter():
    rng = np.random.default_rng(2)
    p = stated("half", 3000, rng)
    y = (rng.random(p.size) < p) + 0.0
    y[rng.random(p.size) < 0.05] = 0.3  # shares are not judged, and not numbered
    whole = ClassCalibration().add(Classes(p), y)
    for length in (1, 13, 500):
        parts = ClassCalibration()
        for i in range(0, len(y), length):
            parts = parts.add(Classes(p[i : i + length]), y[i : i + length])
        same(whole, parts)
    halves = [ClassCalibration().add(Classes(p[part]), y[part]) for part in (slice(0, 1600), slice(1600, None))]
    merged = halves[0].merge(halves[1])
    assert merged.verdict().word == "calibrated"
    exact = ("rows", "undetermined", "log_score", "errors", "squared_errors", "outcomes", "stated", "right")
    for name in exact:
        np.testing.assert_allclose(getattr(merged, name), getattr(whole, name), rtol=1e-12, err_msg=name)


def test_merged_streams_of_rare_events_are_not_called_wrong():
    """The scores of rare events are nearly all random: the same numbers in every stream would count eight times."""
    rng, wrong = np.random.default_rng(3), 0
    for _ in range(20):
        total = ClassCalibration()
        for _ in range(8):
            p = stated("rare", 500, rng)
            total = total.merge(ClassCalibration().add(Classes(p), rng.random(500) < p))
        wrong += abs(float(total.nis) - 1) > 4 * (2 / 4000) ** 0.5
    assert wrong == 0


def test_targets_that_are_not_classes_are_not_judged_and_it_is_said():
    score = ClassCalibration().update(np.full(50, 0.4), np.full(50, 0.5), np.full(50, 0.25), weights=np.full(50, 4.0))
    assert score.rows == 0 and score.undetermined == 200 and not np.any(score.outcomes)
    assert "the target is not 0 or 1" in str(score.verdict())
    unknown = ClassCalibration().update(np.full(3, np.nan), np.full(3, np.inf), np.ones(3))
    assert unknown.rows == 0 and unknown.undetermined == 3
    p, y = np.full((4, 3), 1 / 3), np.array([[1.0, 0, 0], [0.5, 0.5, 0], [1, 1, 0], [0, 0, 0]])
    several = CategoryCalibration().add(Categories(p), y)
    assert several.rows == 1 and several.undetermined == 3 and float(several.log_loss) == pytest.approx(np.log(3))


def test_certain_probabilities_that_were_wrong_leave_the_sums_finite():
    score = ClassCalibration().add(Classes(np.array([0.0, 1.0, 0.5])), np.array([1.0, 0.0, 1.0]))
    assert all(np.isfinite(value).all() for value in fields(score).values())
    assert float(score.log_loss) > 400
    sure = ClassCalibration().add(Classes(np.full(60, 1 - 1e-12)), np.arange(60) % 2)
    assert sure.verdict().word == "biased"
    p = np.array([[0.0, 1.0, 0.0]])
    assert np.isfinite(CategoryCalibration().add(Categories(p), np.array([[1.0, 0.0, 0.0]])).log_loss)


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="between 0 and 1; got 40, and 1 such"):
        ClassCalibration().add(Classes(np.array([0.3, 40.0])), np.zeros(2))
    with pytest.raises(TypeError, match="ClassCalibration judges predictions of the type Classes; got Counts"):
        ClassCalibration().add(Counts(np.ones(2), np.ones(2)), np.zeros(2))
    with pytest.raises(ValueError, match=r"the same shape \(b, m\); got \(2, 3\) and \(2,\)"):
        CategoryCalibration().update(np.full((2, 3), 1 / 3), 0.0, np.zeros(2))
    with pytest.raises(ValueError, match="y must be finite"):
        CategoryCalibration().add(Categories(np.full((2, 2), 0.5)), np.array([[1.0, 0.0], [np.nan, 1.0]]))
    one = ClassCalibration().add(Classes(np.full(5, 0.5)), np.ones(5))
    for curve in (one.roc, one.lift):
        with pytest.raises(ValueError, match="need rows of both classes"):
            curve()
    assert math.isnan(one.auc)
    with pytest.raises(ValueError, match="There are no scored rows"):
        ClassCalibration().reliability()
    with pytest.raises(ValueError, match="bins must be at least 1"):
        one.reliability(0)
    with pytest.raises(ValueError, match="number must be given"):
        CategoryCalibration().add(Categories(np.full((2, 2), 0.5)), np.eye(2)).plot(kind="roc")
    with pytest.raises(ValueError, match="kind must be 'reliability', 'roc', 'lift', 'coverage'"):
        one.plot(kind="bars")


def test_curves():
    rng = np.random.default_rng(4)
    p = stated("half", 50_000, rng)
    score = ClassCalibration().add(Classes(p), rng.random(p.size) < p)
    found = score.reliability(bins=8)
    assert found.rows.sum() == p.size and len(found.rows) == 8
    np.testing.assert_allclose(found.observed, found.stated, atol=0.03)
    assert ((found.low < found.stated) & (found.stated < found.high)).sum() >= 6
    exact = stats.binomtest(round(found.observed[0] * found.rows[0]), int(found.rows[0])).proportion_ci(0.95)
    np.testing.assert_allclose([found.low[0], found.high[0]], exact, rtol=1e-9)
    roc, lift = score.roc(), score.lift()
    assert np.trapezoid(roc.true_positive_rate, roc.false_positive_rate) == pytest.approx(score.auc, abs=1e-12)
    assert roc.threshold[0] == np.inf and (np.diff(roc.threshold) < 0).all()
    assert lift.rows[-1] == lift.events[-1] == pytest.approx(1) and lift.lift[0] > 1.5


def learned(share, n, rng):
    """Events that no input tells of, and their share so far, without rows that know its log odds to less than 1."""
    y = rng.random(n) < share
    before = np.arange(n) + 1.0
    p = (np.cumsum(y) - y + 0.5) / before
    known = before * p * (1 - p) > 1
    return p[known], y[known]


def alarms(kind, streams, n, seed):
    rng, wrong = np.random.default_rng(seed), 0
    for _ in range(streams):
        if kind == "several":
            p, y = several(n, rng)
            score = CategoryCalibration().add(Categories(p), y)
        elif kind in LEARNED:
            p, y = learned(LEARNED[kind], n, rng)
            score = ClassCalibration().add(Classes(p), y)
        else:
            p = stated(kind, n, rng)
            score = ClassCalibration().add(Classes(p), rng.random(n) < p)
        wrong += score.verdict().word not in ("calibrated", "too few rows to say")
    return wrong


LEARNED = {"learned": 0.5, "learned, rare": 0.05}
KINDS = ["half", "rare", "constant", "extreme", "narrow", "several", *LEARNED]


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] if kind == "several" else []) for kind in KINDS]
)
def test_right_probabilities_are_rarely_called_wrong(kind):
    assert alarms(kind, 40, 2000, 0) <= stats.binom.ppf(0.999, 40, FALSE_ALARMS)


@pytest.mark.slow
@pytest.mark.parametrize("n", [300, 3000, 20_000])
@pytest.mark.parametrize("kind", KINDS)
def test_false_alarms_are_as_rare_as_they_say(kind, n):
    assert alarms(kind, 400, n, n) <= stats.binom.ppf(0.999, 400, FALSE_ALARMS)


WRONG = {
    "too extreme": (lambda f: 1.5 * f, "over-confident"),
    "not extreme enough": (lambda f: 0.6 * f, "under-confident"),
    "too high": (lambda f: f + 0.5, "biased"),
    "too low": (lambda f: f - 0.5, "biased"),
    "bent": (lambda f: f + 0.4 * np.cos(2.5 * f), "nonlinear"),
}
POWER = 0.87  # that of "bent", which is found 350 times out of 400; the others are found nearly always


@pytest.mark.parametrize("name", WRONG)
def test_wrong_probabilities_are_found(name):
    change, word = WRONG[name]
    rng, found = np.random.default_rng(5), []
    for _ in range(20):
        f = 1.5 * rng.normal(size=3000)
        score = ClassCalibration().add(Classes(special.expit(change(f))), rng.random(f.size) < special.expit(f))
        found.append(score.verdict().word)
    assert found.count(word) >= stats.binom.ppf(0.001, 20, POWER), found


def test_rare_events_that_come_twice_as_often_as_stated_are_found():
    rng, found = np.random.default_rng(6), 0
    for _ in range(20):
        p = stated("rare", 8000, rng)
        found += ClassCalibration().add(Classes(p), rng.random(p.size) < 2 * p).verdict().word == "biased"
    assert found >= 18


def test_several_classes_too_sure_are_over_confident():
    rng = np.random.default_rng(7)
    p, y = several(2000, rng)
    sharp = p**2 / (p**2).sum(axis=1, keepdims=True)
    verdict = CategoryCalibration().add(Categories(sharp), y).verdict()
    assert verdict.word == "over-confident" and "alpha" in verdict.advice and "noise" not in str(verdict)
    flat = p**0.5 / (p**0.5).sum(axis=1, keepdims=True)
    assert CategoryCalibration().add(Categories(flat), y).verdict().word == "under-confident"


def test_drift_and_few_rows():
    rng = np.random.default_rng(8)
    f = rng.normal(size=4000)
    y = rng.random(4000) < special.expit(f + np.linspace(-1, 1, 4000))
    assert ClassCalibration().add(Classes(special.expit(f)), y).verdict().word == "drifting"
    turned = rng.random(4000) < special.expit(1.5 * f * np.linspace(2, 0, 4000))
    assert ClassCalibration().add(Classes(special.expit(1.5 * f)), turned).verdict().word == "drifting"
    few = ClassCalibration().add(Classes(np.full(500, 0.01)), np.arange(500) < 5)
    assert few.verdict().word == "too few rows to say" and "p (1 - p)" in str(few.verdict())


def test_many_rows_do_not_reject_trifles():
    rng = np.random.default_rng(9)
    f = 1.5 * rng.normal(size=400_000)
    y = rng.random(f.size) < special.expit(f)
    for change in (lambda f: 1.04 * f, lambda f: f + 0.05, lambda f: f + 0.08 * np.cos(3 * f)):
        verdict = ClassCalibration().add(Classes(special.expit(change(f))), y).verdict()
        assert verdict.word == "calibrated", str(verdict)
        assert min(check.p_value for check in verdict.checks) < 1e-3


@pytest.mark.slow
def test_jax_gives_the_same_sums():
    rng = np.random.default_rng(10)
    p = stated("half", 300, rng)
    y = (rng.random(p.size) < p) + 0.0
    with jax.enable_x64(True):
        update = jax.jit(lambda c, m, s, y: c.update(m, s, y))
        found = update(ClassCalibration(), *map(jnp.asarray, (p, 0 * p, y)))
        same(ClassCalibration().add(Classes(p), y), found, rtol=1e-9)


def test_plots_and_text():
    rng = np.random.default_rng(11)
    p = stated("half", 2000, rng)
    y = rng.random(p.size) < p
    score = ClassCalibration().add(Classes(p), y)
    sharp = ClassCalibration().add(Classes(special.expit(2 * special.logit(p))), y)
    for kind in ("reliability", "roc", "lift", "coverage", "pit", "stream"):
        ax = sharp.plot(score.plot(kind=kind), kind=kind, label="sharp")
        assert any("sharp" in text for text in ax.get_legend_handles_labels()[1]), kind
        plt.close(ax.figure)
    assert repr(score).startswith("ClassCalibration(2,000 rows: calibrated, log loss 0.5") and "AUC" in repr(score)
    assert repr(ClassCalibration()) == "ClassCalibration(too few rows to say)"
    html = score._repr_html_()
    assert "AUC" in html and "<th" in html and "95% interval" in html
    q, z = several(500, rng)
    categories = CategoryCalibration().add(Categories(q), z)
    assert "AUC" not in repr(categories) and "mean AUC" in categories._repr_html_()
    ax = categories.plot()
    assert ax.get_xlabel() == "stated probability"
    plt.close(ax.figure)


@pytest.mark.slow
def test_the_curves_of_each_of_several_classes_are_those_of_it_against_the_others():
    rng = np.random.default_rng(11)
    p, y = several(3000, rng)
    blocks = [slice(0, 1), slice(1, 1500), slice(1500, 3000)]
    score = CategoryCalibration()
    for rows in blocks:
        score = score.add(Categories(p[rows]), y[rows])
    for c in range(p.shape[1]):
        alone = ClassCalibration().add(Classes(p[:, c]), y[:, c])
        np.testing.assert_allclose(score.auc[c], alone.auc, rtol=1e-12)
        np.testing.assert_allclose(score.auc[c], roc_auc_score(y[:, c], p[:, c]), atol=1e-3)
        for mine, other in ((score.roc(c), alone.roc()), (score.lift(c), alone.lift())):
            for one, two in zip(mine, other, strict=True):
                np.testing.assert_allclose(one, two, rtol=1e-12)
    parts = [CategoryCalibration().add(Categories(p[rows]), y[rows]) for rows in blocks]
    merged = parts[0].merge(parts[1]).merge(parts[2]).merge(CategoryCalibration())
    np.testing.assert_allclose(merged.by_class, score.by_class, rtol=1e-12)
    on_jax = CategoryCalibration().add(Categories(jnp.asarray(p)), jnp.asarray(y))
    np.testing.assert_allclose(on_jax.by_class, score.by_class, rtol=1e-4, atol=1e-3)


def test_rows_that_are_not_judged_are_in_no_curve():
    rng = np.random.default_rng(12)
    p, y = several(200, rng)
    p[0], y[1] = np.nan, 1.0
    weights = np.ones(200)
    weights[2], weights[3] = 0.0, 2.0
    score = CategoryCalibration().add(Categories(p), y, weights)
    assert score.by_class[:, :2].sum(axis=(1, 2)).tolist() == [198.0] * p.shape[1]
    with pytest.raises(ValueError, match="number must be that of a class, 0 to 3; got 4"):
        score.roc(4)
    never = CategoryCalibration().add(Categories(p[4:, :3] / p[4:, :3].sum(axis=1)[:, None]), np.eye(3)[[0] * 196])
    with pytest.raises(ValueError, match="need rows of both"):
        never.lift(1)
    ax = score.plot(kind="roc", number=1, label="b")
    score.plot(ax, kind="roc", number=2, label="c")
    assert [text.get_text()[:1] for text in ax.get_legend().get_texts()] == ["r", "b", "c"]
    with pytest.raises(ValueError, match="number must be given: which of the classes is the event"):
        score.plot(kind="lift")
    with pytest.raises(ValueError, match="number must be left out"):
        score.plot(kind="reliability", number=1)
    plt.close("all")
