"""Formulas over files: the columns and coefficients of the whole frame, and no expressions but those allowed."""

import io
import json
import pickle
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import statsmodels.api as sm
from command import invoke
from formulaic import Formula

from kalprox import model_file
from kalprox.jobs.fit import FitJob
from kalprox.jobs.model import TableModel
from kalprox.model_file import ModelFileError
from kalprox.sources.files import STDIN, Replay, SourceError
from kalprox.sources.formula import FormulaColumns, infer_formula, infer_formula_of_table
from kalprox.sources.formula_syntax import load_formulaic, parse_factor, parse_formula, scan_of
from kalprox.sources.quarantine import Reason
from kalprox.sources.table import Table


@pytest.fixture(scope="module")
def frame():
    """A file sorted by its levels: the first look sees one of them."""
    rng = np.random.default_rng(0)
    n = 1500
    made = pd.DataFrame(
        {
            "g": np.array(["b", "a", "d", "c"])[rng.integers(0, 4, n)],
            "h": rng.integers(1, 13, n),
            "x": rng.lognormal(size=n),
            "dep delay": 1e3 + rng.normal(size=n),
            "on": rng.integers(0, 2, n).astype(bool),
        }
    )
    made["y"] = np.exp(made.x / 5 + (made.g == "c") + 0.1 * rng.normal(size=n))
    return made.sort_values(["g", "h"], ignore_index=True)


@pytest.fixture(scope="module")
def path(frame, tmp_path_factory):
    file = tmp_path_factory.mktemp("formula") / "data.csv"
    frame.to_csv(file, index=False)
    return file


FORMULAS = [
    "y ~ x",
    "y ~ x + g",
    "y ~ x + C(g) + C(h)",
    "y ~ 0 + g + x",
    "y ~ x + g - 1",
    "y ~ g*x",
    "y ~ C(h):g + x",
    "log(y) ~ log(x) + I(x**2) + np.exp(-x)",
    "y ~ `dep delay` + center(`dep delay`):x + scale(log(x)) + standardize(h)",
    "y ~ poly(x, 3, raw=True) + x:h + {x / h}",
    "y ~ C(g, contr.sum) + C(h, contr.helmert)",
    "y ~ C(g, Treatment('c')) + C(g, contr.treatment(base='b')):x",
    "y ~ (x + h + g)**2 - g:h",
    "y ~ 2:x + sqrt(h)",
    "y ~ bs(x, df=5) + bs(log(x), 4) + g",
    "y ~ bs(x, knots=[1.5, 2], degree=2, extrapolation='clip'):g",
    "y ~ cr(x, df=4, constraints='center') + cc(h, df=4, constraints='center')",
    "y ~ cr(x, knots=[1.2, 1.9], lower_bound=0, upper_bound=9, constraints='center')",
    "y ~ poly(x, 3) + poly(`dep delay`, degree=2):g",
]


@pytest.mark.slow
@pytest.mark.parametrize("formula", FORMULAS)
def test_columns_and_coefficients_are_those_of_the_whole_frame(formula, frame, path):
    columns = infer_formula([path], formula, rows=10)
    expected = Formula(formula).get_model_matrix(frame, context={"sqrt": np.sqrt})
    X = expected.rhs.drop(columns=["Intercept"], errors="ignore")
    y = expected.lhs.to_numpy()[:, 0]
    assert columns.names == list(X.columns) and columns.intercept == ("Intercept" in expected.rhs.columns)
    assert len(columns.groups) == len(columns.names) and max(columns.groups) < len(columns.features)
    table = Table(str(path), columns, memory=1)
    blocks = list(table.blocks())
    assert len(blocks) > 10
    np.testing.assert_allclose(np.concatenate([block.X for block in blocks]), X, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(np.concatenate([block.y for block in blocks]), y, rtol=1e-14)
    fitted = FitJob(table, {"penalty": None, "fit_intercept": columns.intercept}).run()
    reference = sm.OLS(y, expected.rhs.to_numpy()).fit()
    coef = np.r_[[fitted.belief.intercept] if columns.intercept else [], fitted.belief.coef]
    scale = np.abs(reference.params).max()
    np.testing.assert_allclose(coef, np.linalg.lstsq(expected.rhs.to_numpy(), y)[0], rtol=1e-8, atol=1e-8 * scale)
    np.testing.assert_allclose(coef, reference.params, rtol=1e-8, atol=1e-8 * scale)
    np.testing.assert_allclose(fitted.belief.coef_std, reference.bse[columns.intercept :], rtol=1e-6)


def test_levels_that_are_numbers_are_sorted_as_numbers_and_may_be_a_reference(frame, path):
    columns = infer_formula([path], "y ~ C(h, Treatment(5)) + x", rows=1)
    assert columns.levels == {"h": tuple(map(str, range(1, 13)))}
    assert columns.names[:4] == [f"C(h, Treatment('5'))[T.{h}]" for h in (1, 2, 3, 4)]
    assert "C(h, Treatment('5'))[T.5]" not in columns.names


def test_dates_and_the_state_of_good_rows(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(
        "y,day,x,g\n1,2020-01-01,1,a\n2,2020-01-02,2,b\n3,2020-01-03,6,a\n4,2020-01-04,,c\nz,2020-01-05,9,d\n"
    )
    columns = infer_formula([path], "y ~ center(day) + scale(x) + g")
    assert columns.dates == ("day",) and columns.levels == {"g": ("a", "b")}  # c and d are in bad rows only
    assert columns.state["center(day)"] == {"ddof": 1, "center": 18263.0, "scale": None}
    assert columns.state["scale(x)"] == pytest.approx({"ddof": 1, "center": 3.0, "scale": np.std([1, 2, 6], ddof=1)})
    (block,) = Table(str(path), columns).blocks()
    assert [(row.row, row.column, row.reason) for row in block.bad] == [(4, "x", "missing"), (5, "y", "not a number")]
    assert block.X[:, 1].tolist() == [-1.0, 0.0, 1.0] or block.X[:, 0].tolist() == [-1.0, 0.0, 1.0]


def test_bad_rows_are_named(path):
    columns = infer_formula([path], "log(y) ~ log(x) + C(g)")
    table = pa.table(
        {"y": ["1", "0", "1", "1", "1", "2"], "x": ["1", "1", "0", "", "1", "u"], "g": [*"abca", "q", "a"]}
    )
    encoded = columns.encode(table)
    assert [(c.at, c.column, str(c.reason), c.value) for c in encoded.bad] == [
        (1, "log(y)", "not finite", "0"),
        (2, "log(x)", "not finite", "0"),
        (3, "x", "missing", ""),
        (4, "g", "unseen level", "q"),
        (5, "x", "not a number", "u"),
    ]
    assert columns.encode(table.slice(0, 0)).X.shape == (0, len(columns.names))


def test_weights_and_clusters(path, frame, tmp_path):
    file = tmp_path / "w.csv"
    weights = np.arange(len(frame)) % 3 + 1.0
    frame.assign(w=weights, k=np.arange(len(frame)) % 50).to_csv(file, index=False)
    columns = infer_formula([file], "y ~ x + g", weight="w", cluster="k")
    fitted = FitJob(
        Table(str(file), columns), {"penalty": None, "weight_kind": "precision", "coef_cov": "clustered"}
    ).run()
    X = Formula("x + g").get_model_matrix(frame)
    reference = sm.WLS(frame.y, X, weights).fit()
    np.testing.assert_allclose(fitted.belief.coef, reference.params[1:], rtol=1e-8)


ALLOWED = "x + C(g) + log(h)"
REFUSED = {
    "{__import__('os').system('touch MARKER')}": "a call of",
    "{x.__class__}": "Attribute is no part",
    "(lambda: 1)()": "formula must",
    "np.load('a')": "a call of 'np.load'",
    "np.random.rand(3)": "a call of",
    "I(x**h)": "an exponent must be a number",
    "I(9**9**9)": "an exponent must be a number",
    "I(9**9)": "a power must be one of a column",
    "I(x**1000)": "powers above",
    "log(x, out=h)": "takes one expression",
    "log(*x)": "takes one expression",
    "center(scale(x))": "inside of another",
    "bs(x, df=h)": "must be constants",
    "bs(x, df=101)": "df must be a whole number up to 100; got 101",
    "bs(x, df=4, x=1)": "takes one expression and df, knots",
    "bs(x, extrapolation='raise')": "extrapolation must be 'clip', 'extend'",
    "bs(x, knots=[1, open])": "must be constants",
    "bs(x, knots=[1, 'a'])": "knots must be a list of up to 100 numbers",
    "log(bs(x))": "inside of another expression",
    "bs(center(x))": "inside of another expression",
    "cr(x, df=2)": "at least 3 degrees of freedom",
    "cr(x, constraints=[[1, 2]])": "constraints must be 'center'",
    "poly(x, 17)": "degree must be a whole number up to 16",
    "poly(x, 3, raw=1)": "raw must be True or False",
    "fourier(h)": "needs the period",
    "fourier(h, 0)": "period must be a number > 0",
    "fourier(h, 24, order=1e9)": "order must be a whole number",
    "lag(x)": "not known here",
    "hashed(g, levels=3)": "not known here",
    "C(g, levels=['a'])": "takes a column, and a contrast",
    "C(log(x))": "takes a column, and a contrast",
    "C(g, contr.sum(__import__('os')))": "must be constants",
    "C(g, open('x'))": "the contrast",
    "Q('x')": "a call of 'Q'",
    "eval('x')": "a call of 'eval'",
    "{open('x').read()}": "a call of",
    "I([x])": "List is no part",
    "I(x if h else x)": "IfExp is no part",
    "I(x @ h)": "BinOp is no part",
    "__builtins__": "the name __builtins__",
    "I('a')": "Constant is no part",
}


@pytest.mark.parametrize("text", REFUSED)
def test_other_expressions_are_refused(text, path, tmp_path):
    marker = tmp_path / "marker"
    formula = f"y ~ x + {text}".replace("MARKER", str(marker))
    with pytest.raises(SourceError, match=REFUSED[text]):
        infer_formula([path], formula)
    assert not marker.exists()


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        ("y ~ x +", "formula must be one such as"),
        ("y ~ 1", "at least one term"),
        ("y + x ~ h", "one target"),
        ("y | x ~ h", "one left-hand"),
        ("y ~ .", "must name its columns"),
        ("~ x", "must have a target"),
        ("C(y) ~ x", "numbers on its left-hand side"),
        ("center(y) ~ x", "numbers on its left-hand side"),
        ("y ~ log(g)", "column 'g' is used as text"),
        ("y ~ h + C(h) + log(h)", "column 'h' is used as levels"),
        ("y ~ x + y", "must be different columns"),
        ("y ~ C(g, Treatment('z'))", "reference 'z' is no level of column 'g', whose levels are 'a', 'b', 'c', 'd'"),
        ("y ~ nothing", "no column 'nothing'"),
        ("y ~ scale(I(x - x))", "its values are all 0"),
        ("y ~ x" + " + x" * 9999, "at most 10,000 characters"),
        ("y ~ (x + h)**99", "powers above 16"),
        ("y ~ h + x**2", r"must not have 'x\*\*2', which is x alone: write I\(x\*\*2\)"),
        ("y ~ x^3:g", r"must not have 'x\^3', which is x alone"),
        ("y ~ `dep delay`**2", "which is `dep delay` alone"),
        ("g ~ x", "'g' must hold numbers"),
    ],
)
def test_mistakes_are_named(formula, message, path):
    with pytest.raises(SourceError, match=message):
        infer_formula([path], formula)


def test_too_many_levels(path):
    with pytest.raises(SourceError, match=r"Column 'h' has more than the 5 levels allowed.*max_levels"):
        infer_formula([path], "y ~ C(h)", max_levels=5)


# model files


@pytest.fixture(scope="module")
def model(path, tmp_path_factory):
    out = tmp_path_factory.mktemp("model") / "m.kalprox"
    invoke("fit", path, "--formula", "y ~ x + C(g) + scale(h)", "--out", out, "--penalty", "none")
    return out


@pytest.mark.slow
def test_a_model_file_is_read_back_and_predicts_files_of_other_formats(model, frame, path, tmp_path):
    fitted = TableModel.load(model)
    columns = fitted.columns
    assert isinstance(columns, FormulaColumns) and columns.formula == "y ~ 1 + x + C(g) + scale(h)"
    assert FormulaColumns.from_json(json.loads(json.dumps(columns.to_json()))) == columns
    assert pickle.loads(pickle.dumps(columns)).names == columns.names
    new, out = tmp_path / "new.parquet", tmp_path / "p.csv"
    frame.drop(columns="y").iloc[::-1].to_parquet(new)
    invoke("predict", model, new, "--out", out)
    X = Formula("x + C(g) + scale(h)").get_model_matrix(frame)
    reference = sm.OLS(frame.y, X).fit()
    np.testing.assert_allclose(pd.read_csv(out)["mean"], reference.predict(X)[::-1], rtol=1e-8)
    shown = invoke("show", model).output
    assert "y ~ 1 + x + C(g) + scale(h)" in shown and "levels: 4" in shown
    invoke("report", model, "--out", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "C(g)[T.c]" in page and "y ~ 1 + x + C(g) + scale(h)" in page
    unknown = tmp_path / "unknown.csv"
    unknown.write_text("x,g,h\n1,a,2\n1,zz,2\n")
    text = invoke("predict", model, unknown, "--out", out, code=4).output
    assert "row 2, column 'g': unseen level ('zz')" in text
    assert (
        "--unseen must be 'reject' with a formula"
        in invoke("predict", model, unknown, "--unseen", "zero", code=3).output
    )


@pytest.mark.parametrize("text", [text for text in REFUSED if "powers" not in REFUSED[text]])
def test_a_model_file_never_runs_code(text, model, tmp_path):
    marker = tmp_path / "marker"
    header, arrays = model_file.read(model)
    terms = header["table"]["columns"]["terms"]
    factor = text.replace("MARKER", str(marker)).strip("{}")
    for changed in ([*terms, [factor]], [[factor], *terms[1:]]):
        header["table"]["columns"]["terms"] = changed
        with pytest.raises(ModelFileError, match="damaged"):
            TableModel.from_parts(model, header, arrays)
    header["table"]["columns"]["terms"] = terms
    header["table"]["columns"]["target"] = factor
    with pytest.raises(ModelFileError, match="damaged"):
        TableModel.from_parts(model, header, arrays)
    assert not marker.exists()


SCALED = {"ddof": 1, "center": 1.0, "scale": 1.0}


@pytest.mark.parametrize(
    "change",
    [
        {"terms": []},
        {"terms": [[]]},
        {"terms": [["x"], ["x", "nothing"]]},
        {"terms": "x"},
        {"levels": {}},
        {"levels": {"g": []}},
        {"levels": {"g": ["a", "a"]}},
        {"state": {}},
        {"state": {"scale(h)": {"scale": 1.0}}},
        {"state": {"scale(h)": {"ddof": 1, "center": "x", "scale": 1.0}}},
        {"state": {"scale(h)": {"ddof": 1, "center": float("nan"), "scale": 1.0}}},
        {"state": {"scale(h)": SCALED, "scale(x)": SCALED}},
        {"state": {"scale(h)": SCALED, "__import__('os')": SCALED}},
        {"numeric": []},
        {"categorical": {"a": ["b"]}},
        {"unseen": "zero"},
        {"intercept": 1},
        {"terms": [["x"], [*["C(g)"] * 30]]},
        {"target": None},
        {"weight": "x"},
    ],
    ids=str,
)
def test_damaged_descriptions_are_refused(change, model):
    header, arrays = model_file.read(model)
    header["table"]["columns"] |= change
    with pytest.raises(ModelFileError, match="damaged"):
        TableModel.from_parts(model, header, arrays)


# on the command line


@pytest.mark.slow
def test_the_command(path, tmp_path):
    out, again, both = (tmp_path / f"{name}.kalprox" for name in ("one", "again", "both"))
    text = invoke("fit", path, "--formula", "y ~ 0 + g + x:h", "--out", out).output
    assert "1,500 read, 1,500 learned" in text and len(TableModel.load(out).columns.names) == 5
    assert TableModel.load(out).learner.settings.fit_intercept is False
    invoke("fit", path, "--columns", out, "--out", again)
    assert TableModel.load(again).learner.settings.fit_intercept is False
    np.testing.assert_array_equal(TableModel.load(again).belief.coef, TableModel.load(out).belief.coef)
    invoke("fit", path, "--formula", "y ~ 0 + g + x:h", "--engine", "local", "--out", again)
    np.testing.assert_allclose(TableModel.load(again).belief.coef, TableModel.load(out).belief.coef, rtol=1e-10)
    other = tmp_path / "other.csv"
    other.write_text("y,g,x,h\n1,a,1,2\n2,b,1,3\n")
    invoke("fit", other, "--columns", out, "--out", again)
    invoke("merge", out, again, "--out", both)
    assert TableModel.load(both).learner.n_rows == 1502
    for option in (["-y", "y"], ["--features", "x"], ["--exclude", "x"], ["--columns", str(out)], ["--no-intercept"]):
        text = invoke("fit", path, "--formula", "y ~ x", *option, code=2).output
        assert "cannot be used with --formula" in text
    assert "--formula must not have lag(x)" in invoke("fit", path, "--formula", "y ~ lag(x)", code=3).output
    text = invoke("fit", path, "--formula", "y ~ C(h)", "--max-levels", "5", code=3).output
    assert "allow more with --max-levels" in text
    invoke("fit", path, "--formula", "y ~ g*x", "--penalty", "group", "--out", out)


def test_semicolons_and_decimal_commas(path, frame, tmp_path):
    file, out, plain = tmp_path / "a.csv", tmp_path / "a.kalprox", tmp_path / "b.kalprox"
    frame.to_csv(file, index=False, sep=";", decimal=",")
    invoke("fit", file, "--formula", "y ~ scale(x) + C(g)", "--decimal", ",", "--out", out)
    invoke("fit", path, "--formula", "y ~ scale(x) + C(g)", "--out", plain)
    np.testing.assert_array_equal(TableModel.load(out).belief.coef, TableModel.load(plain).belief.coef)


@pytest.mark.slow
def test_a_fit_resumes_from_its_checkpoint(path, tmp_path):
    columns = infer_formula([path], "y ~ x + C(g) + scale(h)")
    checkpoint, whole = tmp_path / "c", FitJob(Table(str(path), columns, memory=1), {}).run()

    class Stop(Exception):
        pass

    def watch(progress):
        if progress.rows > 800:
            raise Stop

    job = {"checkpoint": checkpoint, "every": 300}
    with pytest.raises(Stop):
        FitJob(Table(str(path), columns, memory=1), {}, **job, watch=watch).run()
    again = infer_formula([path], "y ~ x + C(g) + scale(h)")
    resumed = FitJob(Table(str(path), again, memory=1), {}, **job).run()
    np.testing.assert_array_equal(resumed.belief.coef, whole.belief.coef)


def test_standard_input_is_stored_to_find_levels(path):
    data, said = path.read_bytes(), []
    for given in (None, {"g": ["a", "b", "c", "d"]}):
        stream = Replay(io.BytesIO(data))
        columns = infer_formula([STDIN], "y ~ x + g", stdin=stream, categorical=given, watch=said.append)
        rows = sum(len(block) for block in Table("-", columns, stdin=stream).blocks())
        assert rows == 1500 and columns.names == ["x", "g[T.b]", "g[T.c]", "g[T.d]"]
    assert said == ["Storing standard input in a temporary file, to find the levels of 'g'."]
    with pytest.raises(SourceError, match="to find what center"):
        infer_formula([STDIN], "y ~ center(x)", stdin=Replay(io.BytesIO(data)), spool=1000)


def test_a_table_in_memory(frame):
    table = pa.Table.from_pandas(frame)
    columns = infer_formula_of_table("y ~ g*x + center(h) + on", table)
    expected = Formula("y ~ g*x + center(h) + on").get_model_matrix(frame.assign(on=frame.on.astype(float)))
    np.testing.assert_allclose(columns.encode(table).X, expected.rhs.to_numpy()[:, 1:], rtol=1e-12, atol=1e-12)


def test_the_package_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "formulaic", None)
    with pytest.raises(ImportError, match=r'pip install "kalprox\[formula\]"'):
        load_formulaic()


def test_factors_are_found_with_their_columns():
    assert parse_factor("`a b`").lookup == "a b"
    assert parse_factor("scale(log(`a b` + x))").stateful == {"scale(log(`a b` + x))": "log(`a b` + x)"}
    assert parse_formula("y ~ " + ALLOWED).terms == (("x",), ("C(g)",), ("log(h)",))


def test_waves_of_a_period(frame):
    table = pa.Table.from_pandas(frame)
    X = infer_formula_of_table("y ~ fourier(h, 12, order=2)", table).encode(table).X
    angle = 2 * np.pi * frame.h.to_numpy() / 12
    expected = np.column_stack([np.sin(angle), np.cos(angle), np.sin(2 * angle), np.cos(2 * angle)])
    np.testing.assert_allclose(X, expected, atol=1e-14)


def test_knots_of_many_rows_come_from_a_sample_that_is_spread_over_them():
    """Sorted rows, in blocks of any length: the knots are those of all rows, and no value lies outside of the range."""
    x = np.sort(np.random.default_rng(0).gamma(2, 2, 300_000))
    states = []
    for cuts in ([100_000, 200_000], [7, 131_072, 131_073, 250_001]):
        scan = scan_of("bs(x, df=7)")
        for part in np.split(x, cuts):
            scan.add(part)
        states.append(scan.state("bs(x, df=7)"))
    assert states[0] == states[1] and 2 * len(x) / scan.every > 65_536 >= len(x) / scan.every
    assert (states[0]["lower_bound"], states[0]["upper_bound"]) == (x[0], x[-1])
    np.testing.assert_allclose(states[0]["knots"][4:8], np.quantile(x, np.linspace(0, 1, 6)[1:-1]), rtol=1e-4)


def test_what_lies_outside_of_a_spline_is_a_bad_row_unless_it_is_extrapolated(frame):
    table = pa.Table.from_pandas(frame)
    beyond = table.set_column(table.column_names.index("x"), "x", [np.r_[frame.x.max() + 1, frame.x[1:]]])
    found = infer_formula_of_table("y ~ bs(x, df=4)", table).encode(beyond)
    assert [(cell.at, cell.reason) for cell in found.bad] == [(0, Reason.OUTSIDE)]
    for how in ("clip", "extend"):
        columns = infer_formula_of_table(f"y ~ bs(x, df=4, extrapolation='{how}')", table)
        found = columns.encode(beyond)
        assert not found.bad and np.isfinite(found.X).all()
        assert (found.X[0] == columns.encode(table).X[frame.x.argmax()]).all() == (how == "clip")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("bs(x, df=2)", "`df` must be greater than 3"),
        ("bs(x, df=5, knots=[1])", "both `df` and `knots`"),
        ("poly(z, 4)", "too few for this degree"),
    ],
)
def test_bases_that_cannot_be_found_are_refused(text, why, frame):
    table = pa.Table.from_pandas(frame.assign(z=np.arange(len(frame)) % 3))
    with pytest.raises(SourceError, match=why):
        infer_formula_of_table(f"y ~ {text}", table)
