"""Innovations: the errors of predictions that are made of each row from all rows before it.

`SquareRootFilter` takes rows one by one or in blocks. The innovations of a block come from one Cholesky factor, and
equal those of its rows one by one up to rounding.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg.blas import ddot, dgemm, dger, dtrsm
from scipy.linalg.lapack import dpotrf

from kalprox.base.arrays import Array
from kalprox.base.checks import all_usable
from kalprox.calibration.blocks import Given
from kalprox.forgetting import ByRow
from kalprox.learning.design import Design
from kalprox.likelihoods import Likelihood
from kalprox.posterior import InformationPosterior
from kalprox.predictive import Student
from kalprox.regularizers import Regularizer
from kalprox.sources import Block
from kalprox.sources.forgetting import Course, course

__all__ = ["Innovations", "MixedInnovations", "SquareRootFilter", "common", "in_stds", "innovation", "may_overflow"]

_ROUNDING = float(np.finfo(float).eps) ** 0.5
_LARGE_LEVERAGE = 1e4  # above it the Cholesky factors of a block lose digits
_CHUNK = 128, 1 / 2  # rows that the filter takes together: as many, or as many per coefficient, whichever is more


class Innovations(NamedTuple):
    """The predictions of the rows of a block, each made before its row was learned.

    Attributes
    ----------
    mean, std, dof : arrays of shape (b,) or (b, k)
        The predictive distribution of each row, Student's t with this location, scale and degrees of freedom.
    scale : array of shape (b,) or (b, k)
        The predictive scale in units of the noise std: the square root of the row's own variance plus its leverage.
    issued : array of shape (b,) or (b, k)
        The standardised errors of the predictions that were possible before the first row of the block.
    together : int or array of shape (b,)
        The number of rows that share one estimate of the noise variance, as far as they have come; 1 if none does.
    """

    mean: Array
    std: Array
    dof: Array
    scale: Array
    issued: Array
    together: Any

    @classmethod
    def of(cls, y: Array, predicted: Any, scale: Array) -> "Innovations":
        """Return the innovations of a block whose rows were all predicted before its first row."""
        shape = np.shape(y)
        dof = np.broadcast_to(getattr(predicted, "dof", np.inf), shape)
        issued = in_stds(y - predicted.mean, predicted.std)
        return cls(predicted.mean, predicted.std, dof, np.broadcast_to(scale, shape), issued, len(y))

    def part(self, start: int, stop: int) -> "Innovations":
        """Return those of some rows, none of which shares an estimate of the noise with others."""
        parts = {name: getattr(self, name)[start:stop] for name in self._fields[:-1]}
        return Innovations(**parts, together=1)

    def standardised(self, y: Array) -> Array:
        """Return the errors of the predictions in units of their std; NaN for rows that could not be predicted."""
        return in_stds(y - self.mean, self.std)

    @classmethod
    def unknown(cls, y: Array) -> "Innovations":
        """Return the innovations of rows that could not be predicted: the mean is NaN, and the std infinite."""
        nothing, unknown = np.full(np.shape(y), np.nan), np.full(np.shape(y), np.inf)
        return cls(nothing, unknown, unknown, unknown, nothing, 1)

    @classmethod
    def joined(cls, targets: "list[Innovations]") -> "Innovations":
        """Return the innovations of several targets, as columns."""
        columns = {name: np.column_stack([getattr(one, name) for one in targets]) for name in cls._fields[:-1]}
        return cls(**columns, together=targets[0].together)

    @classmethod
    def concatenated(cls, pieces: "list[Innovations]") -> "Innovations":
        """Return the innovations of the pieces of a block one after the other."""
        if len(pieces) == 1:
            return pieces[0]
        columns = {name: np.concatenate([getattr(one, name) for one in pieces]) for name in cls._fields[:-1]}
        lengths = [np.broadcast_to(one.together, len(one.mean)) for one in pieces]
        return cls(**columns, together=np.concatenate(lengths))

    @property
    def given(self) -> Given | None:
        """What the mean, the std and the degrees of freedom do not say of the predictions; None if they say all."""
        return None


class MixedInnovations(Innovations):
    """The predictions of a mixture: its mean and std, and the scores that they do not determine."""

    _given: Given | None

    @classmethod
    def made(cls, found: Innovations, given: Given | None) -> "MixedInnovations":
        """Return innovations with what was given of them."""
        mixed = cls(*found)
        mixed._given = given
        return mixed

    @property
    def given(self) -> Given | None:
        return self._given


@dataclass
class SquareRootFilter:
    """An estimate and a square root of its covariance, updated row by row or block by block.

    The penalty is replaced by its quadratic expansion at the estimate of the posterior it was made from: exact for a
    quadratic penalty, and for L1 and its relatives as long as the same coefficients are zero. Rounding errors
    accumulate, so that the filter is made afresh from the information from time to time.

    Attributes
    ----------
    theta : array of shape (p,) or (p, k)
        The estimate, in the coordinates of the design.
    L : array of shape (f, r)
        L L' is the covariance of the f free coordinates of theta in units of the noise variance. In column-major order.
    joined : array of shape (p, r + 1) or (p, r + k), or None
        L and theta side by side, which are views of it: one product predicts a row, and one update learns it. None if
        not every coordinate is free.

    References
    ----------
    J. E. Potter's square-root update, in P. S. Maybeck, "Stochastic Models, Estimation, and Control", vol. 1, 1979.
    """

    design: Design
    theta: Array
    L: Array
    joined: Array | None
    free: Array | None  # the numbers of the free coordinates; None if all are free
    H: Array | None  # the Hessian of the penalty, a diagonal (f,) or (f, f); None without a penalty
    tilt: Array | None  # the gradient of the penalty is H theta + tilt, on the free coordinates; None if it is H theta
    rows: float
    squares: float  # the sum of the squared weights that forgetting has left of the rows
    rss: Any  # the residual sum of squares, a number or (k,)
    trace: float  # tr(L L' H)
    noise_var: float | None  # None if it is learned
    row: Array  # working memory for the input of a row
    change: Array  # working memory for the step of `joined`

    @classmethod
    def of(
        cls, posterior: InformationPosterior, design: Design, noise_var: float | None, target: int | None = None
    ) -> "SquareRootFilter":
        """Return the filter that starts from a posterior, or from that of one of its targets."""
        data, factor, g = posterior.data, posterior.metric_factors[target or 0], posterior.penalties[target or 0]
        theta, rss = np.array(posterior.mean, float), posterior.rss
        if target is not None:
            theta, rss = theta[:, target].copy(), rss[target]
            k = len(posterior.rss)
            offset, rest = (np.broadcast_to(a, k)[target] for a in (design.offset, design.offset_rest))
            design = replace(design, offset=offset, offset_rest=rest)
        free, H, tilt = factor.free, None, None
        if _penalises(g, len(theta)):
            columns = theta.reshape(len(theta), -1).T
            slope = np.stack([g.grad(column) for column in columns], axis=-1).reshape(theta.shape)
            H = np.asarray(g.hessian(columns[0]))
            if free is not None:
                slope, H = slope[free], H[free] if H.ndim == 1 else H[np.ix_(free, free)]
            tilt = slope - _curved(H, theta if free is None else theta[free])
        L, theta, joined = _side_by_side(np.array(factor.L, order="F"), theta, free)
        made = cls(
            design=design,
            theta=theta,
            L=L,
            joined=joined,
            free=free,
            H=H,
            tilt=tilt if tilt is not None and tilt.any() else None,
            rows=float(data.rows),
            squares=float(data.squares),
            rss=float(rss) if theta.ndim == 1 else np.array(rss),
            trace=0.0,
            noise_var=noise_var,
            row=np.ones(len(theta)),
            change=np.empty(0 if joined is None else joined.shape[1]),
        )
        if H is not None:  # for a diagonal H without arrays of the size of L
            made.trace = float(H @ np.einsum("ij,ij->i", L, L) if H.ndim == 1 else (L * (H @ L)).sum())
        return made

    # ---- one row ---------------------------------------------------------------------------------------

    def move(self, x: Array, y: Any, weight: float = 1.0, count: float = 1.0) -> tuple[Any, float]:
        """Update the estimate in place by a row x of shape (d,) with target y; every coordinate must be free.

        With the weight w of the row, which counts `count` times, v = L'x, e = y - x'theta and s = 1 + w v'v, theta
        becomes theta + L v e w / s, and L becomes L - L v v' w / (s + sqrt(s)), a root of L L' - L v v' L' w / s. The
        objective increases by w e^2 / s, and tr(L L' H) decreases by (L v)' H (L v) w / s.

        Returns the prediction of y before the update: its mean x'theta, and the variance v'v of that in units of the
        noise variance. y and the mean are numbers, or of shape (k,) for several targets.
        """
        design = self.design
        v, f, leverage = self._projected(x)
        s = (1 + weight * leverage) / weight
        if isinstance(f, float):  # numbers, which are faster than arrays of no dimension
            f, offset = f + float(design.offset_rest), float(design.offset)
        else:
            f, offset = f + design.offset_rest, design.offset
        self._step(v, (y - offset) - f, s, weight, count)  # the digits of y about the offset
        return f + offset, leverage

    def _projected(self, x: Array) -> tuple[Array, Any, float]:
        """Return v = L'x, x'theta and v'v for the input of a row x of shape (d,); every coordinate must be free."""
        assert self.joined is not None
        r, found = self.L.shape[1], (self._input(x) if self.design.intercept else x).dot(self.joined)
        v = found[:r]
        return v, float(found[r]) if self.theta.ndim == 1 else found[r:], ddot(v, v)

    def follow(
        self, x: Array, y: Any, weight: float = 1.0, count: float = 1.0, *, own: float = 1.0, predict: bool = True
    ) -> Sequence[Any]:
        """Learn a row as `move` does, and return the fields of its innovation; empty if `predict` is False.

        `own` is the variance of the noise of the row, in units of the noise variance.
        """
        noise = self.noise() if predict else None
        mean, leverage = self.move(x, y, weight, count)
        return () if noise is None else innovation(y, mean, noise[0], noise[1], leverage + own)

    def match(
        self, x: Array, y: float, likelihood: Likelihood, weight: float = 1.0, offset: float = 0.0
    ) -> tuple[float, ...] | None:
        """Update the estimate in place by a row x of shape (d,) with the loss of a likelihood, by moment matching.

        Returns the output f = x'theta + offset before the update, its variance, and the least-squares problem for the
        step of f by which it was learned, `Likelihood.matched`: its target and its weight, that of the row apart. None,
        and no update, if one of these is not finite. For one target, and a noise variance of 1.
        """
        v, f, leverage = self._projected(x)
        f += offset
        step, curvature = likelihood.matched_row(y, f, leverage)
        total = curvature * weight
        s = (1 + total * leverage) / total if total else math.inf
        if not math.isfinite(f + leverage + step + s):
            return None
        self._step(v, step, s, total, weight)
        return f, leverage, step, curvature

    def _step(self, v: Array, e: Any, s: float, weight: float, count: float) -> None:
        """Update the estimate in place, given v = L'x, the error e of the prediction, and s in units of 1 / weight."""
        theta, L, size, change = self.theta, self.L, e / s, self.change
        gain, r = L.dot(v), L.shape[1]
        more = size * e
        if self.H is not None and self.noise_var is None:
            bent = self.H * gain if self.H.ndim == 1 else self.H @ gain
            bend = ddot(gain, bent)
            slope = ddot(theta, bent) if theta.ndim == 1 else bent.dot(theta)  # of the penalty, along the gain
            if self.tilt is not None:
                slope = slope + gain.dot(self.tilt)
            self.trace -= bend / s
            more = more - size * (2 * slope + size * bend)
        self.rss = self.rss + more
        self.rows += count
        self.squares += count
        np.multiply(v, -1 / (s + math.sqrt(s / weight)), out=change[:r])
        change[r:] = size
        dger(1.0, gain, change, a=self.joined, overwrite_a=1)

    def _input(self, x: Array) -> Array:
        if not self.design.intercept:
            return x
        np.subtract(x, self.design.center, out=self.row[1:])  # type: ignore[arg-type]
        if self.design.center_rest is not None:
            self.row[1:] -= self.design.center_rest
        return self.row

    # ---- a block ---------------------------------------------------------------------------------------

    def take(
        self,
        block: Block,
        *,
        own: Array | None = None,
        counts: Array | None = None,
        fading: Course | None = None,
        last: bool = False,
    ) -> Innovations:
        """Learn a block of b rows in place, and return its innovations, equal to those of its rows one by one.

        For the rows P = X L of a chunk, C C' = I + P P' and u = C^-1 (y - X theta), row i was predicted from all rows
        before it with the mean y_i - C_ii u_i and the variance C_ii^2 in units of the noise. With K = C^-1 P, theta
        becomes theta + L K'u, and L becomes L - L K' (C + I)^-1 P, a root of L (I + P'P)^-1 L' [1]_. It takes
        O(b p^2) for p of 128 and more.

        Parameters
        ----------
        block : Block
        own : array of shape (b,), optional
            The variance of the noise of each row, in units of the noise variance; 1 by default.
        counts : array of shape (b,), optional
            How many rows each row counts for; 1 by default.
        fading : Course, optional
            How earlier rows are forgotten on the way; needs `last`. Forgetting also fades the curvature of the penalty,
            until the end of the block: the filter is then made afresh.
        last : bool
            Whether the filter is not used after this block, so that its last root need not be computed.

        Returns
        -------
        Innovations

        References
        ----------
        .. [1] A. Andrews, "A square root formulation of the Kalman covariance equations", AIAA Journal 6, 1968.
        """
        n, ones = len(block), np.ones(len(block))
        y = block.y.reshape(n, -1)
        counts, own = ones if counts is None else counts, ones if own is None else own
        weights = counts if block.weights is None else block.weights
        assert last or fading is None
        forgets, fading = fading is not None, fading or course(ByRow(1.0), counts)
        left = fading.left  # of what was there before the block, when a row is predicted
        weights = weights * fading.worth if forgets else weights
        root = np.sqrt(weights)[:, None]
        f, k = len(self.L), y.shape[1]
        L, moved = self.L, np.zeros((f, k))  # the root after the rows so far, and the change of theta
        fades = forgets or self.squares != self.rows
        slope = None if self.H is None else self._slope().reshape(f, k)
        rss, trace, taken = np.atleast_1d(self.rss).astype(float), self.trace, np.zeros(k)
        error, s, bent = np.empty((n, k)), np.empty(n), np.zeros(n)
        error0, s0, bent0 = np.empty((n, k)), np.empty(n), np.zeros(n)  # the same as predicted before the block
        total, traces = np.empty((n, k)), np.full(n, trace)  # rss and trace before each row, in units of `left`
        start, together = 0, max(_CHUNK[0], int(_CHUNK[1] * f))
        while start < n:
            rows = slice(start, start + together)
            w, inputs = root[rows], self.design.rows(block.X[rows])
            D = inputs if self.free is None else inputs[:, self.free]
            known = D @ L
            P = known * w
            if len(P) > 1 and np.einsum("ij,ij->i", P, P).max() > _LARGE_LEVERAGE:  # such a row comes alone
                rows, w, inputs, D, known, P = slice(start, start + 1), w[:1], inputs[:1], D[:1], known[:1], P[:1]
            start = rows.start + len(P)
            f0 = inputs @ self.theta.reshape(len(self.theta), -1) + self.design.offset_rest
            error0[rows] = (y[rows] - self.design.offset) - f0  # the digits of y about the offset
            P0 = known if L is self.L else D @ self.L
            s0[rows] = np.einsum("ij,ij->i", P0, P0)
            C = _root_with_noise(P @ P.T)
            e = (error0[rows] - D @ moved) * w
            solved = dtrsm(1.0, C, np.hstack([e, P]), lower=1)
            u, gains = solved[:, :k], solved[:, k:] @ L.T  # theta moves by u times the gain of a row
            diagonal = np.diagonal(C)[:, None]
            with np.errstate(divide="ignore", invalid="ignore"):  # a row of weight 0 is not learned, nor judged
                error[rows] = diagonal * u / w
                s[rows] = ((diagonal**2 - 1) / w**2)[:, 0]
            squares = np.cumsum(u**2, axis=0)
            total[rows] = rss + squares - u**2
            if slope is not None:
                bends = _curved(self.H, gains.T)
                products = gains @ bends
                fall = np.diagonal(products)
                # Each row adds this to twice the change of the penalty, (2 slope + H t)'t after the moves t so far.
                steep = gains @ slope + bends.T @ moved + (products * _below(len(u))) @ u
                more = 2 * u * steep + u**2 * fall[:, None]
                so_far = taken + np.cumsum(more, axis=0)
                total[rows] -= so_far - more
                taken = so_far[-1]
                traces[rows] = trace - np.cumsum(fall) + fall
                trace -= fall.sum()
                if fades:
                    with np.errstate(divide="ignore", invalid="ignore"):
                        bent[rows] = (diagonal**2 / w**2)[:, 0] * fall  # x' V H V x
                    toward = P0 @ self.L.T
                    bent0[rows] = np.einsum("ij,ji->i", toward, _curved(self.H, toward.T))
            rss = rss + squares[-1]
            moved = moved + gains.T @ u
            if last and start >= n:
                break
            C.flat[:: len(C) + 1] += 1
            less = dtrsm(1.0, C, P, lower=1)
            L = dgemm(-1.0, gains.T, less, 1.0, L, overwrite_c=L is not self.L)
        if fades:
            first, _, known = self._noise(self.rows, self.squares, np.atleast_1d(self.rss), self.trace)
            rows_before = (left * self.rows + fading.rows)[:, None]
            squares_before = (left**2 * self.squares + fading.squares)[:, None]
            variance, dof, spread = self._noise(rows_before, squares_before, left[:, None] * total, traces[:, None])
            spread, known = spread / fading.elapsed[:, None], known / fading.elapsed[0]  # that of the row before
            s = ((spread * s[:, None] + (1 - spread) * bent[:, None]) / left[:, None])[:, 0]
            s0 = known * s0 + (1 - known) * bent0
        else:
            first, rows_before = self.noise()[0], (self.rows + fading.rows)[:, None]
            variance, dof, _ = self._noise(rows_before, rows_before, total, traces[:, None])
        scale, at_once = np.sqrt(own + s)[:, None], np.sqrt(own + s0)[:, None]
        issued = in_stds(error0, np.sqrt(first) * at_once)
        if not last:
            self._leave(L, moved, rss - taken, trace, float(counts.sum()))
        std = np.sqrt(variance) * scale
        columns = [y - error, std, dof, scale, issued]
        if k > 1 or dof.ndim == 0:
            columns = [np.broadcast_to(column, y.shape) for column in columns]
        mean, std, dof, scale, issued = (column.reshape(block.y.shape) for column in columns)
        return Innovations(mean, std, dof, scale, issued, together=1)

    def _leave(self, L: Array, moved: Array, rss: Array, trace: float, rows: float) -> None:
        """Assign the state after a block."""
        step = moved.reshape(-1, *self.theta.shape[1:])
        if self.free is None:
            self.L[:] = L
            self.theta += step
        else:
            self.L = np.asfortranarray(L)
            self.theta[self.free] += step
        self.rss = float(rss[0]) if self.theta.ndim == 1 else rss
        self.trace = trace
        self.rows += rows
        self.squares += rows

    def _slope(self) -> Array:
        """Return the gradient of the penalty on the free coordinates of theta."""
        assert self.H is not None
        slope = _curved(self.H, self.theta if self.free is None else self.theta[self.free])
        return slope if self.tilt is None else slope + self.tilt

    # ---- reading ---------------------------------------------------------------------------------------

    def copy(self) -> "SquareRootFilter":
        """Return a filter that later rows of this one do not change. O(d^2)."""
        rss = self.rss if self.theta.ndim == 1 else np.array(self.rss)
        L, theta, joined = _side_by_side(self.L.copy("F"), self.theta.copy(), self.free)
        memory = {"row": self.row.copy(), "change": self.change.copy()}
        return replace(self, theta=theta, L=L, joined=joined, rss=rss, **memory)

    def output(self, X: Array) -> tuple[Array, Array]:
        """Return x'theta for rows of X, shape (n,) or (n, k), and its variance in units of the noise variance, (n,)."""
        if len(X) == 1 and self.theta.ndim == 1:
            x = self._input(X[0])
            v = x.dot(self.L)
            return np.array([self._mean(x)]), np.array([ddot(v, v)])
        root = self.design.rows(X) @ self.L
        return self.mean(X), np.einsum("ij,ij->i", root, root)

    def mean(self, X: Array) -> Array:
        """Return the predictive means for rows of X, shape (n,) or (n, k)."""
        if len(X) == 1 and self.theta.ndim == 1:
            return np.array([self._mean(self._input(X[0]))])
        return self.design.predictor(X, self.theta)

    def predict(self, X: Array) -> Student:
        """Return the predictive distribution for rows of X, including the noise."""
        variance, dof = self.noise()
        if len(X) == 1 and self.theta.ndim == 1:
            x = self._input(X[0])
            v = x.dot(self.L)
            return Student(np.array([self._mean(x)]), np.array([math.sqrt(variance * (1 + ddot(v, v)))]), dof)
        mean, leverage = self.output(X)
        return Student(mean, np.sqrt(np.multiply.outer(1 + leverage, variance)), dof)

    def _mean(self, x: Array) -> float:
        return (float(ddot(x, self.theta)) + float(self.design.offset_rest)) + float(self.design.offset)

    def noise(self) -> tuple[Any, Any]:
        """Return the noise variance and its degrees of freedom, equal to those of the information up to rounding.

        The variance is rss / dof with dof = rows - rank + tr(L L' H).
        """
        if self.noise_var is not None:
            return (self.noise_var if self.theta.ndim == 1 else np.full(len(self.rss), self.noise_var)), math.inf
        dof = self.rows - self.L.shape[1] + self.trace
        if not dof > _ROUNDING * self.rows:  # as in Noise.learned
            return self.rss * math.nan, dof
        return (max(self.rss, 0.0) if self.theta.ndim == 1 else np.maximum(self.rss, 0)) / dof, dof

    def _noise(self, rows: Any, squares: Any, rss: Array, trace: Any) -> tuple[Array, Array, Array]:
        """Return the noise variance, its degrees of freedom, and squares / rows.

        Give the same object as `rows` and as `squares` if nothing was forgotten: the last one is then 1.
        """
        spread: Any = 1.0 if squares is rows else np.asarray(squares / np.where(rows > 0, rows, 1))
        if self.noise_var is not None:
            return np.full(np.shape(rss), self.noise_var), np.asarray(math.inf), spread
        effective, scaled = rows, np.maximum(rss, 0)
        if squares is not rows:
            positive = np.where(spread > 0, spread, 1)
            effective, scaled = rows / positive, scaled / positive
        dof = np.asarray(effective - self.L.shape[1] + trace)
        enough = dof > _ROUNDING * effective
        if enough.all():
            return scaled / dof, dof, spread
        return np.where(enough, scaled / np.where(enough, dof, 1), np.nan), dof, spread


def _root_with_noise(G: Array) -> Array:
    """Return the lower triangle C with C C' = G + I, given as all of G, which is overwritten."""
    G.flat[:: len(G) + 1] += 1
    C: Array
    C, failed = dpotrf(G.T, lower=1, clean=1, overwrite_a=1)  # NumPy's own takes four times as long for few rows
    if failed:
        raise np.linalg.LinAlgError("The covariance of the predictions of a block is not positive definite.")
    return C


@lru_cache(maxsize=4)
def _below(n: int) -> Array:
    """Return the matrix with ones below the diagonal, of n rows."""
    return np.tri(n, k=-1)


def _side_by_side(L: Array, theta: Array, free: Array | None) -> tuple[Array, Array, Array | None]:
    """Return L and theta as views of one array, and that array; as they are, and None, if some coordinates are held."""
    if free is not None:
        return L, theta, None
    r = L.shape[1]
    joined = np.asfortranarray(np.column_stack([L, theta]))
    return joined[:, :r], joined[:, r] if theta.ndim == 1 else joined[:, r:], joined


def _curved(H: Array, t: Array) -> Array:
    """Return H t for the Hessian of a penalty, a diagonal (f,) or (f, f), and t of shape (f,) or (f, m)."""
    return H @ t if H.ndim == 2 else (H * t if t.ndim == 1 else H[:, None] * t)


def _penalises(g: Regularizer, d: int) -> bool:
    root = g.root(d)
    return root is None or bool(root.any())


def may_overflow(block: Block) -> bool:
    """Whether some rows cannot be predicted, because those of weight 0 are NaN or too large; others were checked."""
    entries = block.X.data if hasattr(block.X, "toarray") else block.X.ravel("K")
    return block.weights is not None and not all_usable(None, entries, block.y.ravel("K"))


def in_stds(error: Array, std: Array) -> Array:
    """Return errors in units of their std: NaN if the std is not finite, and 0 for no error where it is 0."""
    one = common(std)
    if np.ndim(one) == 0 and 0 < one < math.inf:
        return error / one
    with np.errstate(invalid="ignore", divide="ignore"):
        found = error / std
    if np.isfinite(std).all() and not np.isnan(found).any():
        return found
    return np.where(np.isfinite(std), np.where((error == 0) & (std == 0), 0.0, found), np.nan)


def innovation(y: Any, mean: Any, variance: Any, dof: float, s: float) -> tuple[Any, ...]:
    """Return the fields of `Innovations` for one row; s is its variance in units of the noise variance."""
    std, error = (variance * s) ** 0.5, y - mean
    if isinstance(error, float):
        issued: Any = error / std if std else math.copysign(math.inf, error) if error else 0.0
    else:
        issued = in_stds(error, std)
    return mean, std, dof, s**0.5, issued, 1


def common(values: Array) -> Array:
    """Return the one number that an array holds by broadcasting, which saves work on each entry, or the array."""
    return values[0] if values.strides == (0,) and len(values) else values
