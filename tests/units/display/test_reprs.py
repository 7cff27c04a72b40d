"""What objects show of themselves in a terminal and in a notebook: a few lines, no arrays, no scripts, all escaped."""

import dataclasses
import re
from html.parser import HTMLParser

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kalprox as kp
from kalprox import KalproxRegressor
from kalprox.base.arrays import brief
from kalprox.jobs.model import TableModel

pd = pytest.importorskip("pandas", reason="pandas is not installed")

RNG = np.random.default_rng(0)
N, D = 300, 40
X = RNG.normal(size=(N, D))
Y = X[:, 0] - 2 * X[:, 1] + RNG.normal(size=N)
HOSTILE = "<script>alert(1)</script><img src=http://example.org/x onerror=alert(2)>&\"'`code`"
LINEAR, RIDGE = kp.models.Linear(), kp.regularizers.Ridge(1.0)


def filtered():
    alg = kp.proximal_filter(LINEAR, RIDGE)
    return alg, alg.step(alg.init(np.zeros(D), None), X, Y)


def ran(**options):
    alg = kp.ipm(LINEAR, gamma=1.0)
    return kp.run(alg, alg.init(np.zeros(D), 10.0), X, Y, record_every=7, **options)


def fitted(X=X, y=Y, **settings):
    return KalproxRegressor(**settings).fit(X, y)


def warming_up():
    return KalproxRegressor(link="sigmoid").partial_fit(X[:5], Y[:5] > 0)


SHOWN = {
    "Algorithm": lambda: filtered()[0],
    "ProximalState": lambda: filtered()[1],
    "ProximalState in its warm-up": lambda: kp.proximal_filter(kp.models.GLM("sigmoid"), RIDGE).init(np.zeros(D), 1.0),
    "Belief": lambda: ran().state,
    "Point": lambda: kp.sgd(LINEAR, RIDGE, alpha0=0.1, alpha1=0.1).init(np.zeros(D), None),
    "Student": lambda: filtered()[0].predict(filtered()[1], X),
    "Run": lambda: ran(calibrate=True),
    "Trace": lambda: ran(record=lambda state: state.mean[:2]).trace,
    "Calibration": lambda: fitted().diagnostics_,
    "Verdict": lambda: fitted().diagnostics_.verdict(),
    "Calibration of no rows": kp.Calibration,
    "Calibration that was not judged": lambda: fitted(diagnose=False).diagnostics_,
    "Information": lambda: kp.Information.from_rows(X, Y),
    "Information of no rows": lambda: kp.Information.zero(D),
    "Information of two targets": lambda: kp.Information.from_rows(X, np.column_stack([Y, Y])),
    "Equations": lambda: kp.Information.from_rows(X, Y).with_intercept(),
    "Refined": lambda: kp.refine(LINEAR, RIDGE, (X, Y), np.zeros(D)),
    "Path": lambda: fitted(penalty="ridge").path(),
    "Path of two targets": lambda: fitted(y=np.column_stack([Y, Y]), penalty="ridge").path([1.0, 2.0]),
    "Quadratic": lambda: kp.regularizers.Quadratic(np.eye(D)),
    "GroupL1": lambda: kp.regularizers.GroupL1(1.0, tuple(range(D))),
    "Dense": lambda: kp.covariance.Dense(np.eye(D)),
    "TableModel": lambda: TableModel.of_learner(
        fitted()._learner, n_features=D, feature_names=None, estimator_settings={}
    ),
    "KalproxRegressor": fitted,
    "KalproxRegressor(start)": lambda: KalproxRegressor(start=np.zeros(D)),
}


class Tags(HTMLParser):
    """All tags are closed, none runs or loads anything."""

    def __init__(self):
        super().__init__()
        self.open, self.text, self.seen = [], [], set()

    def handle_starttag(self, tag, attributes):
        assert tag in {"div", "table", "tr", "th", "td", "code", "ol", "li"}
        assert {name for name, _ in attributes} <= {"style", "class", "colspan"}
        assert not any("url" in (value or "") for _, value in attributes)
        self.open.append(tag)
        self.seen.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def read(html):
    tags = Tags()
    tags.feed(html)
    assert tags.open == []
    return " ".join(tags.text)


@pytest.mark.parametrize("name", SHOWN)
def test_the_text_is_a_few_lines_and_dumps_no_array(name):
    text = repr(SHOWN[name]())
    assert text.startswith(re.split(r"[ (]", name)[0] + "(") and len(text) < 400 and text.count("\n") <= 3
    assert "array(" not in text and " at 0x" not in text


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Information", "Information(300 rows, 40 coefficients)"),
        ("Information of two targets", "Information(300 rows, 40 coefficients, 2 targets)"),
        ("Equations", "Equations(300 rows, 41 coefficients)"),
        (
            "Algorithm",
            "Algorithm(proximal_filter: Problem(model=Linear(), likelihood=Gaussian(targets='range'), regularizer=Ri",
        ),
        ("Trace", "Trace(43 records of 40 coefficients with variances, and extra, after 7 to 300 rows)"),
        ("Calibration of no rows", "Calibration(too few rows to say)"),
        ("Calibration that was not judged", "Calibration(not judged, because the score was not asked for)"),
        ("Quadratic", "Quadratic(A=<float64 of shape (40, 40)>)"),
        (
            "Path of two targets",
            "Path(coefficients: 40; targets: 2; alphas: 2, from 1 to 2; best: alpha = 2, by log ev",
        ),
        ("TableModel", "TableModel('y' from 40 columns, 300 rows learned, fitted to array)"),
    ],
)
def test_the_text_says_what_there_is(name, expected):
    assert repr(SHOWN[name]()).startswith(expected)


def test_short_arrays_are_shown_in_full_and_long_ones_by_their_shape():
    assert repr(kp.regularizers.Box(np.array([0.0, 1 / 3]), 1.0)) == "Box(low=[0, 0.333333], high=1.0)"
    assert brief((1.0, np.float32(2))) == "(1.0, 2)" and brief((1,)) == "(1,)" and brief([0] * 7) == "<list of 7>"
    assert brief(np.array(["a"])) == "<<U1 of shape (1,)>" and brief(jnp.arange(3)) == "[0, 1, 2]"
    assert brief(np.array([True, False])) == "[1, 0]" and brief(len) == "len"


@pytest.mark.slow
def test_traced_and_mapped_objects_have_a_text_and_no_html():
    seen = []

    @jax.jit
    def look(info, calibration):
        seen.extend([info, calibration])
        seen.extend([repr(info), repr(calibration), info._repr_html_(), calibration._repr_html_()])
        return info.rows

    info = kp.Information.from_rows(jnp.asarray(X), jnp.asarray(Y))
    look(info, kp.Calibration())
    assert seen[2].startswith("Information(T=<float") and seen[3].startswith("Calibration(sums=<float")
    assert seen[4] is seen[5] is None
    several = jax.vmap(lambda scale: kp.Information.from_rows(scale * jnp.asarray(X), jnp.asarray(Y)))(jnp.ones(3))
    assert "of shape (3, 42, 42)" in repr(several) and several._repr_html_() is None
    assert "ShapeDtypeStruct" in repr(jax.eval_shape(lambda: info))


CARDS = {
    "run": lambda: ran(calibrate=True),
    "run without a covariance": lambda: kp.run(
        alg := kp.sgd(LINEAR, RIDGE, alpha0=0.01, alpha1=0.1), alg.init(np.zeros(D), None), X, Y
    ),
    "calibration": lambda: fitted().diagnostics_,
    "calibration of no rows": kp.Calibration,
    "calibration that was not judged": lambda: fitted(diagnose=False).diagnostics_,
    "information": lambda: kp.Information.from_rows(X, Y),
    "information of no rows": lambda: kp.Information.zero(D),
    "information of fewer rows than columns": lambda: kp.Information.from_rows(X[:9], Y[:9]).centered(),
    "information of two targets": lambda: kp.Information.from_rows(X, np.column_stack([Y, Y])),
    "refined": lambda: kp.refine(LINEAR, RIDGE, (X, Y), np.zeros(D)),
    "path": lambda: fitted(penalty="ridge").path(),
    "path of one alpha and two targets": lambda: fitted(y=np.column_stack([Y, Y]), penalty="ridge").path([1.0]),
    "summary": lambda: fitted().summary(),
}


@pytest.mark.parametrize("name", CARDS)
def test_html_is_small_closed_and_runs_nothing(name):
    html = CARDS[name]()._repr_html_()
    assert read(html) and len(html) < 10_000 and "color:" not in html.replace("border-", "")


MODELS = {
    "plain": fitted,
    "one column": lambda: fitted(X[:, :1]),
    "one row": lambda: fitted(X[:1], Y[:1]),
    "500 columns": lambda: fitted(np.random.default_rng(5).normal(size=(50, 500)), Y[:50], alpha="auto"),
    "constant and equal columns": lambda: fitted(np.column_stack([X[:, :2], X[:, 0], np.ones(N)]), penalty=None),
    "two targets": lambda: fitted(y=np.column_stack([Y, -Y])),
    "no intercept": lambda: fitted(fit_intercept=False),
    "sigmoid": lambda: fitted(y=(Y > 0) * 1.0, link="sigmoid", penalty="ridge"),
    "warm-up": warming_up,
    "a function": lambda: fitted(X[:, :1], X[:, 0] + Y, function=lambda t, x: t[0] * x[0] + t[1], start=np.zeros(2)),
    "clustered, one cluster": lambda: KalproxRegressor(coef_cov="clustered").partial_fit(X, Y),
    "hostile names": lambda: fitted(pd.DataFrame(X[:, :2], columns=[HOSTILE, "b\n\x1b[31m"])),
    "hostile formula": lambda: KalproxRegressor("y ~ g").fit(
        pd.DataFrame({"y": Y[:9], "g": ["<b>x</b>", "<i>", "c"] * 3})
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_a_fitted_model_adds_what_was_fitted_to_the_diagram(name):
    from sklearn.base import BaseEstimator

    model = MODELS[name]()
    bundle = model._repr_mimebundle_()
    added = model._fitted_html()
    assert bundle["text/html"].endswith(added) and bundle["text/plain"] == repr(model)
    assert model._repr_html_().endswith(added) and len(added) < 6_000
    assert "sk-container-id" in bundle["text/html"].removesuffix(added)
    assert BaseEstimator._repr_html_inner is not type(model)._repr_html_inner
    text = read(added)
    assert "Rows" in text and "Noise std" in text and "Verdict" in text and "coef" in text
    first = np.ravel(model.coef_)[0]
    assert f"{first:.4g}" in text


def test_names_with_markup_stay_words():
    text = read(MODELS["hostile names"]()._fitted_html())
    assert HOSTILE in text and "\\x1b[31m" in text  # Tags refuses any tag or attribute that came from the name


def test_a_model_that_is_not_fitted_shows_the_diagram_of_scikit_learn_alone():
    model = KalproxRegressor(alpha=3.0)
    assert model._fitted_html() == "" and "KalproxRegressor" in model._repr_html_()


def test_pipelines_show_the_diagram_with_the_model_inside():
    from sklearn import set_config
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    pipeline = make_pipeline(StandardScaler(), KalproxRegressor(alpha=3.0))
    for whole in (pipeline, pipeline.fit(X, Y)):
        html = whole._repr_mimebundle_()["text/html"]
        assert "StandardScaler" in html and "KalproxRegressor" in html and "class='kalprox'" not in html
    set_config(display="text")
    try:
        assert set(fitted()._repr_mimebundle_()) == {"text/plain"} and not hasattr(fitted(), "_repr_html_")
    finally:
        set_config(display="diagram")


def test_the_diagram_reads_no_attribute_that_takes_long_or_warns(monkeypatch):
    pytest.importorskip("sklearn.utils._repr_html.fitted_attributes", reason="scikit-learn 1.9 has them")
    for name in ("covariance_", "log_evidence_", "coef_std_"):
        monkeypatch.setattr(KalproxRegressor, name, property(lambda self: pytest.fail("was read")))
    html = fitted()._repr_html_()
    assert "n_rows_seen_" in html and "covariance_" not in html


def test_showing_a_model_changes_nothing_and_warns_of_nothing():
    model = KalproxRegressor()
    for start in range(0, 30, 3):
        model.partial_fit(X[start : start + 3], Y[start : start + 3])
    before = vars(model._learner.score)
    model._repr_html_()
    assert dataclasses.is_dataclass(model.diagnostics_)
    assert all(np.array_equal(value, before[name]) for name, value in vars(model.diagnostics_).items())


def test_what_is_doubtful_is_marked():
    marked, mark = MODELS["constant and equal columns"]()._fitted_html(), "border-left:3px"
    assert mark in marked and mark not in fitted(X[:, :2])._fitted_html()
    assert mark in kp.Information.from_rows(X[:9], Y[:9])._repr_html_()
    assert mark not in kp.Information.from_rows(X, Y)._repr_html_()
    assert "undetermined" in read(marked)
