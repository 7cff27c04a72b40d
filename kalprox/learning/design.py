"""The design: how rows of X become inputs of the model h, and how theta becomes coefficients."""

from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse

from kalprox.base.arrays import Array, masked
from kalprox.base.tree import PickledFields, Sizes, expect, leaf, state
from kalprox.models import Model, Offset
from kalprox.regularizers import Regularizer
from kalprox.sources import Block


@state
class Moments:
    """The number of rows, and the means and centred sums of squares of the columns of X. Moments add."""

    rows: float = leaf(sign="nonnegative")
    mean: Array = leaf("d")
    squares: Array = leaf("d", sign="nonnegative")  # the sum of squared deviations from the mean

    @classmethod
    def of(cls, block: Block) -> "Moments":
        """Return the moments of a block, whose X may be sparse."""
        if scipy.sparse.issparse(block.X):
            return cls._of_sparse(block)
        X = masked(block.weights, block.X)
        weights = np.ones(len(block)) if block.weights is None else block.weights
        rows = float(weights.sum())
        mean = weights @ X / rows if rows else np.zeros(X.shape[1])
        return cls(rows, mean, weights @ (X - mean) ** 2)

    @classmethod
    def _of_sparse(cls, block: Block) -> "Moments":
        weights = np.ones(len(block)) if block.weights is None else block.weights
        counting, X = weights > 0, block.X
        if not counting.all():  # rows of weight 0 may hold anything
            X, weights = X[counting], weights[counting]
        rows = float(weights.sum())
        mean, squares = (np.asarray(weights @ A) for A in (X, X.multiply(X)))
        mean = mean / rows if rows else mean
        return cls(rows, mean, np.maximum(squares - rows * mean**2, 0.0))

    def __add__(self, other: "Moments") -> "Moments":
        rows, apart = self.rows + other.rows, other.mean - self.mean
        share = other.rows / rows if rows else 0.0
        return Moments(rows, self.mean + share * apart, self.squares + other.squares + self.rows * share * apart**2)

    def with_rows(self, block: Block) -> "Moments":
        """Return the moments with the rows of a block; of sparse rows, columns that are 0 in all need little work."""
        if not scipy.sparse.issparse(block.X) or block.X.nnz > len(self.mean) // 4:
            return self + Moments.of(block)
        some = np.unique(block.X.indices)
        before = Moments(self.rows, self.mean[some], self.squares[some])
        after = before + Moments.of(replace(block, X=block.X[:, some]))
        share = 1 - self.rows / after.rows if after.rows else 0.0
        squares = np.square(self.mean)
        squares *= self.rows * share
        squares += self.squares
        mean = self.mean * (1 - share)
        mean[some], squares[some] = after.mean, after.squares
        return Moments(after.rows, mean, squares)

    @property
    def sd(self) -> Array:
        return np.sqrt(self.squares / (self.rows or 1.0))


@state
class Design(PickledFields):
    """The inputs of h are [1 | (X - center) / scale], and `offset` is added to the output of a linear h.

    Centring keeps the digits of features far from zero, and makes the intercept independent of the coefficients. The
    mean of features around 1e12 is itself rounded by 1e-4: what rounding left of it is subtracted too (`center_rest`),
    and what it left of the offset is added (`offset_rest`). A model given as a function fn(theta, x) takes the rows of
    X unchanged: `center` and `scale` are then None, and theta is `coef`.

    With several `outputs`, one for each class, theta is a matrix of one row for each input and one column for each
    output, row by row. With `row_offsets` the offsets of the rows are the last column of the inputs.
    """

    center: Array | None = leaf("d", default=None)
    scale: Array | None = leaf("d", sign="positive", pad=1.0, default=None)
    intercept: bool = False
    offset: Any = 0.0  # a number, or (k,)
    center_rest: Array | None = leaf("d", default=None)  # None where nothing is left
    offset_rest: Any = 0.0
    outputs: int | None = None  # None for one output that is a number
    row_offsets: bool = False

    def _check_restored(self, sizes: Sizes) -> None:
        """Raise a ValueError unless this can be the design of the features and parameters of a file."""
        expect((self.center is None) is (self.scale is None) and self.outputs not in (0, 1))
        expect(self.center is None or self.size == sizes["p"])

    @classmethod
    def of_moments(
        cls,
        moments: Moments,
        *,
        intercept: bool,
        standardize: bool,
        outputs: int | None = None,
        row_offsets: bool = False,
        centred: bool = True,
    ) -> "Design":
        """Return the design that centres the columns (with an intercept) and standardises them (if `standardize`).

        With `centred` False the columns are not centred, so that those of a sparse X stay sparse.
        """
        mean, sd = moments.mean, moments.sd
        ones, zeros = np.ones(len(mean)), np.zeros(len(mean))
        scale = np.where(sd > 0, sd, 1.0) if standardize else ones
        return cls(mean if intercept and centred else zeros, scale, intercept, outputs=outputs, row_offsets=row_offsets)

    @property
    def first(self) -> int:
        """The position of the first coefficient in theta: 1 if an intercept precedes it."""
        return int(self.intercept)

    @cached_property
    def _plain(self) -> bool:
        """Whether the inputs of h are the columns of X unchanged."""
        if self.center is None or self.scale is None:
            return True
        return not self.intercept and not self.center.any() and self._unscaled

    @cached_property
    def _unscaled(self) -> bool:
        return bool(np.all(self.scale == 1))

    def model(self, model: Model) -> Model:
        """Return the model of these inputs, given that of inputs without offsets."""
        return Offset(model) if self.row_offsets else model

    def rows(self, X: Array, offset: Array | None = None) -> Array:
        """Return the inputs of h for rows of X with these offsets, if the design has offsets."""
        if self.row_offsets is (offset is None):
            what = "given: the model was fitted to rows with an offset" if offset is None else "left out: it was not"
            raise ValueError(f"offset must be {what}. Give the offset, or the exposure, of all rows or of none.")
        inputs = self._centred(X)
        if offset is None:
            return inputs
        if scipy.sparse.issparse(inputs):
            return scipy.sparse.hstack([inputs, offset[:, None]], format="csr")
        return np.column_stack([inputs, offset])

    def _centred(self, X: Array) -> Array:
        if self._plain:
            return X
        if scipy.sparse.issparse(X):
            if self.center.any():  # type: ignore[union-attr]
                X = X.toarray()
            else:
                columns = X if self._unscaled else X @ scipy.sparse.diags(1 / self.scale)  # type: ignore[operator]
                ones = np.ones((X.shape[0], self.first))
                return scipy.sparse.hstack([ones, columns], format="csr") if self.first else columns.tocsr()
        inputs = np.empty((X.shape[0], X.shape[1] + self.first))
        inputs[:, : self.first] = 1.0
        columns = inputs[:, self.first :]
        np.subtract(X, self.center, out=columns)  # type: ignore[arg-type]
        if self.center_rest is not None:
            columns -= self.center_rest
        if not self._unscaled:
            columns /= self.scale
        return inputs

    def put_row(self, x: Array, row: Array) -> Array:
        """Put the input of a row x into the memory of another one, and return it; without scales."""
        if not self.intercept:
            row[:] = x
            return row
        row[0] = 1.0
        np.subtract(x, self.center, out=row[1:])  # type: ignore[arg-type]
        if self.center_rest is not None:
            row[1:] -= self.center_rest
        return row

    def residual(self, y: Any) -> Any:
        """Return the digits of y about the offset."""
        return (y - self.offset) - self.offset_rest

    def columns(self, inputs: Array) -> Array:
        """Return the rows of X whose inputs of h these are, up to rounding."""
        d = 0 if self.center is None else len(self.center)
        return inputs[:, self.first : self.first + d] * self.scale + self.center

    def block(self, block: Block) -> Block:
        """Return the block with the inputs of h in place of X."""
        if self._plain and not self.row_offsets:
            return block
        return replace(block, X=self.rows(block.X, block.offset), offset=None)

    def predictor(self, X: Any, theta: Array) -> Array:
        """Return rows(X) @ theta + offset without forming rows(X); X may be sparse."""
        if self.center is None or self.scale is None:
            return X @ theta
        coef = (theta[self.first :].T / self.scale).T
        constant = self._constant(coef.T, theta[0]) if self.intercept else self.offset_rest
        if isinstance(X, np.ndarray):
            return ((X - self.center if self.intercept else X) @ coef + constant) + self.offset
        return X @ coef + ((self.offset - self.center @ coef) + constant)

    def _constant(self, coef: Array, first: Array) -> Array:
        """What is added to (x - center) @ coef' + offset, for coef of shape (..., d) and the `first` entry of theta."""
        constant = first + self.offset_rest
        return constant if self.center_rest is None else constant - coef @ self.center_rest

    def regularizer(self, g: Regularizer) -> Regularizer:
        """Return the regulariser of theta for a penalty g on the coefficients; an intercept is not penalised."""
        if not self.intercept or self.center is None:
            return g
        outputs = self.outputs or 1
        return g.with_free_intercept(outputs * len(self.center), outputs)

    @property
    def size(self) -> int:
        """The number of entries of theta; 0 if it is that of a function."""
        return 0 if self.center is None else (len(self.center) + self.first) * (self.outputs or 1)

    def by_output(self, theta: Array) -> Array:
        """Return theta of shape (..., size) as vectors of one output each, shape (..., m, p); as it is if m is None."""
        if self.outputs is None:
            return theta
        return np.swapaxes(theta.reshape(*theta.shape[:-1], -1, self.outputs), -1, -2)

    def per_target(self, theta: Any) -> Array:
        """Return parameters, shape (p,), (p, k) or, for several outputs, (p m,), as (p,), (k, p) or (m, p)."""
        theta = np.asarray(theta)
        return theta.T if self.outputs is None else self.by_output(theta)

    def coef(self, theta: Array) -> Array:
        """Return the coefficients of X, shape (..., d), for theta of shape (..., d) or (..., 1 + d)."""
        coef = theta[..., self.first :]
        return coef if self.scale is None else coef / self.scale

    def intercept_of(self, theta: Array) -> Array:
        """Return the intercept, shape (...), for theta of shape (..., 1 + d); zero if the design has no intercept."""
        if not self.intercept:
            return np.zeros(theta.shape[:-1])
        coef = self.coef(theta)
        return (self.offset - coef @ self.center) + self._constant(coef, theta[..., 0])

    def jacobian(self) -> Array | None:
        """Return the matrix that maps theta to (intercept, coef) for a zero offset; None for a function."""
        if self.center is None or self.scale is None:
            return None
        J = np.diag(1 / self.scale)
        if not self.intercept:
            return J
        top = np.concatenate([[1.0], -self.center / self.scale])
        return np.vstack([top, np.hstack([np.zeros((len(J), 1)), J])])
