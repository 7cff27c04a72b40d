"""Labels of classes, and the targets that stand for them: 0 and 1 for two classes, a column for each of several."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import assert_all_finite, column_or_1d

from kalprox.base.arrays import Array
from kalprox.base.checks import check_positive
from kalprox.sources import Block, Folded, Source

_PLAIN = 64  # labels of rows that may be learned without further checks
_SHOWN = 5  # labels that an error message names
_MOST = 10_000  # labels, beyond which the target has numbers rather than classes
_BLOCK_BYTES = 1 << 25  # of the Jacobian of a block of rows with several classes
T = TypeVar("T")


def checked_labels(y: Any, *, may_be_missing: bool = False) -> tuple[Array, Array]:
    """Return the labels of rows as a vector, and which of them are missing, None or NaN.

    Parameters
    ----------
    y : array-like of shape (n,)
    may_be_missing : bool
        Otherwise a missing label raises a ValueError.
    """
    labels = column_or_1d(y, warn=True)
    missing = np.zeros(len(labels), bool)
    if labels.dtype.kind == "O":
        missing = np.array([one is None or one != one for one in labels], bool)
    elif labels.dtype.kind in "fc":
        missing = np.isnan(labels)
        assert_all_finite(labels[~missing], input_name="y")
    if missing.any() and not may_be_missing:
        if labels.dtype.kind != "O":
            assert_all_finite(labels, input_name="y")
        raise ValueError(
            f"y must have a label in every row; {int(missing.sum())} of {len(labels)} are missing (None or NaN), the "
            f"first in row {int(np.argmax(missing))}. Leave these rows out, or set missing='drop'."
        )
    try:
        check_classification_targets(labels[~missing])
    except TypeError as error:
        kinds = sorted({type(label).__name__ for label in labels[~missing].tolist()})
        if len(kinds) < 2:
            raise
        raise TypeError(
            f"y must have labels of one type, which can be sorted; got {' and '.join(kinds)}. Make all of them text."
        ) from error
    return labels, missing


def checked_classes(classes: Any, weights: Array | None = None) -> Array:
    """Return different labels, sorted; raise a ValueError unless there are at least two, in rows of positive weight."""
    labels = column_or_1d(classes)
    found = np.unique(labels)
    if weights is not None and len(weighted := np.unique(labels[weights > 0])) < 2 <= len(found):
        raise ValueError(f"y must have at least two classes in rows of positive weight; got {weighted.tolist()}.")
    if len(found) < 2:
        raise ValueError(
            f"y must have at least two classes; got one class only, {found.tolist()}. If the other classes come later, "
            "use partial_fit with all classes."
        )
    return found


def check_class_weight(class_weight: Any, classes: Array) -> None:
    """Raise a ValueError if weights are given for labels that are not among the classes."""
    labels = classes.tolist()
    if isinstance(class_weight, Mapping) and (unknown := [label for label in class_weight if label not in labels]):
        shown = ", ".join(map(repr, unknown[:_SHOWN]))
        raise ValueError(f"class_weight has labels that are not among the classes, {shown}; the classes are {labels}.")


def class_weights(class_weight: Any, labels: Array, weights: Array) -> Array:
    """Return the weight of the class of each row: as given, or such that all classes weigh as much.

    Parameters
    ----------
    class_weight : dict or "balanced"
        A class that a dict does not have has the weight 1.
    labels, weights : arrays of shape (n,)
        Those of the rows.

    Examples
    --------
    >>> class_weights("balanced", np.array(["a", "b", "b"]), np.ones(3))
    array([1.5 , 0.75, 0.75])
    """
    classes, codes = np.unique(labels, return_inverse=True)
    if isinstance(class_weight, str):
        if class_weight != "balanced":
            raise ValueError(f"class_weight must be a dict, 'balanced' or None; got {class_weight!r}.")
        each = np.bincount(codes, weights)
        return np.where(each > 0, each.sum() / (len(classes) * np.where(each > 0, each, 1)), 1.0)[codes]
    if not isinstance(class_weight, Mapping):
        raise ValueError(f"class_weight must be a dict, 'balanced' or None; got {class_weight!r}.")
    each = np.array([float(class_weight.get(label, 1.0)) for label in classes.tolist()])
    check_positive("class_weight", each, strict=False)
    return each[codes]


def plain_target(y: Any, given: Any, classes: Array) -> Array | None:
    """Return the targets of a few rows whose labels are plainly classes; None if they must be checked.

    The checks of labels take longer than learning the rows.

    Parameters
    ----------
    y, given : Any
        The labels, and the classes or None, as they were given.
    classes : array of shape (m,)
        The classes of the model.

    Examples
    --------
    >>> classes = np.array(["a", "b"])
    >>> plain_target(["b"], None, classes), plain_target(["c"], ["a", "b"], classes)
    (array([1.]), None)
    >>> plain_target([2], None, np.array([1, 2, 3]))
    array([[0., 1., 0.]])
    """
    if type(y) not in (np.ndarray, list, tuple) or not 0 < len(y) <= _PLAIN or len(classes) < 2:
        return None
    labels, known = list(y), classes.tolist()
    if not (given is None or list(given) == known):
        return None
    if not all(isinstance(label, (str, float, int, np.generic)) and label in known for label in labels):
        return None
    codes = [known.index(label) for label in labels]
    return np.array(codes, float) if len(known) == 2 else np.eye(len(known))[codes]


def class_targets(labels: Array, missing: Array, classes: Array) -> Array:
    """Return the targets of rows: 0 or 1 for two classes, else rows with a 1 for their class; NaN for missing labels.

    A label that is not among the classes raises a ValueError.

    Examples
    --------
    >>> class_targets(np.array(["b", "a"]), np.zeros(2, bool), np.array(["a", "b"]))
    array([1., 0.])
    """
    known = labels[~missing]
    try:
        order = np.argsort(classes)  # those of files have an order of their own
        codes = order[np.minimum(np.searchsorted(classes, known, sorter=order), len(classes) - 1)]
        found = classes[codes] == known
    except TypeError:  # labels of another type cannot be compared
        codes, found = np.zeros(len(known), int), np.zeros(len(known), bool)
    if not np.all(found):
        others = sorted({str(one) for one in known[~np.broadcast_to(found, len(known))]})
        shown = ", ".join(map(repr, others[:_SHOWN])) + (", ..." if len(others) > _SHOWN else "")
        raise ValueError(
            f"y has labels that are not among the classes, {shown}; the classes are {classes.tolist()}. Name all "
            "classes in the first call of partial_fit, or correct the labels."
        )
    shape = (len(labels),) if len(classes) == 2 else (len(labels), len(classes))
    targets = np.full(shape, np.nan)
    targets[~missing] = codes if len(classes) == 2 else np.eye(len(classes))[codes]
    return targets


def labels_of_targets(y: Array, classes: Any) -> Array:
    """Return the labels that `class_targets` made these targets of."""
    found: Array = np.asarray(classes)[y.astype(int) if y.ndim == 1 else y.argmax(axis=1)]
    return found


def block_rows(d: int, classes: int) -> int:
    """Return the number of rows of a block of d columns: the Jacobian of m > 2 classes has m^2 d numbers for each row.

    Examples
    --------
    >>> block_rows(9, 10)
    4194
    """
    return max(16, _BLOCK_BYTES // (8 * (d + 1) * classes**2))


@dataclass(frozen=True)
class LabelCounts:
    """The sum of the weights of the rows with each label. Label counts add."""

    weights: dict[Any, float]

    @classmethod
    def of(cls, block: Block) -> "LabelCounts":
        """Return those of a block whose targets are labels."""
        labels = block.y.tolist()
        weights = [1.0] * len(labels) if block.weights is None else block.weights.tolist()
        return cls({})._with(zip(labels, weights, strict=True))

    def __add__(self, other: "LabelCounts") -> "LabelCounts":
        return self._with(other.weights.items())

    def _with(self, more: Iterable[tuple[Any, float]]) -> "LabelCounts":
        found = dict(self.weights)
        for label, weight in more:
            found[label] = found.get(label, 0.0) + weight
        if len(found) > _MOST:
            raise ValueError(
                f"y must hold the labels of classes; it has more than {_MOST:,} different values. Use KalproxRegressor "
                "for numbers."
            )
        return LabelCounts(found)


@dataclass(frozen=True)
class ClassSource:
    """A source of rows with labels, as one of rows with targets of classes; see `class_targets`.

    Parameters
    ----------
    source : Source
        Its targets are labels.
    classes : array of shape (m,)
    weights : array of shape (m,), optional
        The weights of the classes, by which those of their rows are multiplied.
    """

    source: Source
    classes: Array
    weights: Array | None = None

    @property
    def groups(self) -> Any:
        """What names the clusters of the rows; None without clusters."""
        return getattr(self.source, "groups", None)

    def fold(self, part: Callable[[Block], T]) -> Folded[T]:
        """Make one pass; see `kalprox.sources.Source`."""
        return self.source.fold(partial(_through, self.classes, self.weights, part))


def _through(classes: Array, class_weights: Array | None, part: Callable[[Block], T], block: Block) -> T:
    m, known = len(classes), np.zeros(len(block), bool)
    block = replace(block, y=class_targets(block.y, known, classes))
    if class_weights is not None:
        own = labels_of_targets(block.y, class_weights)
        block = replace(block, weights=own if block.weights is None else own * block.weights)
    size = len(block) if m == 2 else block_rows(block.X.shape[1], m)
    total: Any = None
    for start in range(0, len(block), size):
        value: Any = part(block.part(start, start + size))
        total = value if total is None else total + value
    found: T = total
    return found
