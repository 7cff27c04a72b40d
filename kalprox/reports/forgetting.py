"""The weights of the ways to forget, in the page of a model that was fitted with forget="auto"."""

from kalprox.jobs.model import TableModel
from kalprox.learning.mixed import MixedBelief
from kalprox.learning.summary import about_forgetting
from kalprox.pages import Figure, Section

__all__ = ["sections"]


def sections(fitted: TableModel) -> list[Section]:
    """The section of a report about the weights of the ways to forget; none for a model with one way."""
    belief = fitted.belief
    if not isinstance(belief, MixedBelief):
        return []
    record = belief.forget_weights
    figure = Figure(
        "forgetting",
        "Weights of the ways to forget",
        "The probability of each way to forget along the rows, by how well it has predicted. A number is a forgetting "
        "factor; with 'intercept' only the intercept moves, by steps of this variance in units of the noise variance.",
        {"rows": record.rows, "weights": record.weights},
        lambda fig: record.plot(fig.subplots()),
        (6.8, 3.6),
    )
    text = (
        "Several ways to forget old rows were run side by side, and mixed by how well each predicted the next row; "
        f"at the end: {about_forgetting(belief)['forget'].removeprefix('auto: ')}."
    )
    return [Section("Forgetting", text, [figure])]
