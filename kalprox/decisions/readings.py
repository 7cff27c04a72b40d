"""What a bandit believes: coefficients, mean rewards of a context, draws, and a summary."""

import math
import numbers
from typing import Any

import numpy as np

from kalprox.base.arrays import Array
from kalprox.base.checks import LARGEST
from kalprox.base.text import printable
from kalprox.decisions.fleet import Fleet, FleetNoise
from kalprox.decisions.settings import BanditSettings, numeric
from kalprox.learning.pending import Key, PendingRows
from kalprox.sources.weighting import NEEDS_BY_TIME, time_numbers

_LEAST_NOISE = 1e-12  # of a reward, relative to the mean square of all: below it a difference is one of rounding


class BanditReadings:
    """The state of a bandit, its fitted attributes, and the methods that read its beliefs."""

    arms_: list[Key]
    n_decisions_: int
    _clock: float | None  # the time of the last decision or reward; None before the first
    _settings: BanditSettings
    _numbers: list[int]
    _next_number: int
    _n_rows: Array
    _sums: Array
    _moments: Array
    _pending: PendingRows
    _fleet: Fleet | None
    _rng: np.random.Generator

    # ---- arguments -------------------------------------------------------------------------------------

    @property
    def _beliefs(self) -> Fleet:
        if self._fleet is None:
            raise AttributeError("Nothing is known yet: take a decision or call update first.")
        return self._fleet

    def _context(self, x: Any) -> Array:
        """Return a context as (p,) numbers, or (K, p) if features are shared, with the column of ones."""
        rows = numeric("x", x)
        if self._settings.shared:
            if rows.ndim != 2 or len(rows) != len(self.arms_):
                raise ValueError(
                    f"x must have shape (K, d), one row for each of {len(self.arms_)} arms, if features='shared'; got "
                    f"{rows.shape}."
                )
        elif rows.ndim != 1:
            raise ValueError(f"x must have shape (d,), the features of one context; got {rows.shape}.")
        if not np.abs(rows).max(initial=0.0) <= LARGEST:
            raise ValueError(f"x must have finite numbers of at most {LARGEST:g} in size; got {x!r}.")
        return self._with_ones(rows)

    def _set_origin(self) -> None:
        """Tell the beliefs what is known of all rewards: their mean, and how small their noise can be."""
        n, total, squares = self._moments.tolist()
        fleet, mean = self._beliefs, self._settings.reward_mean
        if self._settings.fit_intercept:
            fleet.origin = float(mean) if not isinstance(mean, str) else total / n if n else 0.0
        fleet.least_noise = _LEAST_NOISE * squares / n if n else 0.0

    def _with_ones(self, rows: Array) -> Array:
        """Return rows of d features with the column of ones; the first rows decide what d is."""
        d = rows.shape[-1]
        if self._fleet is None:
            if d == 0:
                raise ValueError(f"A context must have at least one feature; got shape {rows.shape}.")
            self._fleet = self._settings.fleet(len(self.arms_), d)
            self._set_origin()
        expected = self._fleet.p - self._settings.fit_intercept
        if d != expected:
            raise ValueError(f"A context must have {expected} features, as the first one had; got {d}.")
        if not self._settings.fit_intercept:
            return rows
        return np.concatenate([np.ones((*rows.shape[:-1], 1)), rows], axis=-1)

    def _time(self, time: Any) -> float:
        """Return the time of a decision as a number; by default decisions are one unit apart."""
        clock = self._clock
        if time is None:
            return 0.0 if clock is None else clock + 1
        if not self._settings.forgetting.needs_times:
            raise ValueError(NEEDS_BY_TIME.format(self._settings.forget))
        found = float(time_numbers(time, 1)[0])
        if clock is not None and found < clock:
            raise ValueError(f"time must not go backwards: expected {clock:.10g} or later, got {found:.10g}.")
        return found

    def _advance(self, time: float) -> None:
        """Let the arms fade until this time, if they fade with time."""
        if self._fleet is not None and self._clock is not None:
            self._fleet.pass_time(self._settings.forgetting.half_lives(self._clock, time))
        self._clock = time

    def _rewards(self, rewards: Any, n: int) -> Array:
        y = numeric("rewards", rewards)
        if y.shape != (n,):
            raise ValueError(f"rewards must have shape ({n},), one for each context; got {y.shape}.")
        if not np.isfinite(y).all():
            row = int(np.argmin(np.isfinite(y)))
            raise ValueError(
                f"A reward must be a finite number; got {y[row]} in row {row}. A decision whose reward is not known "
                "needs no reward."
            )
        return y

    def _number_of(self, arm: Any) -> int:
        """Return the place of an arm in `arms_`."""
        try:
            return self.arms_.index(arm)
        except ValueError:
            names = ", ".join(map(repr, self.arms_[:10])) + ", ..." * (len(self.arms_) > 10)
            raise ValueError(f"There is no arm {arm!r}; the arms are {names}.") from None

    # ---- fitted attributes -----------------------------------------------------------------------------

    @property
    def coef_(self) -> Array:
        """The coefficients of each arm, shape (K, d), or (1, d) if features are shared."""
        return self._beliefs.estimates()[:, int(self._settings.fit_intercept) :].copy()

    @property
    def intercept_(self) -> Array:
        """The intercept of each arm, shape (K,), or (1,) if features are shared; 0 without an intercept."""
        theta = self._beliefs.estimates()
        return theta[:, 0].copy() if self._settings.fit_intercept else np.zeros(len(theta))

    @property
    def coef_std_(self) -> Array:
        """The standard deviations of `coef_`."""
        fleet, eye = self._beliefs, np.eye(self._beliefs.p)
        variances = np.array([(fleet.root(k, eye) ** 2).sum(axis=1) for k in range(len(fleet))])
        std = np.sqrt(fleet.noise().variance[:, None] * variances)
        return std[:, int(self._settings.fit_intercept) :]

    @property
    def noise_var_(self) -> Array:
        """The noise variance of each arm, shape (K,), or (1,) if features are shared."""
        return self._beliefs.noise().variance

    @property
    def n_rows_(self) -> Array:
        """The number of rewards that were learned of each arm, shape (K,)."""
        return self._n_rows.astype(int)

    @property
    def n_pending_(self) -> int:
        """The number of decisions that wait for their reward."""
        return len(self._pending)

    @property
    def n_dropped_(self) -> int:
        """The number of decisions that were dropped before their reward came."""
        return self._pending.n_dropped

    # ---- beliefs ---------------------------------------------------------------------------------------

    def predict(self, x: Any) -> tuple[Array, Array]:
        """Return the mean reward of every arm for a context, and its standard deviation, without the noise of a reward.

        Parameters
        ----------
        x : array of shape (d,), or (K, d) if features are shared
            The context.

        Returns
        -------
        mean, std : arrays of shape (K,)
            As long as the noise is learned, std is the scale of Student's t distribution.

        Examples
        --------
        >>> from kalprox.decisions import Bandit
        >>> bandit = Bandit(["a", "b"], noise=1.0, fit_intercept=False)
        >>> bandit.update([[1.0]] * 3, ["a"] * 3, [1.0, 1.0, 2.0])
        >>> bandit.predict([1.0])
        (array([1., 0.]), array([0.5, 1. ]))
        """
        mean, std, _ = self._read(self._context(x))
        return mean, std

    def sample_coef(self, n: int = 1) -> tuple[Array, Array]:
        """Draw coefficients and intercepts of all arms from their beliefs.

        The draws take random numbers from those of the next decisions.

        Parameters
        ----------
        n : int
            The number of draws.

        Returns
        -------
        coef : array of shape (n, K, d), or (n, 1, d) if features are shared
        intercept : array of shape (n, K), or (n, 1)

        Examples
        --------
        >>> from kalprox.decisions import Bandit
        >>> bandit = Bandit(["a", "b"], random_state=0)
        >>> bandit.update([[1.0, 0.0]], ["a"], [1.0])
        >>> coef, intercept = bandit.sample_coef(1000)
        >>> coef.shape, intercept.shape
        ((1000, 2, 2), (1000, 2))
        """
        if not (isinstance(n, numbers.Integral) and n >= 0):
            raise ValueError(f"n must be a whole number >= 0; got {n!r}.")
        fleet, rng, first = self._beliefs, self._rng, int(self._settings.fit_intercept)
        noise, theta = fleet.noise(), fleet.estimates()
        draws = np.empty((n, *theta.shape))
        for k in range(len(fleet)):
            root = fleet.root(k, np.eye(fleet.p))
            draws[:, k] = theta[k] + self._scales(noise, k, n)[:, None] * (
                rng.standard_normal((n, root.shape[1])) @ root.T
            )
        return draws[..., first:], draws[..., 0] if first else np.zeros(draws.shape[:2])

    def _scales(self, noise: FleetNoise, k: int, n: int) -> Array:
        """Return n draws of the noise std of an arm; all are the same if it is given."""
        scale = np.full(n, math.sqrt(noise.variance[k]))
        return scale * np.sqrt(noise.dof[k] / self._rng.chisquare(noise.dof[k], n)) if self._learns_noise else scale

    @property
    def _learns_noise(self) -> bool:
        return isinstance(self._settings.noise, str)

    def _means(self, rows: Array) -> Array:
        theta = self._beliefs.estimates()
        return rows @ theta[0] if self._settings.shared else theta @ rows

    def _read(self, rows: Array) -> tuple[Array, Array, FleetNoise]:
        """Return the mean rewards, their standard deviations, and the noise."""
        fleet = self._beliefs
        noise = fleet.noise()
        leverage = (fleet.root(0, rows) ** 2).sum(axis=1) if self._settings.shared else fleet.leverages(rows)
        return self._means(rows), np.sqrt(noise.variance * leverage), noise

    def _drawn(self, rows: Array, width: float, n: int) -> Array:
        """Return n draws of the mean reward of every arm, shape (n, K).

        The coefficients of different arms are independent, so that a draw of x'theta is all that is needed of a draw of
        theta. If arms share it, their rewards are drawn together.
        """
        if self._settings.shared:
            root = self._beliefs.root(0, rows)
            normals = self._rng.standard_normal((n, root.shape[1]))
            return self._means(rows) + width * self._scales(self._beliefs.noise(), 0, n)[:, None] * (normals @ root.T)
        mean, std, noise = self._read(rows)
        if not self._learns_noise:
            return mean + width * std * self._rng.standard_normal((n, len(mean)))
        draws = [self._rng.standard_t(dof, n) for dof in noise.dof.tolist()]  # half the time of an array of dof
        return mean + width * std * np.array(draws).T

    def summary(self) -> str:
        """Return a table of the arms: rewards learned, their mean, the intercept and the noise.

        Returns
        -------
        str

        Examples
        --------
        >>> from kalprox.decisions import Bandit
        >>> bandit = Bandit(["a", "b"], noise=1.0)
        >>> bandit.update([[0.0], [0.0], [0.0]], ["a", "a", "b"], [2.0, 4.0, 1.0])
        >>> print(bandit.summary())
        arm  rewards     mean  noise std
        a          2        3          1
        b          1        1          1
        0 decisions, 0 of which wait for their reward.
        """
        K = len(self.arms_)
        std = np.full(K, np.nan) if self._fleet is None else np.broadcast_to(np.sqrt(self.noise_var_), K)
        names = [printable(str(arm)) for arm in self.arms_]
        wide = max(3, *map(len, names))
        lines = [f"{'arm':{wide}} {'rewards':>8} {'mean':>8} {'noise std':>10}"]
        for name, n, total, s in zip(names, self.n_rows_, self._sums, std, strict=True):
            mean = f"{total / n:.4g}" if n else "-"
            lines.append(f"{name:{wide}} {n:8} {mean:>8} {s:10.4g}")
        dropped = f" {self.n_dropped_} were dropped before it came." if self.n_dropped_ else ""
        lines.append(f"{self.n_decisions_} decisions, {self.n_pending_} of which wait for their reward.{dropped}")
        return "\n".join(lines)
