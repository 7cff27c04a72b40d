"""Running sums over predictions and the observations that followed, from which every diagnostic is read.

Predict each block before learning it, and give predictions and observations to a `Calibration`. Every error is turned
into its normal score u = Phi^-1(F(y)), where F is the predictive distribution function, normal or Student's. If the
predictions are right, u is standard normal whatever the degrees of freedom, so that every bound is exact. Counts and
classes have subclasses, with scores that are randomised between F(y - 1) and F(y): they are standard normal, too.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from scipy import special

from kalprox.base.arrays import Array, is_traced, pytree, static
from kalprox.base.checks import check_finite, check_is, check_positive
from kalprox.base.control import call_on_host
from kalprox.base.tree import Sizes, expect, leaf
from kalprox.calibration.checks import (
    FIRST_LENGTH,
    LAGS,
    SEGMENTS,
    VALUES,
    Check,
    Dependence,
    Stream,
    correlated,
    drifting,
    expect_possible,
    join,
    prolong,
    tails,
    unequal_spread,
)
from kalprox.calibration.curvature import Curvature
from kalprox.calibration.showing import Shown
from kalprox.calibration.verdict import (
    BINS,
    FEWEST_ROWS,
    LEVELS,
    MATERIAL,
    Changes,
    Range,
    Verdict,
    coverage_range,
    expected_ranges,
    spread_word,
)
from kalprox.kernel.scores import ROW_VALUES, add_scores
from kalprox.predictive import Predictive, Student, is_discrete, normal_scores


class Given(NamedTuple):
    """What cannot be computed from a row's mean and std: its log probability, its squared error, and its score."""

    log_prob: Array
    squared_error: Array
    scores: Array | None = None  # None if the family computes them from the mean and the std

    def of_target(self, j: int) -> "Given":
        """Return what was given of one target, where the arrays have a column for each."""
        return Given(*(None if a is None else (a if a.ndim == 1 else a[:, j]) for a in self))

    def part(self, which: Array) -> "Given":
        """Return what was given of some rows, by a mask."""
        return Given(*(None if a is None else a[which] for a in self))


class Rows(NamedTuple):
    """The rows of a block as they were predicted, and what came; see `Calibration.update`."""

    mean: Array
    std: Array
    y: Array
    dof: Any
    weights: Any = None  # an array, or None for rows of weight 1
    together: Any = None
    given: Given | None = None

    def checked(self) -> "Rows":
        """Return the rows as arrays of float64 of one shape; raise a ValueError if they cannot be rows."""
        y = np.asarray(self.y, float)
        if y.ndim > 1:
            raise ValueError(f"y must be a number or a vector of shape (b,); got shape {y.shape}.")
        y = np.atleast_1d(y)
        values = {"mean": self.mean, "std": self.std, "dof": self.dof}
        values["weights"] = 1.0 if self.weights is None else self.weights
        for name, value in values.items():
            value = np.asarray(value, float)
            if value.ndim and value.shape != y.shape:
                raise ValueError(f"{name} must be a number or have y's shape, {y.shape}; got shape {value.shape}.")
            values[name] = np.broadcast_to(value, y.shape)
        weights = values["weights"]
        check_positive("weights", weights, strict=False)
        check_finite("y", np.where(weights > 0, y, 0))
        negative = (values["std"] < 0) & (weights > 0)
        if negative.any():
            raise ValueError(f"std must be >= 0; got a negative one in {negative.sum()} row(s). Infinity says unknown.")
        together = None if self.together is None else np.broadcast_to(self.together, y.shape)
        return self._replace(y=y, together=together, **values)

    def part(self, which: Array) -> "Rows":
        """Return some of the rows, by a mask."""
        arrays = (None if a is None else a[which] for a in self[:6])
        return Rows(*arrays, None if self.given is None else self.given.part(which))  # type: ignore[call-arg]


class Judged(NamedTuple):
    """What else is read from a block of rows that was added: weights and scores are 0 for those that are not judged."""

    mean: Array
    scores: Array
    weights: Array


def added_rows(sums: Any, predictive: Any, rows: Rows) -> tuple[Rows, Judged]:
    """Add rows to the sums of a `Calibration`, in place; return those that are judged, and what was found of all.

    Parameters
    ----------
    sums : structured number of NumPy
        The vector of sums, by name.
    predictive : type
        The kind of distribution that the means, the scales and the degrees of freedom are those of.
    rows : Rows
        Checked ones.
    """
    mean, std, y, dof, weights, _, _ = rows
    judged = np.isfinite(mean) & np.isfinite(std) & np.isfinite(y) & (dof > 0) & (weights > 0)
    judged = judged & predictive.possible(y) if hasattr(predictive, "possible") else judged
    sums["undetermined"] += weights[~judged].sum()
    found = Judged(mean, np.zeros(len(y)), np.where(judged, weights, 0.0))
    rows = rows if judged.all() else rows.part(judged)
    mean, std, y, dof, w, together, given = rows
    e, count = y - mean, w.sum()
    u, log_prob = _scores(predictive, sums["segments"][:, 0, 0].sum(), rows)
    found.scores[judged] = u
    h = np.clip(u, -_LARGEST, _LARGEST)
    pairs = np.maximum((count if together is None else together) - 1, 0) / dof
    below = _weight_below(u, w)
    sums["rows"] += count
    sums["covered"] += below[BINS + len(LEVELS) : -1] - below[BINS : BINS + len(LEVELS)]
    sums["squares"] += u @ (u * w)
    sums["pit"] += np.diff(np.append(below[:BINS], below[-1]))
    sums["log_score"] += log_prob @ w
    sums["errors"] += e @ w
    sums["squared_errors"] += (e * e if given is None else given.squared_error) @ w
    sums["shared"] += pairs @ w
    sums["powers"] += np.vander(h, 5, increasing=True).T @ w
    prolong(sums, u, mean, pairs)
    return rows, found


def _scores(predictive: Any, before: float, rows: Rows) -> tuple[Array, Array]:
    """Return the normal scores of rows that follow so many others, and their log probabilities."""
    mean, std, y, dof, _, _, given = rows
    if given is not None and given.scores is not None:
        return given.scores, given.log_prob
    found = predictive.of_moments(mean, std, dof)
    if is_discrete(found):
        scores, log_prob = found.scores(y, uniforms(before + np.arange(len(y)), mean))
    else:
        scores, log_prob = normal_scores(found, y)
    return scores, log_prob if given is None else given.log_prob


def _weight_below(u: Array, weights: Array) -> Array:
    """The weight of the scores below each of `_ENDS`, after 0 and before all of it."""
    order = np.argsort(u)
    sums = np.concatenate([[0.0], np.cumsum(weights[order])])
    return np.concatenate([[0.0], sums[np.searchsorted(u[order], _ENDS)], sums[-1:]])


def added_by_kernel(sums: Array, rows: Rows) -> Judged | None:
    """Add rows to the sums of a `Calibration`, one vector, in place, as `added_rows` does.

    Return None, with nothing added, if these can be no rows, or if nothing is compiled.
    """
    y = np.asarray(rows.y, float)
    block = np.empty((ROW_VALUES, y.size))
    weights = 1.0 if rows.weights is None else rows.weights
    together = math.nan if rows.together is None else rows.together
    for i, value in enumerate((rows.mean, rows.std, y, rows.dof, weights, together)):
        if type(value) is not float and np.shape(value) not in ((), (y.size,)):
            return None
        block[i] = value
    return Judged(block[0], block[6], block[4]) if add_scores(sums, block, _KERNEL_ENDS) else None


_LARGEST = 30.0  # the bound of the scores whose powers are summed
_REACH = special.ndtri((1 + np.array(LEVELS)) / 2)
# The ends of the bins of the PIT, and of the central intervals, whose upper ends belong to them.
_ENDS = np.concatenate([special.ndtri(np.arange(1, BINS) / BINS), -_REACH, np.nextafter(_REACH, np.inf)])
_KERNEL_ENDS = np.concatenate([_ENDS[: BINS - 1], _REACH])


_WORD = 32
_DROPPED = np.uint32(7)  # bits of a prediction in single precision, which leaves it 16 after the point


def uniforms(numbers: Array, mean: Array) -> Array:
    """Return a number strictly between 0 and 1 for each row.

    The scores of classes and counts are randomised by it. A generator with a state would give other scores for other
    blocks, or after saving; a seed alone would give the same numbers to the streams of two machines, whose scores would
    not be independent when they are merged. So each number is a hash of the number of a row in its stream and of its
    prediction. Of the prediction it takes about five digits: the last ones depend on the processor, and the scores
    should not.

    The 32-bit words of the number of the row and one of its prediction, rounded, go through the finaliser of
    MurmurHash3, which changes every bit of the result with probability 1/2 if one bit of the word changes.

    Parameters
    ----------
    numbers : array of shape (b,)
        Whole numbers: those of the rows in their stream.
    mean : array of shape (b,)
        What was predicted.

    Returns
    -------
    array of shape (b,)

    Examples
    --------
    >>> v = uniforms(np.arange(1000.0), np.full(1000, 0.3))
    >>> bool(v.min() > 0), bool(v.max() < 1), round(float(v.mean()), 1)
    (True, True, 0.5)
    """
    with np.errstate(over="ignore"):
        single = (mean + 0.0).astype(np.float32)  # a sum with 0 turns -0 into 0, which is the same prediction
    whole = numbers.astype(np.uint64)
    mixed = np.full(len(mean), np.uint32(0x9E3779B9))
    for word in (whole & 0xFFFFFFFF, whole >> _WORD, single.view(np.uint32) >> _DROPPED):
        mixed = mixed ^ word.astype(np.uint32)
        for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
            mixed = (mixed ^ (mixed >> np.uint32(shift))) * np.uint32(factor)
        mixed = mixed ^ (mixed >> np.uint32(16))
    return (mixed + 0.5) * 2.0**-_WORD


_BULK = 1.25  # heavy tails explain errors that are too large, unless the inner half of them is this much too wide


class Findings(NamedTuple):
    """What is wrong with predictions of a kind.

    Attributes
    ----------
    checks : tuple of Check
        What was looked for.
    words : list of str
        What was found, the most important first.
    enough : bool
        Whether there are enough rows to say that nothing is wrong.
    measured : str
        What was measured, in words, where it is not the NIS and the coverages.
    """

    checks: tuple[Check, ...]
    words: list[str]
    enough: bool
    measured: str = ""


@pytree
class Calibration(Shown):
    """Sums over the rows scored so far; `Calibration()` has seen none. Calibrations add up: see `merge`.

    Weights are repetitions: 2 counts a row twice, and 0 not at all, whatever the row holds. A row whose predictive std
    or mean is infinite or NaN makes no claim that y could contradict, so it is counted in `undetermined` and nowhere
    else. A std of 0 is a claim, and any error then counts as enormous. The sums are computed in NumPy. JAX arrays are
    accepted, also inside jit, which calls the host; in float32 the counts are exact up to 16.7 million rows.

    All sums are parts of one vector, `sums`, in the order of `layout`; each of them is an attribute, too.

    Attributes
    ----------
    sums : array
        All sums over rows; those that follow are views of it.
    rows : array
        The number of rows judged.
    undetermined : array
        The number of rows not judged, because no finite predictive distribution was stated.
    covered : array
        The number of rows inside their central interval, for each of `LEVELS`.
    squares : array
        The sum of the squared normal scores.
    pit : array
        The histogram of the probability integral transform Phi(u), in `BINS` bins.
    log_score : array
        The sum of the log predictive densities.
    errors, squared_errors : array
        The sums of y - mean and of its square.
    shared : array
        The number of pairs of rows predicted from one learned noise variance, each divided by its degrees of freedom.
    powers : array
        The sums of the powers 0 to 4 of the normal scores, each score bounded to +-30.
    recent, lagged, segments, segment_origins, segment_shared, segment_length : array
        What depends on the order of the rows; see `kalprox.calibration.checks`.
    columns_seen, column_means, column_squares, column_products : array
        Sums over the scores and the columns of X, if these were given; see `kalprox.calibration.curvature.Curvature`.
    not_judged : str
        Why no row was scored, for the verdict; empty once rows have been scored.
    changes : Changes or None
        The change points of the stream, if an estimator was told to look for them.
    targets : tuple of Calibration
        Of several targets: the calibration of each of them, by which `verdict` judges; else empty.
    predictive : type
        The kind of predictive distribution that is judged, that of a likelihood: see
        `kalprox.predictive.FromMoments`.
    missingness : Check or None
        Whether features are missing independently of the target, if an estimator has learned enough rows with gaps.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> y = rng.normal(size=1000)
    >>> honest = Calibration().update(np.zeros(1000), np.ones(1000), y)
    >>> honest.verdict().word
    'calibrated'
    >>> print(Calibration().update(np.zeros(1000), np.full(1000, 0.5), y).verdict())
    over-confident: The stated std is too small. Use noise="learn"; where it is learned, look for what the model \
leaves out, such as a missing input, or a linearisation far from the solution. Over 1,000 rows the errors are 1.96 \
times as large as stated (NIS 3.83, expected 0.88 to 1.13), and intervals of 50%, 80% and 95% cover 26.4%, 49.0% \
and 68.0% (expected 45.6% to 54.4%, 76.4% to 83.5% and 93.0% to 96.8%).
    """

    sums: Any = None
    columns_seen: Any = leaf("", factory=lambda: np.zeros(()), sign="nonnegative")
    column_means: Any = leaf(factory=lambda: np.zeros(0))
    column_squares: Any = leaf(factory=lambda: np.zeros(0))
    column_products: Any = leaf(factory=lambda: np.zeros((6, 1, 1)))
    not_judged: str = static(default="")
    changes: Changes | None = static(default=None)
    targets: "tuple[Calibration, ...]" = static(default=())
    missingness: Check | None = static(default=None)
    predictive: Any = static(default=Student)

    layout: ClassVar[np.dtype[Any]] = np.dtype(  # of `sums`, as in kernel/score.h; subclasses add to it
        [
            *((name, float) for name in ("rows", "undetermined")),
            ("covered", float, len(LEVELS)),
            ("squares", float),
            ("pit", float, BINS),
            *((name, float) for name in ("log_score", "errors", "squared_errors", "shared")),
            ("powers", float, 5),
            ("recent", float, (2, LAGS)),
            ("lagged", float, (2, LAGS + 1)),
            ("segments", float, (SEGMENTS, VALUES, VALUES)),
            *((name, float, SEGMENTS) for name in ("segment_origins", "segment_shared")),
            ("segment_length", float),
        ]
    )
    has_intervals: ClassVar[bool] = True  # whether errors in units of the std, and intervals, mean something
    of_whole_rows: ClassVar[bool] = False  # whether it judges all columns of y together
    scored: ClassVar[Any] = None  # the kind of distribution that the scores are those of, where not of `predictive`
    kind: ClassVar[str] = "numbers"  # what is predicted, as `Verdict.kind`
    material: ClassVar[float] = MATERIAL  # a relative error of the std below this is called calibrated
    about_scores: ClassVar[str] = (
        "the root mean squared error, the share of the rows within their intervals, and the mean squared error in "
        "units of the predicted variance (NIS; 1 if calibrated)"
    )

    def __post_init__(self) -> None:
        if self.sums is None:
            sums = np.zeros(self.layout.itemsize // 8)
            sums.view(self.layout)["segment_length"] = FIRST_LENGTH
            object.__setattr__(self, "sums", sums)

    def __getattr__(self, name: str) -> Any:
        """Return one of the sums: a number, or an array of its shape."""
        if name not in (self.layout.fields or ()):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        part, offset = self.layout.fields[name][:2]  # type: ignore[index]
        values = self.sums[..., offset // 8 : (offset + part.itemsize) // 8]
        return values.reshape(self.sums.shape[:-1] + part.shape)[()]

    @property
    def by_name(self) -> Any:
        """The sums by name, as a structured number of NumPy; they change with it."""
        return np.asarray(self.sums).view(self.layout)[0]

    def add(self, predicted: Predictive, y: Array, weights: Array | None = None, together: Array | None = None) -> Self:
        """Add the predictive distributions of a block of rows, made before it was learned, and the observations.

        Parameters
        ----------
        predicted : Predictive
            Of the kind that this class judges: `Student`, normal predictions included.
        y : array
            The observations.
        weights, together : arrays, optional
            As in `update`.

        Returns
        -------
        Calibration
            The sums including the block.

        Examples
        --------
        >>> y = np.random.default_rng(0).normal(size=1000)
        >>> Calibration().add(Student(np.zeros(1000), np.ones(1000), np.inf), y).verdict().word
        'calibrated'
        """
        judged = getattr(self.predictive, "kind", self.predictive)
        if not isinstance(predicted, judged):
            raise TypeError(
                f"This {type(self).__name__} judges predictions of the type {judged.__name__}; got "
                f"{type(predicted).__name__}. Use kalprox.calibration.calibration_for(likelihood) of the likelihood."
            )
        dof = getattr(predicted, "dof", math.inf)
        with np.errstate(invalid="ignore"):  # of probabilities that are none, which are refused
            std = predicted.std
        return self.update(predicted.mean, std, y, dof, weights, together)

    def update(
        self,
        mean: Array,
        std: Array,
        y: Array,
        dof: Any = math.inf,
        weights: Array | None = None,
        together: Array | None = None,
        X: Array | None = None,
    ) -> Self:
        """Add a block's predictions, made before it was learned, and the observations that followed.

        Rows are given in the order of the stream. Any division into blocks gives the same sums, to rounding, except
        `shared` (and `segment_shared`). O(b): about 0.05 us per row, and 30 us per call, where the
        kernel is compiled; 0.1 us and 0.2 ms in NumPy.

        Parameters
        ----------
        mean : array
            The predicted means, shape (b,), or a number. Of two classes the probabilities of yes, of m classes those of
            each, shape (b, m); NaN for rows that were not predicted.
        std : array
            The scales of the predictive distributions (`Noise.std`), shape (b,), or one for all. Of classes only
            whether it is infinite matters, where nothing was predicted.
        y : array
            The observations, shape (b,), or a number. Of m classes a 1 for that of each row, shape (b, m).
        dof : array
            The degrees of freedom (`Noise.dof`), shape (b,), or one for all; infinite for normal predictions, and
            without a meaning for classes.
        weights : array, optional
            Repetitions, shape (b,); 1 by default.
        together : array, optional
            For each row, how many rows were predicted at once, itself included; by default the whole block.
        X : array, optional
            The columns of the rows, shape (b, d), in NumPy: the verdict then says if their squares and products matter.

        Returns
        -------
        Calibration
            The sums including the block.
        """
        return self._updated(Rows(mean, std, y, dof, weights, together), X)

    def update_given(
        self,
        mean: Array,
        std: Array,
        y: Array,
        given: Given,
        weights: Array | None = None,
        X: Array | None = None,
    ) -> Self:
        """Add a block's predictions that their means and scales do not determine, such as those of mixtures.

        Parameters
        ----------
        mean, std : array of shape (b,)
            The predicted means and scales.
        y : array of shape (b,)
            The observations.
        given : Given
            A named tuple of arrays of shape (b,): the log density that was predicted at y, the squared error, and the
            normal score, which may be None: it is then that of the mean and the scale.
        weights, X : arrays, optional
            As in `update`.

        Returns
        -------
        Calibration
            The sums including the block.

        Examples
        --------
        >>> from kalprox.calibration.sums import Given
        >>> given = Given(np.array([-1.0]), np.array([0.25]), np.array([0.6]))
        >>> one = Calibration().update_given(np.zeros(1), np.ones(1), np.array([0.5]), given)
        >>> float(one.mean_log_score), float(one.nis.round(2))
        (-1.0, 0.36)
        """
        check_is("given", given, Given, "a Given of log densities, squared errors and normal scores")
        return self._updated(Rows(mean, std, y, math.inf, weights, np.ones(()), given), X)

    def _updated(self, rows: Rows, X: Array | None) -> Self:
        if is_traced(self.sums, *rows):
            sums = self._on_host(lambda sums, *one: self._of(sums)._updated(Rows(*one), None).sums, *rows)
            return self._of(sums, self.curvature)
        sums, found, curvature = np.array(self.sums, float), None, self.curvature
        if type(self) is Calibration and self.predictive is Student and rows.given is None:
            found = added_by_kernel(sums, rows)
        if found is None:
            by_name = self._of(sums).by_name
            with np.errstate(all="ignore"):  # overflow is handled by value
                judged, found = added_rows(by_name, self.scored or self.predictive, rows.checked())
                self._add_more(by_name, judged)
        return self._of(sums, curvature if X is None else curvature.after(X, *found))

    def _of(self, sums: Array, curvature: Curvature | None = None) -> Self:
        """Return a calibration of this kind with other sums."""
        columns = {} if curvature is None else curvature._asdict()
        return type(self)(sums, **columns, predictive=self.predictive)

    def _on_host(self, function: Callable[..., Array], *arrays: Any) -> Array:
        """Return the vector that a function of NumPy makes of this one and other arrays, inside `jax.jit`."""
        import jax

        shape = jax.ShapeDtypeStruct(self.sums.shape, jax.dtypes.canonicalize_dtype(self.sums.dtype))
        return call_on_host(lambda *values: (function(*values),), (shape,), self.sums, *arrays)[0]

    def _add_more(self, sums: Any, rows: Rows) -> None:
        """Add the rows that are judged to the sums that only a subclass has, in place."""

    def merge(self, other: Self) -> Self:
        """The calibration of both streams of rows together, as if those of `other` had come after these.

        All sums add up, except that pairs of rows on both sides of the seam are not compared with each other, and that
        the segments of the stream are those of the two, joined where there are too many.

        Parameters
        ----------
        other : Calibration

        Returns
        -------
        Calibration

        Examples
        --------
        >>> one = Calibration().update(np.zeros(3), np.ones(3), np.array([0.5, -1.0, 2.0]))
        >>> float(one.merge(one).rows)
        6.0
        """
        check_is("other", other, type(self), f"a {type(self).__name__}")
        if is_traced(self.sums, other.sums):
            sums = self._on_host(lambda one, two: self._of(one).merge(self._of(two)).sums, other.sums)
            return self._of(sums, self.curvature.merge(other.curvature))
        sums = np.asarray(self.sums, float) + np.asarray(other.sums, float)
        both = self._of(sums, self.curvature.merge(other.curvature))
        join(both.by_name, self.by_name, other.by_name)
        return replace(both, not_judged=self.not_judged or other.not_judged)

    def _check_restored(self, sizes: Sizes) -> None:
        """Raise a ValueError unless the sums and the columns can be those of a stream."""
        expect(self.sums.shape == (self.layout.itemsize // 8,))
        expect(all((getattr(self, name) >= 0).all() for name in self.layout.names or () if name not in _SIGNED))
        expect_possible(self.by_name)
        self.curvature.expect_possible()

    @property
    def curvature(self) -> Curvature:
        """What the scores have in common with squares and products of columns."""
        return Curvature(*(getattr(self, name) for name in Curvature._fields))

    @property
    def dependence(self) -> Dependence:
        """How the scores depend on those before them."""
        return Stream.of(self.by_name).scores

    @property
    def nis(self) -> Array:
        """The mean squared normalised innovation (NIS): 1 is expected, 4 means a std too small by half."""
        return self._mean(self.squares)

    @property
    def coverage(self) -> Array:
        """The share of the rows inside their central interval, for each of `LEVELS`."""
        return self._mean(self.covered)

    @property
    def mean_log_score(self) -> Array:
        """The mean log predictive density: for comparing models on the same rows; higher is better."""
        return self._mean(self.log_score)

    @property
    def bias(self) -> Array:
        """The mean of y - mean."""
        return self._mean(self.errors)

    @property
    def rmse(self) -> Array:
        """The root mean square of y - mean."""
        return self._mean(self.squared_errors) ** 0.5

    @property
    def scores(self) -> dict[str, Any]:
        """The scores that a report shows, by name: numbers, and shares as text."""
        coverage = zip(LEVELS[::-1], self.coverage[::-1], strict=True)
        within = {f"within {level:.0%}": f"{float(share):.1%}" for level, share in coverage}
        return {"RMSE": float(self.rmse), **within, "NIS": float(self.nis)}

    @property
    def uniformity(self) -> tuple[float, float]:
        """Pearson's statistic of the PIT histogram against the uniform one, and its p-value (chi-square, `BINS` - 1).

        It detects what the spread alone does not show: tails, skewness, bias. It needs 100 rows or more.
        """
        expected = float(self.rows) / BINS
        if expected == 0:
            return math.nan, math.nan
        statistic = float(((np.asarray(self.pit) - expected) ** 2).sum() / expected)
        return statistic, float(special.chdtrc(BINS - 1, statistic))

    def verdict(self) -> Verdict:
        """Calibrated, or what is wrong with the predictions and the one thing to change; with the numbers.

        A calibrated stream is called something else with probability 0.02 (`FALSE_ALARMS`) at most. What is looked for,
        the first that is found giving the word:

        drifting
            The mean of the scores, or of their absolute values, changes along the stream, more than the correlation of
            successive scores explains.
        correlated
            Successive scores are correlated: the first `LAGS` correlations. It says nothing against the predictive
            intervals of single rows, but the std of the coefficients is wrong.
        nonlinear
            The scores depend on the square of a column or of the prediction, or on a product of two of them; if columns
            were given, as estimators do with the first 20.
        unequal spread
            The absolute scores depend on the prediction, in a straight line or a curve. A spread that depends on the
            inputs is found as far as the prediction depends on them.
        heavy tails, skewed
            The kurtosis or the skewness of the scores is not normal.
        over-confident, under-confident
            n NIS against chi-square with n degrees of freedom, and the number of rows inside their 95% interval against
            the binomial distribution. Where the two disagree, the verdict is over-confident, the more harmful of the
            two. With heavy tails or an unequal spread, which explain much of either, the inner half of the errors
            decides: if it is too wide by a quarter, over-confident precedes them.
        exact
            Every std was stated to be 0, and every prediction was right. There is no noise by which to judge.

        Deviations too small to matter are not named, however many rows there are to prove them: a std wrong by 5%
        (`MATERIAL`), correlations of 0.05, a kurtosis of 4, a mean that varies by a tenth of the std.

        Power: a std wrong by a factor f, too small or too large, is detected with probability 0.99 from 30 rows on for
        f = 2, from 121 for 1.4, from 403 for 1.2 and from 1,461 for 1.1. With fewer than `FEWEST_ROWS` rows and nothing
        detected, the verdict is "too few rows to say". The other checks need 64 to 128 rows, and 2,000 to tell the
        kinds of streams in benchmarks/streams.py apart.

        The distributions are exact when rows are predicted one at a time. The b rows of a block share one learned noise
        variance, whose relative variance is 2/dof, so that their sum of squares has the variance 2b + 2b(b - 1)/dof
        instead of 2b. They are as informative as fewer rows (`Verdict.worth`), and the ranges widen accordingly. They
        share the error of theta too; this is not accounted for, and is small once rows^2 is well above b d.

        Several targets are judged one by one, since their errors may be correlated, each with as many times smaller a
        probability of a false alarm. The verdict is that of the target with the most important finding.

        Returns
        -------
        Verdict
        """
        if self.not_judged and float(self.rows) + float(self.undetermined) == 0:
            return Verdict.not_judged(self.not_judged)
        if self.targets:
            k = len(self.targets)
            verdicts = [
                one._verdict_among(k)._replace(whose=f"target {j} of {k}") for j, one in enumerate(self.targets, 1)
            ]
            return min(verdicts, key=lambda one: one.importance)
        return self._verdict_among(1)

    def _verdict_among(self, several: int, event: str = "") -> Verdict:
        """Return the verdict on one of several targets or classes, whose false alarms together are those of one.

        `event` says of one of several classes what its probability is about.
        """
        rows, shared = float(self.rows), float(self.shared)
        effective = rows / (1 + shared / rows) if rows > 0 else 0.0
        among = several if self.has_intervals else 1
        coverages = tuple(float(share) for share in self.coverage)
        ranges = expected_ranges(effective, self.material, among)
        found = self._findings(Stream.of(self.by_name, several), effective, ranges, event)
        uniformity = self.uniformity[0] * effective / rows if effective >= 5 * BINS else math.nan
        return Verdict(
            [*found.words, "calibrated" if found.enough else "too few rows to say"][0],
            rows,
            effective,
            float(self.undetermined),
            float(self.nis),
            ranges[0],
            coverages[-1],
            ranges[1],
            float(special.chdtrc(BINS - 1, uniformity)),
            coverages,
            tuple(coverage_range(effective, level, self.material, among) for level in LEVELS),
            found.checks,
            tuple(found.words),
            kind=self.kind,
            measured=found.measured,
            predictive=self.predictive if self.has_intervals else None,
        ).with_check(self.missingness)

    def _findings(self, stream: Stream, effective: float, ranges: tuple[Range, Range], event: str) -> Findings:
        """Return what is wrong with the predictions of so many effective rows, by the ranges of NIS and coverage."""
        coverage, (nis_bounds, coverage_bounds) = self.coverage, ranges
        spread = spread_word(float(self.nis), nis_bounds, float(coverage[-1]), coverage_bounds)
        nonlinear = self.curvature.check(stream)
        checks = drifting(stream), correlated(stream), nonlinear, unequal_spread(stream), *tails(stream)
        words = [check.word for check in checks if check.found]
        others = [check.word for check in checks[2:] if check.found]
        if others:
            # These make the NIS, and each coverage, wrong in their own way; the inner half of the errors is safer to
            # judge. Its end is that of no row, if no row is covered.
            inner = max(special.ndtri((1 + float(coverage[0])) / 2), 1e-9)
            if spread == "over-confident" and special.ndtri(0.75) / inner > _BULK:
                words.insert(words.index(others[0]), spread)
        elif spread:
            words.append(spread)
        certain = self.mean_log_score > -math.log(np.finfo(float).tiny) - 1  # every std was 0
        if certain and self.nis == 0:
            words = ["exact"] if effective >= FEWEST_ROWS else []
        return Findings(checks, words, effective >= FEWEST_ROWS)

    def _mean(self, total: Array) -> Array:
        with np.errstate(invalid="ignore"):
            return total / self.rows


_SIGNED = ("log_score", "errors", "powers", "recent", "lagged", "segments", "segment_origins")
