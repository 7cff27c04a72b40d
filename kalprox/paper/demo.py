"""The demonstration: a stream with intervals, and the paper's problem in a small size, by its method and by ours."""

from dataclasses import asdict
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING

import numpy as np

import kalprox as kp
from kalprox.display.axes import INK, LINES, is_narrow, thousands
from kalprox.display.plots import lines
from kalprox.display.progress import progress_bar
from kalprox.pages import Figure, Page, Section, Table
from kalprox.paper import sparse
from kalprox.paper.cache import Results, cached_all

if TYPE_CHECKING:
    import matplotlib.figure


SETTINGS = sparse.Settings(n=30_000, sizes=(1.0, 3.0), points=31, filter_points=8)

# The words of the comparison, for someone who has not read the paper.
TERMS = {
    "taps": "The unknown coefficients. Each observation is made from a weighted sum of the last d inputs; in signal "
    "processing these weights are called the taps of a filter. They are what every method estimates.",
    "size": "The absolute value of the taps that are not zero. The larger it is, the more often the sigmoid is near 0 "
    "or 1, where an observation says little.",
    "sigmoid": "The curve 1 / (1 + exp(-u)), through which the weighted sum u is observed, with noise on top.",
    "PIPG": "The paper's method, the probabilistic incremental proximal gradient method. It takes one row at a time, "
    "and moves an estimate and its covariance as a Kalman filter does. As printed: with the paper's settings.",
    "Q": "The uncertainty that PIPG adds to its covariance at every row, so that it never becomes quite sure. The "
    "paper has a small Q; Q = 0 leaves it out.",
    "SGD": "Stochastic gradient descent, with a step that becomes smaller along the rows. It states no uncertainty.",
    "proximal filter": "What kalprox uses by default, also in the section above: rows are added to a triangle of "
    "numbers, and the estimate is read from it.",
    "refined": "The minimiser of the objective, after a few more passes over the rows.",
    "λ, δ": "The weight and the width of the penalty on the taps, a smooth version of the sum of absolute values.",
    "v₀, γ": "The variance of the taps before the first row, and the precision of the noise, 1 / variance.",
    "α₀, α₁": "The first step of SGD, and how fast its steps become smaller.",
    "relative error": "The distance of the estimate from the true taps, divided by the length of the true taps. An "
    "estimate of zero has an error of 1.",
    "±2σ": "The estimate plus and minus two of its standard deviations. If the uncertainty is right, 95.4% of such "
    "bars contain the true tap.",
}


def page(seed: int, folder: str | PathLike[str]) -> Page:
    """The page of the demonstration: the library first, then the comparison with the paper's method for two seeds.

    Parameters
    ----------
    seed : int
    folder : str or path-like
        The folder of the cache, see `kalprox.paper.cache.cached_all`.
    """
    with progress_bar("demo") as progress:
        paper = sparse.compute(SETTINGS, range(seed, seed + 2), partial(cached_all, folder, jobs=2, progress=progress))
        stream = learn_stream(seed)
    comparison = sparse.section(paper)
    findings = "\n\n".join(sparse.conclusions(paper))
    return Page(
        title="kalprox: regression on rows that keep coming, with intervals",
        summary=(
            "First the library at work: rows are learned in batches, and at any time there are coefficients, intervals "
            "and a verdict on them. Then the problem of the paper that the library began with, solved by the paper's "
            "method, by SGD and by kalprox."
        ),
        sections=[
            stream_section(stream),
            Section(
                "The paper's problem, and its terms",
                f"The {SETTINGS.d} taps of a filter, most of them zero, are observed only through a sigmoid, with "
                "noise that is larger than the range of the sigmoid. Each method reads the rows once, in order.",
                tables=[Table(["term", "meaning"], [list(row) for row in TERMS.items()], "The words used below.")],
            ),
            Section("The methods compared", f"{findings}\n\n{comparison.text}", comparison.figures, comparison.tables),
        ],
        settings={**asdict(SETTINGS), "seeds": list(paper["seeds"])},
        conclusions=[stream_conclusion(stream)],
    )


# ---- the first part: a stream of rows, learned in batches, with intervals and a verdict --------------------

# Each run: the stream, the forgetting factor, and what it is called.
RUNS = {
    "steady": (False, 1.0, "a steady stream"),
    "changed": (True, 1.0, "sensor 1 changes halfway"),
    "forgetful": (True, 0.999, "the same, with forget=0.999"),
}
TRUTH = np.array([1.0, -0.5, 0.25, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])  # ten sensors, of which three matter
CHANGED_TO = -0.5  # the first coefficient, in the second half of the stream that changes
_ROWS, _BATCH = 20_000, 100
_SHOWN = 40  # new rows whose intervals are drawn


def learn_stream(seed: int) -> Results:
    """Learn the stream as each of `RUNS` says, with noise of variance 1.

    Returns
    -------
    dict
        rows : (m,), the numbers of rows after which estimates were recorded; for each run mean_* and std_* : (m, d),
        and verdict_*; observed, low, high and inside : (shown,), new rows of the steady
        stream.
    """
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(_ROWS + _SHOWN, len(TRUTH)))
    steady = X @ TRUTH + rng.normal(size=len(X))
    changed = steady + (np.arange(len(X)) >= _ROWS // 2) * X[:, 0] * (CHANGED_TO - TRUTH[0])
    found: Results = {}
    for name, (changes, forget, _) in RUNS.items():
        alg = kp.proximal_filter(kp.models.Linear(), kp.regularizers.Ridge(1.0), gamma=None, forget=forget)
        y = changed if changes else steady
        start = alg.init(np.zeros(len(TRUTH)))
        out = kp.run(alg, start, X[:_ROWS], y[:_ROWS], record_every=_BATCH, calibrate=True)
        assert out.calibration is not None  # it was asked for
        found |= {f"mean_{name}": out.trace.mean, f"std_{name}": np.sqrt(out.trace.var), "rows": out.trace.rows}
        found[f"verdict_{name}"] = out.calibration.verdict()
        if not changes:
            low, high = out.state.interval(X[_ROWS:])
            new = y[_ROWS:]
            found |= {"observed": new, "low": low, "high": high, "inside": (low <= new) & (new <= high)}
    return found


def stream_conclusion(found: Results) -> str:
    """What the runs show, in two sentences."""
    verdicts = {name: found[f"verdict_{name}"] for name in RUNS}
    words = {name: f"{verdict.word} ({verdict.coverage:.1%} covered)" for name, verdict in verdicts.items()}
    return (
        f"95% intervals, stated before each row was learned: {words['steady']} on a steady stream. After a change of "
        f"one coefficient the verdict is {words['changed']}; with forgetting, which it recommends, it is "
        f"{words['forgetful']}."
    )


def stream_section(found: Results) -> Section:
    """The section of the page: what was learned, how sure it is, and what the verdict says."""
    text = (
        f"Ten sensors are read {_ROWS:,} times, in batches of {_BATCH}. Each batch is learned once and let go. At any "
        "time the model has an estimate of each sensor's coefficient, how sure it is of it, and an interval for the "
        "next measurement. Every row is predicted before it is learned, so that the model knows how good its "
        "predictions were; its verdict says so in words, and what to change."
        "\n\nIn code: `alg = kp.proximal_filter(kp.models.Linear(), kp.regularizers.Ridge(1.0), gamma=None)`, `out = "
        "kp.run(alg, alg.init(np.zeros(10)), X, y, calibrate=True)`, `out.state.interval(new)` and "
        "`out.calibration.verdict()`; or `KalproxRegressor`, with scikit-learn's methods."
    )
    table = Table(
        columns=["stream", "rows judged", "within 95% intervals", "verdict"],
        rows=[
            [words, f"{verdict.rows:,.0f}", f"{verdict.coverage:.1%}", str(verdict).split(" Over ")[0]]
            for name, (_, _, words) in RUNS.items()
            if (verdict := found[f"verdict_{name}"])
        ],
        caption="The rows of the first batch are not judged: nothing was known when they came.",
    )
    return Section("A stream with intervals", text, _figures(found), [table])


def _figures(found: Results) -> list[Figure]:
    inside = found["inside"]
    numbers: Results = {key: value for key, value in found.items() if key.startswith(("mean_", "std_"))}
    return [
        Figure(
            "demo-coefficients",
            "The coefficients along the stream",
            "Bands: the estimate ±2 standard errors. Dashed: the true coefficients. Grey: the seven sensors without "
            "effect.",
            numbers | {"rows": found["rows"], "truth": list(TRUTH)},
            partial(_draw_coefficients, found),
            (7.8, 3.4),
            narrow_height=5.6,
        ),
        Figure(
            "demo-intervals",
            "New measurements and their 95% intervals",
            f"The intervals were stated before the measurements: {inside.sum()} of {len(inside)} lie inside. Crosses "
            "lie outside.",
            {key: found[key] for key in ("observed", "low", "high")},
            partial(_draw_intervals, found),
            (7.8, 2.8),
        ),
    ]


def _draw_coefficients(found: Results, canvas: "matplotlib.figure.Figure") -> None:
    left, right = canvas.subplots(2, 1) if is_narrow(canvas) else canvas.subplots(1, 2, sharey=True)
    rows, matter = found["rows"], np.flatnonzero(TRUTH)
    dashed = {"color": INK, "linewidth": 0.9, "linestyle": (0, (4, 3))}
    mean, reach = found["mean_steady"], 2 * found["std_steady"]
    lines(left, rows, mean, [f"sensor {j + 1}" for j in matter], matter, (mean - reach, mean + reach))
    for value in np.unique(TRUTH):
        left.axhline(value, **dashed)
    left.set(xscale="log", title="a steady stream", xlabel="rows learned", ylabel="coefficient")
    runs = ("changed", "forgetful")
    mean, std = (np.column_stack([found[f"{what}_{run}"][:, 0] for run in runs]) for what in ("mean", "std"))
    labels = [f"forget={RUNS[run][1]:g}" for run in runs]
    lines(right, rows, mean, labels, np.arange(len(runs)), (mean - 2 * std, mean + 2 * std))
    halves = np.where(rows <= _ROWS // 2, TRUTH[0], CHANGED_TO)
    right.plot(rows, halves, drawstyle="steps", **dashed)
    right.set(title="sensor 1, which changes", xlabel="rows learned")
    for ax in (left, right):
        thousands(ax.xaxis)
    left.legend(loc="upper right", bbox_to_anchor=(1.0, 0.85), ncols=2)  # between the first sensor and the others
    right.legend(loc="lower left")


def _draw_intervals(found: Results, canvas: "matplotlib.figure.Figure") -> None:
    ax = canvas.subplots()
    observed, inside = found["observed"], found["inside"]
    index = np.arange(1, len(observed) + 1)
    ax.vlines(index, found["low"], found["high"], color=LINES[0][0], alpha=0.35, linewidth=4)
    ax.plot(index[inside], observed[inside], "o", color=INK, markersize=3.6)
    ax.plot(index[~inside], observed[~inside], "x", color=LINES[1][0], markersize=6, markeredgewidth=1.8)
    ax.set(xlabel="new row", ylabel="measurement")
    ax.grid(visible=False, axis="x")
