"""Pages and figures: their contents, and the files that they are written to."""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kalprox.base.files import atomic_write
from kalprox.display.axes import NARROW, STYLE
from kalprox.display.tables import Table

if TYPE_CHECKING:
    import matplotlib.figure

# By default each format includes dates and addresses in its metadata; None leaves them out.
METADATA: dict[str, dict[str, None]] = {
    "svg": dict.fromkeys(("Creator", "Date", "Format", "Type")),
    "pdf": dict.fromkeys(("CreationDate", "Creator", "Producer")),
    "png": {"Software": None},
}


@dataclass(frozen=True)
class Figure:
    """A figure of a page.

    Parameters
    ----------
    name : str
        The name of the figure's files, without a suffix.
    title : str
    caption : str
        The settings of the experiment, and how to read the figure.
    numbers : dict
        All numbers in the drawing, which are written to a JSON file beside it; see `to_json` for the types.
    draw : callable
        `draw(fig)` draws onto an empty matplotlib figure, which on narrow screens is 3.9 inches wide; see
        `kalprox.display.axes.is_narrow`.
    size : tuple of float
        Width and height in inches.
    narrow_height : float, optional
        The height in inches on narrow screens. By default it is that of `size`, but at most 3.4.
    """

    name: str
    title: str
    caption: str
    numbers: dict[str, Any]
    draw: Callable[["matplotlib.figure.Figure"], Any]
    size: tuple[float, float] = (6.4, 4.0)
    narrow_height: float | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", self.name):
            raise ValueError(
                "name must be a file name without a suffix, made of letters, digits, '_', '.' and '-'; "
                f"got {self.name!r}."
            )

    @property
    def narrow_size(self) -> tuple[float, float] | None:
        """Width and height in inches on narrow screens; None if the figure is narrow as it is."""
        if self.size[0] <= 1.1 * NARROW:
            return None
        return NARROW, self.narrow_height or min(self.size[1], 3.4)


def write(figure: Figure, folder: str | Path, formats: Sequence[str] = ("svg",)) -> dict[str, Path]:
    """Write a figure and its numbers to files. The same figure gives the same bytes.

    Parameters
    ----------
    figure : Figure
    folder : str or Path
        The folder, which is created if needed.
    formats : sequence of str
        Any of "svg", "pdf" and "png".

    Returns
    -------
    dict of str to Path
        The path of each format, and of the numbers ("json"). The figure is drawn in all formats before the first file
        is written, and each file is written atomically.
    """
    contents = {form: render(figure, form) for form in formats}
    numbers = json.dumps(to_json(figure.numbers), indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    contents["json"] = numbers.encode()
    return {form: atomic_write(Path(folder) / f"{figure.name}.{form}", content) for form, content in contents.items()}


def render(figure: Figure, form: str, size: tuple[float, float] | None = None) -> bytes:
    """The content of the figure's SVG, PDF or PNG file; `size` replaces that of the figure."""
    import matplotlib.style
    from matplotlib.figure import Figure as Canvas

    if form not in METADATA:
        raise ValueError(f"the format of a figure must be one of {', '.join(METADATA)}; got {form!r}. Change formats.")
    with matplotlib.style.context(STYLE, after_reset=True):
        # "compressed" is the constrained layout that keeps square axes and their colour bars together
        canvas = Canvas(figsize=size or figure.size, layout="compressed")
        figure.draw(canvas)
        content = BytesIO()
        canvas.savefig(content, format=form, dpi=200, metadata=METADATA[form])
    return content.getvalue()


def to_json(value: Any, where: str = "numbers") -> Any:
    """`value` in JSON's types: arrays become lists, and numbers that are not finite become None.

    >>> to_json({"error": np.array([0.5, np.inf]), "rows": np.int64(3)})
    {'error': [0.5, None], 'rows': 3}
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): to_json(item, f"{where}[{key!r}]") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if hasattr(value, "__array__") and np.asarray(value).dtype.kind in "biufU":
        return to_json(np.asarray(value).tolist(), where)
    raise TypeError(f"{where} must be numbers, text, lists, dicts or arrays of them; got {type(value).__name__}.")


@dataclass(frozen=True)
class Section:
    """A heading and text, followed by figures, followed by tables.

    In the text, in captions, conclusions and cells, `code` and **bold** are marked as in Markdown; an empty line in the
    text begins a new paragraph. All else is shown literally.
    """

    title: str
    text: str = ""
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()


@dataclass(frozen=True)
class Page:
    """The contents of a page: headline and conclusions come first; the settings and the package versions come last.

    A line of the headline has a `label`, a `text`, and says whether it is a `doubt`.
    """

    title: str
    summary: str
    sections: Sequence[Section]
    settings: dict[str, Any] = field(default_factory=dict)
    conclusions: Sequence[str] = ()
    headline: Sequence[Any] = ()
