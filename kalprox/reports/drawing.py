"""What draws a figure with one plot."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kalprox.display.axes import label_ends

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["drawn"]


def drawn(
    plot: Callable[..., None], *values: Any, finish: "Callable[[Axes], Any]" = label_ends
) -> "Callable[[Figure], None]":
    """Return what draws a plot of `values` on the axes of a figure, and then explains its lines by `finish`."""

    def draw(fig: "Figure") -> None:
        ax = fig.subplots()
        plot(ax, *values)
        finish(ax)

    return draw
