"""The demonstration: a stream with intervals, and the paper's problem in a small size, by its method and by ours."""

from dataclasses import asdict
from functools import partial
from os import PathLike

from kalprox.display.progress import progress_bar
from kalprox.pages import Page, Section, Table
from kalprox.paper import demo_stream, sparse
from kalprox.paper.cache import cached_all

__all__ = ["SETTINGS", "TERMS", "page"]

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
        stream = demo_stream.compute(seed)
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
            demo_stream.section(stream),
            Section(
                "The paper's problem, and its terms",
                f"The {SETTINGS.d} taps of a filter, most of them zero, are observed only through a sigmoid, with "
                "noise that is larger than the range of the sigmoid. Each method reads the rows once, in order.",
                tables=[Table(["term", "meaning"], [list(row) for row in TERMS.items()], "The words used below.")],
            ),
            Section("The methods compared", f"{findings}\n\n{comparison.text}", comparison.figures, comparison.tables),
        ],
        settings={**asdict(SETTINGS), "seeds": list(paper["seeds"])},
        conclusions=[demo_stream.conclusion(stream)],
    )
