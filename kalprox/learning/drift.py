"""Linear models that forget otherwise than by fading: their coefficients walk, or only a window of rows is kept."""

from dataclasses import replace

import numpy as np

from kalprox.base.arrays import Array
from kalprox.base.tree import Saved, Sizes, expect, leaf, state
from kalprox.forgetting import Forgetting
from kalprox.information import Information, merge
from kalprox.kernel.filter import Learned
from kalprox.linalg.triangle import follow_mean, recenter, solve_triangular, stacked_triangle
from kalprox.sources import Block
from kalprox.sources.weighting import counts_of

LONGEST = 256  # rows that are predicted together while coefficients walk
_CHUNK = 64  # rows that are folded together
_LARGE = 1e4  # a variance of steps, in units of what is known, beyond which a Cholesky factor loses digits


def fold_drifting(
    info: Information, walk: Forgetting, block: Block, counts: Array | None, *, intercept: bool
) -> Information:
    """Return the information after a block of rows, each of which is one step of the walk. O((d + 64)^3) for 64 rows.

    Every split into blocks gives the same, up to rounding.

    Parameters
    ----------
    info : Information
        Of the rows before the block.
    walk : Forgetting
    block : Block
        Rows of weight 0 are no rows.
    counts : array of shape (b,), optional
        How often each row counts in the number of rows; 1 by default.
    intercept : bool
        Whether the model has an intercept, which walks too.
    """
    X, weights = block.X, block.weights
    y = np.reshape(block.y, (len(X), -1))
    if weights is not None:
        some = weights > 0
        X, y, weights = X[some], y[some], weights[some]
        counts = None if counts is None else counts[some]
    if len(X) == 0:
        return info
    rows = np.concatenate([X, y], axis=1)
    if not info.T.any() and intercept:  # the point about which rows are held
        info = Information.zero(info.d, info.targets).fold(X[:_CHUNK], y[:_CHUNK] if info.targets else y[:_CHUNK, 0])
        T, shift = np.zeros((1, info.T.shape[1])), info.shift
        total = squares = 0.0
    else:
        T, shift = _at_origin(info) if not intercept else (info.T, info.shift)
        total, squares = float(info.rows), float(info.squares)
    for start in range(0, len(rows), _CHUNK):
        part = slice(start, start + _CHUNK)
        B = np.concatenate([np.ones((len(rows[part]), 1)), rows[part] - shift], axis=1)
        if weights is not None:
            B *= np.sqrt(weights[part])[:, None]
        T = _walked_rows(T, B, _steps(walk, info.d, shift, intercept=intercept))
        if intercept:
            T, shift = follow_mean(T, shift)
    if not np.isfinite(T).all():
        info.fold(block.X, block.y, block.weights)  # raises an error that names the row
    more = float(len(X)) if counts is None else float(counts.sum())
    return Information(T, shift, np.asarray(total + more), np.asarray(squares + more), info.targets)


def walked(info: Information, walk: Forgetting, *, intercept: bool) -> Information:
    """Return what is known of the coefficients after one more step, before the next row. O(d^3)."""
    T, shift = (info.T, info.shift) if intercept else _at_origin(info)
    T = _one_step(T, _steps(walk, info.d, shift, intercept=intercept))
    return Information(T, shift, info.rows, info.squares, info.targets)


def _at_origin(info: Information) -> tuple[Array, Array]:
    """Return the triangle of rows less zero: without an intercept, theta is the same about no other point."""
    return recenter(info.T, info.shift), np.zeros_like(info.shift)


def _steps(walk: Forgetting, d: int, shift: Array, *, intercept: bool) -> Array:
    """Return G of shape (p, m), the steps of the columns of T for m independent standard normal variables.

    The intercept at the point c is that at zero plus c'theta, so that steps of theta move it, too.
    """
    q = np.sqrt(walk.steps(d, intercept=intercept))
    q = q if intercept else np.append(0.0, q)
    G = np.zeros((1 + len(shift), 1 + d))
    G[: 1 + d][np.diag_indices(1 + d)] = q
    if intercept:
        G[0, 1:] = shift[:d] * q[1:]
    return G[:, q > 0]


def _walked_rows(T: Array, B: Array, G: Array) -> Array:
    """Return the triangle of T and of rows B, with a step before each row of B, in terms of theta after the last.

    Seen from the last row, the row i of [T; B] has missed n_i steps: its noise has the covariance I + K K' min(n_i,
    n_j) with K = [T; B] G, by whose Cholesky factor the rows are divided.
    """
    if not G.size:
        return stacked_triangle(np.zeros((1, T.shape[1])), np.concatenate([T, B]))
    p, b = len(T), len(B)
    rows = np.concatenate([T, B])
    K = rows @ G
    missed = np.append(np.full(p, b), np.arange(b - 1, -1, -1))
    if (np.einsum("ij,ij->i", K, K) * missed).max() > _LARGE:
        for row in B:
            T = stacked_triangle(np.zeros((1, T.shape[1])), np.concatenate([_one_step(T, G), row[None]]))
        return T
    S = (K @ K.T) * np.minimum.outer(missed, missed)
    S.flat[:: len(S) + 1] += 1
    whitened = solve_triangular(np.linalg.cholesky(S).T, rows, transposed=True)
    return stacked_triangle(np.zeros((1, T.shape[1])), whitened)


def _one_step(T: Array, G: Array) -> Array:
    """Return the triangle after a step, whatever its size: the step is one more unknown, which QR eliminates."""
    m = G.shape[1]
    if not m or not T.any():
        return T
    rows = np.zeros((m + len(T), m + T.shape[1]))
    rows[:m, :m], rows[m:, :m], rows[m:, m:] = np.eye(m), -T @ G, T
    found = stacked_triangle(np.zeros((1, rows.shape[1])), rows)
    return found[m:, m:] if len(found) > m else np.zeros((1, T.shape[1]))


def learned_walking(
    P: Array, K: Array, error0: Array, weights: Array, rss: Array, trace: float
) -> tuple[Learned, Array]:
    """Return what was known of each row of a block before it, and what steps have added to its leverage at the start.

    All coefficients take a step before each row but the first. Counted from 0, rows i and j were predicted with the
    covariance x_i'V x_j + min(i, j) x_i'Q x_j. The penalty counts as it did before the block: exact without one, and
    for a single row. O(b^3) for b rows.

    Parameters
    ----------
    P, K : arrays of b rows
        The rows times a root of V and times one of Q.
    error0 : array of shape (b, k)
        The targets less their predictions before the block.
    weights : array of shape (b,)
        A row of weight 0 is not learned, nor judged.
    rss : array of shape (k,)
    trace : float
        Before the block; see `Learned`.
    """
    n, root = len(P), np.sqrt(weights)[:, None]
    step = np.append(0.0, np.cumsum(weights[:-1] > 0))
    walked = (K @ K.T) * np.minimum.outer(step, step)
    S = (P @ P.T + walked) * (root * root.T)
    S.flat[:: n + 1] += 1
    C = np.linalg.cholesky(S)
    u = solve_triangular(C.T, error0 * root, transposed=True)
    diagonal = np.diagonal(C)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        errors, leverages = diagonal * u / root, ((diagonal**2 - 1) / root**2)[:, 0]
    found = Learned(errors, leverages, np.zeros(n), rss + np.cumsum(u**2, axis=0) - u**2, np.full(n, trace))
    return found, np.diagonal(walked)


_LEFT_OUT = 64  # rows, or as many as columns, that are left out of the window one by one


@state
class WindowRows:
    """The rows of a window in two stacks: an old one, from whose start rows are left out, and a new one at its end.

    The old stack is cut into chunks, and has the information of the chunks after each of them; the new one has that of
    all its rows. The information of the window is the sum of what is left of the first chunk, of the chunks after it,
    and of the new rows. When the old stack is used up, the new one takes its place. Nothing is ever subtracted, so that
    no digits are lost however long the stream is, as they would be by downdating. A row is folded three times or so,
    and the sum takes O(d^3); besides the rows of the window, there are as many numbers in the old stack.

    Attributes
    ----------
    size : int
        The number of rows of a full window.
    kind : str
        What the weights mean, one of `kalprox.sources.weighting.WEIGHT_KINDS`.
    old, new : tuple of Block
        The chunks of the two stacks.
    rest : tuple of Information
        For each chunk of the old stack, the information of the chunks after it.
    added : Information
        That of the new stack.
    skipped : int
        The number of rows of the first old chunk that have left the window.
    """

    size: int
    kind: str
    old: tuple[Block, ...]
    rest: tuple[Information, ...] = leaf(given=True)
    new: tuple[Block, ...]
    added: Information
    skipped: int = 0

    def _check_restored(self, _: Sizes) -> None:
        """Raise a ValueError if there are too many rows."""
        expect(0 <= len(self) <= self.size)
        expect(self.skipped < len(self.old[0]) if self.old else self.skipped == 0)

    @classmethod
    def empty(cls, size: int, kind: str, d: int, targets: int | None) -> "WindowRows":
        """Return a window without rows."""
        return cls(size, kind, (), (), (), _zero(d, targets))

    def __len__(self) -> int:
        return sum(map(len, (*self.old, *self.new))) - self.skipped

    def after(self, block: Block) -> "WindowRows":
        """Return the window after a block of rows; rows of weight 0 are no rows."""
        rows = Block(block.X, block.y, block.weights)
        rows = rows if rows.weights is None else rows.at(rows.weights > 0)
        if not len(rows):
            return self
        if len(rows) >= self.size:
            start = self.empty(self.size, self.kind, self.added.d, self._targets)
            return start._with(rows.part(len(rows) - self.size, len(rows)))
        found = self._with(rows)
        extra = len(found) - self.size
        return found if extra <= 0 else found._without(extra)

    @classmethod
    def restored(cls, saved: Saved, name: str, sizes: Sizes) -> "WindowRows":
        """Return the window that was saved under `name`, whose sums of chunks are made again."""
        found = saved.tree(cls, name, sizes, rest=())
        return replace(found, rest=found._rest(found.old))

    @property
    def _targets(self) -> int | None:
        return self.added.targets

    def _with(self, rows: Block) -> "WindowRows":
        rows = replace(rows, X=np.array(rows.X), y=np.array(rows.y))
        added, new, length = self._folded(self.added, rows), list(self.new), max(_LEFT_OUT, rows.X.shape[1])
        if new and len(new[-1]) < length:
            rows = Block.joined([new.pop(), rows])
        new += [rows.part(i, i + length) for i in range(0, len(rows), length)]
        return replace(self, new=tuple(new), added=added)

    def _without(self, rows: int) -> "WindowRows":
        """Return the window without its oldest rows."""
        found, skipped = self, self.skipped + rows
        while skipped:
            if not found.old:
                found = found._turned()
            if skipped < len(found.old[0]):
                break
            skipped -= len(found.old[0])
            found = replace(found, old=found.old[1:], rest=found.rest[1:])
        return replace(found, skipped=skipped)

    def _turned(self) -> "WindowRows":
        """Return the window with its new rows as the old ones."""
        zero = _zero(self.added.d, self._targets)
        return replace(self, old=self.new, rest=self._rest(self.new), new=(), added=zero)

    def _rest(self, chunks: tuple[Block, ...]) -> tuple[Information, ...]:
        rest = [_zero(self.added.d, self._targets)]
        for chunk in chunks[:0:-1]:
            rest.append(merge(self._folded(_zero(self.added.d, self._targets), chunk), rest[-1]))
        return tuple(rest[::-1][: len(chunks)])

    def _folded(self, info: Information, rows: Block) -> Information:
        return info.fold(rows.X, rows.y, rows.weights, counts_of(rows.weights, self.kind))

    @property
    def information(self) -> Information:
        """The information of the rows of the window. O(c d^2 + d^3), for chunks of c rows."""
        if not self.old:
            return self.added
        first = self.old[0].part(self.skipped, len(self.old[0]))
        return merge(merge(self._folded(_zero(self.added.d, self._targets), first), self.rest[0]), self.added)


def _zero(d: int, targets: int | None) -> Information:
    zero = Information.zero(d, targets)
    return replace(zero, T=zero.T[:1])  # the triangle has no more rows than were learned
