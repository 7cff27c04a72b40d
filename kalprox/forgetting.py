"""Kinds of forgetting: how a model lets go of old rows, so that it follows coefficients that drift.

The parameter `forget` of an estimator is a number, which means `ByRow`, or one of these objects. They hold no rows:
what is kept of the rows is part of the model that learns.
"""

import math
import numbers
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

import numpy as np

from kalprox.base.arrays import Array
from kalprox.base.checks import check_positive

__all__ = ["ByRow", "ByTime", "RandomWalk", "Window"]

_DAY = np.timedelta64(1, "D")
_FORGOTTEN = 1e-100  # what is left of a weight, at least: nothing to any later row


@dataclass(frozen=True)
class Forgetting:
    """The base class of the kinds of forgetting.

    Attributes
    ----------
    name : str
        One word for the kind, by which `kalprox.learning.rules` says what it goes with.
    help : str
        One line for the command line.
    needs_times : bool
        Whether every row needs a time.
    per_row : float
        What a row multiplies the weights of all rows before it by.
    of_intercept : float
        The variance of the steps, if only the intercept walks.
    fades : bool
        Whether rows are forgotten by multiplying their weights, which every likelihood and link allows.
    walks : bool
        Whether the coefficients take a random step before every row; `steps` returns its variances.
    keeps_moments : bool
        Whether the information is still that of weighted rows, so that it holds the means and spreads of the columns.
    window : int or None
        The number of rows that are learned, the last ones, if only they are.

    Examples
    --------
    >>> Window(100).window, ByRow(0.5).left(0.0, 30.0)  # time alone leaves everything
    (100, np.float64(1.0))
    """

    name: ClassVar[str]
    help: ClassVar[str]
    needs_times: ClassVar[bool] = False
    per_row: ClassVar[float] = 1.0
    of_intercept: ClassVar[float] = 0.0
    fades: ClassVar[bool] = False
    walks: ClassVar[bool] = False
    keeps_moments: ClassVar[bool] = True
    window: ClassVar[int | None] = None

    @property
    def forgets(self) -> bool:
        """Whether anything is ever forgotten."""
        return True

    def describe(self) -> str:
        """Say how rows are forgotten, for summaries and reports.

        Returns
        -------
        str

        Examples
        --------
        >>> Window(100).describe()
        'a window, the last 100 rows'
        """
        raise NotImplementedError

    def half_lives(self, since: Any, now: Any) -> Any:
        """Return how often the weights of rows are halved from one time to another.

        From a to c it is as often as from a to b and from b to c together.

        Parameters
        ----------
        since, now : float or array

        Returns
        -------
        float or array
            Zero for kinds that do not forget by time.

        Examples
        --------
        >>> ByTime(10.0).half_lives(5.0, 25.0)
        2.0
        """
        return 0.0 * (now - since)

    def left(self, since: Any, now: Any) -> Any:
        """Return the share of a weight that is left some time later: at least 1e-100, so that its square is not 0.

        Parameters
        ----------
        since, now : float or array

        Returns
        -------
        float or array

        Examples
        --------
        >>> float(ByTime(10.0).left(0.0, 20.0))
        0.25
        """
        with np.errstate(under="ignore"):
            return np.maximum(np.exp2(-np.asarray(self.half_lives(since, now))), _FORGOTTEN)

    def together(self, times: Array | None) -> int | None:
        """Return how many rows may be predicted together, so that at most half of what is known is forgotten meanwhile.

        Parameters
        ----------
        times : array or None
            The times of the rows that come.

        Returns
        -------
        int or None
            None if it depends on what is known.

        Examples
        --------
        >>> ByRow(0.998).together(None), ByTime(1.0).together(np.array([0.0, 0.5, 2.0])), Window(160).together(None)
        (346, 2, 10)
        """
        return None

    def steps(self, d: int, *, intercept: bool) -> Array:
        """Return the variances of the steps of d coefficients, after that of the intercept if there is one.

        Parameters
        ----------
        d : int
            The number of coefficients.
        intercept : bool
            Whether there is an intercept.

        Returns
        -------
        array of shape (d,) or (1 + d,)
            In units of the noise variance; zero for kinds that do not let the coefficients walk.

        Examples
        --------
        >>> RandomWalk(0, intercept=0.5).steps(2, intercept=True)
        array([0.5, 0. , 0. ])
        """
        return np.zeros(d + intercept)


@dataclass(frozen=True)
class ByRow(Forgetting):
    """Forgetting by row: every new row multiplies the weights of all earlier rows by a factor.

    Parameters
    ----------
    factor : float
        In (0, 1]; 1 means no forgetting. The weight of a row is halved after log(0.5) / log(factor) more rows.

    Examples
    --------
    >>> ByRow(0.998).describe()
    '0.998, the weight of a row is halved after 346 more rows'
    """

    factor: float
    fades: ClassVar[bool] = True

    def __post_init__(self) -> None:
        factor: Any = self.factor
        if isinstance(factor, bool) or not isinstance(factor, numbers.Real) or not 0 < float(factor) <= 1:
            raise ValueError(f"forget must lie in (0, 1], where 1 means no forgetting; got {factor!r}.")

    @property
    def name(self) -> str:  # type: ignore[override]
        """Whether anything is forgotten, in one word."""
        return "number" if self.forgets else "none"

    @property
    def per_row(self) -> float:  # type: ignore[override]
        """The factor."""
        return self.factor

    @property
    def forgets(self) -> bool:
        """Whether anything is ever forgotten."""
        return self.factor != 1

    def together(self, times: Array | None) -> int:
        return max(1, int(math.log(0.5) / math.log(self.factor)))

    def describe(self) -> str:
        """Say how rows are forgotten; see `Forgetting.describe`.

        Returns
        -------
        str
        """
        if not self.forgets:
            return "nothing"
        half_life = math.log(0.5) / math.log(self.factor)
        return f"{self.factor:g}, the weight of a row is halved after {half_life:,.0f} more rows"


@dataclass(frozen=True)
class ByTime(Forgetting):
    """Forgetting by time: the weight of a row is halved with every half-life since its time, however many rows came.

    Every row has a time, which is not before that of the row before it: `times` in `fit`, `partial_fit` and
    `prequential`. The model is that of least squares with the weights 2^(-elapsed / half_life), however the rows are
    divided into batches. What is known fades also while no row comes: `predict` takes a time.

    Parameters
    ----------
    half_life : float or timedelta
        In the units of the times. Times that are dates count in days: 0.5 is twelve hours.

    Examples
    --------
    >>> ByTime(timedelta(hours=12)).half_life
    0.5
    >>> ByTime(7.0).describe()
    'by time, the weight of a row is halved after 7 (days, if the times are dates)'
    """

    half_life: float
    name: ClassVar[str] = "time"
    help: ClassVar[str] = (
        "The weight of a row is halved with every half_life since its time, in the units of the times, in days for "
        "dates, or with a unit such as 12h."
    )
    needs_times: ClassVar[bool] = True
    fades: ClassVar[bool] = True

    def __post_init__(self) -> None:
        given: Any = self.half_life
        if isinstance(given, (timedelta, np.timedelta64)):
            given = float(np.timedelta64(given) / _DAY)
        if isinstance(given, bool) or not isinstance(given, numbers.Real):
            raise ValueError(f"half_life must be a number > 0 in units of the times, or a timedelta; got {given!r}.")
        check_positive("half_life", float(given))
        object.__setattr__(self, "half_life", float(given))

    def half_lives(self, since: Any, now: Any) -> Any:
        return (now - since) / self.half_life

    def together(self, times: Array | None) -> int:
        assert times is not None
        return max(1, int(np.searchsorted(self.half_lives(times[0], times), 1.0, side="right")))

    def describe(self) -> str:
        """Say how rows are forgotten; see `Forgetting.describe`.

        Returns
        -------
        str
        """
        return f"by time, the weight of a row is halved after {self.half_life:g} (days, if the times are dates)"


@dataclass(frozen=True)
class Window(Forgetting):
    """A window: the model is that of the last rows, exactly, and of none before them.

    The rows of the window are held, and saved with the model. A row counts once, whatever its weight. Linear models
    with the Gaussian likelihood only.

    Parameters
    ----------
    rows : int
        The number of rows, at least 2.

    Examples
    --------
    >>> Window(1000).describe()
    'a window, the last 1,000 rows'
    """

    rows: int
    name: ClassVar[str] = "window"
    help: ClassVar[str] = "Only the last rows are learned, exactly."

    def __post_init__(self) -> None:
        if not (isinstance(self.rows, numbers.Integral) and not isinstance(self.rows, bool) and self.rows >= 2):
            raise ValueError(f"the rows of a Window must be a whole number >= 2; got {self.rows!r}.")
        object.__setattr__(self, "rows", int(self.rows))

    @property
    def window(self) -> int:  # type: ignore[override]
        """The number of rows."""
        return self.rows

    def together(self, times: Array | None) -> int:
        return max(1, self.rows // 16)

    def describe(self) -> str:
        """Say how rows are forgotten; see `Forgetting.describe`.

        Returns
        -------
        str
        """
        return f"a window, the last {self.rows:,} rows"


@dataclass(frozen=True)
class RandomWalk(Forgetting):
    """Coefficients that walk: before every row, each coefficient moves by a normal step of variance q.

    It is the Kalman filter of theta_k = theta_(k-1) + N(0, q), started from no knowledge, and computed as information:
    directions that no row determines stay undetermined. A prediction is about the next row, and a penalty about the
    coefficients as they are now. Linear models with the Gaussian likelihood only; a row is one step, whatever its
    weight.

    Parameters
    ----------
    q : float or sequence of float
        The variance of a step, in units of the noise variance: one number, or one for each coefficient. 0 is a
        coefficient that does not move.
    intercept : float, optional
        That of the intercept. The default is q, if that is one number. `RandomWalk(0, intercept=q)` lets only the
        intercept walk.

    Examples
    --------
    >>> RandomWalk(0, intercept=0.01).describe()
    'a random walk of the intercept, 0.01 of the noise variance per row'
    >>> RandomWalk(1e-4).steps(2, intercept=True)
    array([0.0001, 0.0001, 0.0001])
    """

    q: float | tuple[float, ...]
    intercept: float | None = None
    name: ClassVar[str] = "walk"
    help: ClassVar[str] = (
        "Every coefficient takes a random step before each row, of variance q in units of the noise variance; that of "
        "the intercept is q too, unless it is given, as in walk,q=0,intercept=0.01."
    )
    walks: ClassVar[bool] = True
    keeps_moments: ClassVar[bool] = False

    def __post_init__(self) -> None:
        q = np.asarray(self.q, float)
        if q.ndim > 1 or q.size == 0:
            raise ValueError(f"q must be a number >= 0, or one for each coefficient; got {self.q!r}.")
        check_positive("q", q, strict=False)
        object.__setattr__(self, "q", float(q) if q.ndim == 0 else tuple(q.tolist()))
        if self.intercept is not None:
            check_positive("intercept", self.intercept, strict=False)
            object.__setattr__(self, "intercept", float(self.intercept))

    @property
    def forgets(self) -> bool:
        """Whether anything is ever forgotten."""
        return bool(np.any(self.q)) or bool(self.intercept)

    @property
    def of_intercept(self) -> float:  # type: ignore[override]
        """The variance of the steps if only the intercept walks; 0 if coefficients walk, too, or nothing does."""
        return 0.0 if np.any(self.q) else self.intercept or 0.0

    def steps(self, d: int, *, intercept: bool) -> Array:
        if isinstance(self.q, tuple) and len(self.q) != d:
            raise ValueError(f"q must be a number, or have one entry per coefficient, {d}; got {len(self.q)} entries.")
        if not intercept:
            return np.array(np.broadcast_to(self.q, d), float)
        if self.intercept is None and isinstance(self.q, tuple):
            raise ValueError(
                "RandomWalk needs the variance of the steps of the intercept too, if q has one entry per coefficient: "
                "give intercept=..., 0 if it does not move."
            )
        first = self.q if self.intercept is None else self.intercept
        return np.append(first, np.broadcast_to(self.q, d)).astype(float)

    def describe(self) -> str:
        """Say how rows are forgotten; see `Forgetting.describe`.

        Returns
        -------
        str
        """
        q = f"{self.q:g}" if isinstance(self.q, float) else f"{min(self.q):g} to {max(self.q):g}"
        both = "" if self.intercept is None else f", {self.intercept:g} for the intercept"
        if not np.any(self.q):
            return f"a random walk of the intercept, {self.intercept or 0:g} of the noise variance per row"
        return f"a random walk, steps of {q}{both} of the noise variance per row"


@dataclass(frozen=True)
class Auto(Forgetting):
    """Several ways to forget, mixed by how well each predicts: what forget="auto" means.

    Examples
    --------
    >>> Auto().describe()
    'auto, several ways to forget, mixed by how well each predicts'
    """

    name: ClassVar[str] = "auto"
    fades: ClassVar[bool] = True

    def describe(self) -> str:
        return "auto, several ways to forget, mixed by how well each predicts"


FORGETTINGS: dict[str, type[Forgetting]] = {"time": ByTime, "window": Window, "walk": RandomWalk}


def forgetting_of(forget: Any) -> Forgetting:
    """Return the kind of forgetting that the parameter `forget` means; raise a ValueError if it means none.

    Examples
    --------
    >>> forgetting_of(0.998)
    ByRow(factor=0.998)
    """
    if isinstance(forget, Forgetting):
        return forget
    if isinstance(forget, numbers.Real) and not isinstance(forget, bool):
        return ByRow(float(forget))
    if isinstance(forget, str) and forget == "auto":
        return Auto()
    raise ValueError(
        "forget must lie in (0, 1], where 1 means no forgetting, or be 'auto', or one of kalprox.forgetting: ByTime, "
        f"Window, RandomWalk; got {forget!r}."
    )
