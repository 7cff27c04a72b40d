"""A factor of a structured covariance: what leverage, standard errors and draws are computed from."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy.sparse

from kalprox.base.arrays import Array, namespace
from kalprox.base.checks import concrete
from kalprox.large.low_rank import PlusLowRank

__all__ = ["StructuredFactor"]

_LARGEST = 5000  # coordinates up to which the covariance is made as one matrix


@dataclass(frozen=True, eq=False)
class StructuredFactor:
    """The covariance of theta in units of the noise, read as a `kalprox.linalg.factor.Factor` is.

    With P on the free coordinates it is P^-1, or c P^-1 + (1 - c) P^-1 diag(h) P^-1 if forgetting has faded the rows: h
    is the part of P that no row has a share in, and c the `fading` of the rows.

    Attributes
    ----------
    precision : PlusLowRank
        P, with the identity on the coordinates that are held.
    held : array of bool, shape (d,), or None
        The coordinates that a kink or a bound of g holds; None where there are none.
    fading : scalar
    kept : array of shape (d,)
        h; it is used where `fading` is not 1.
    """

    precision: PlusLowRank
    held: Any = None
    fading: Any = 1.0
    kept: Any = None

    proper: ClassVar[bool] = True
    n_undetermined: ClassVar[int] = 0

    @property
    def d(self) -> int:
        return self.precision.d

    @property
    def free(self) -> Array | None:
        return None if self.held is None else np.flatnonzero(~np.asarray(self.held))

    @property
    def rank(self) -> int:
        return self.d if self.held is None else int((~np.asarray(self.held)).sum())

    @property
    def _fades(self) -> bool:
        fading = concrete(self.fading)  # of a program that is traced it is not known
        return fading is None or bool((fading != 1).any())

    def leverage(self, D: Array) -> Array:
        """Return x'C x for each row x of D, with the covariance C, shape (n,)."""
        D = self._masked(D)
        if not self._fades:
            return self.precision.leverage(D)
        return (self.whitened(D) ** 2).sum(axis=1)

    def whitened(self, D: Array) -> Array:
        """Return rows whose products with each other are D C D'."""
        D, P, xp = self._masked(D), self.precision, namespace(D)
        if not self._fades:
            return P.whitened(D)
        c, v = self._shares, P.solve(D)
        return xp.concatenate([c[0] * P.whitened(D), c[1] * v * xp.sqrt(self.kept)[None]], axis=1)

    @property
    def _shares(self) -> tuple[Array, Array]:
        xp, dtype = namespace(self.precision.W), self.precision.W.dtype
        c = xp.asarray(self.fading, dtype)
        return xp.sqrt(c), xp.sqrt(1 - c)

    def undetermined(self, D: Array) -> Array:
        """Return which rows have an infinite variance: none."""
        return np.zeros(len(D), bool)

    def along_null(self, D: Array) -> Array:
        """Return the coordinates of the rows along undetermined directions, of which there are none."""
        return D[:, :0]

    def variances(self) -> Array:
        """Return the diagonal of the covariance, shape (d,)."""
        v = self.precision.variances()
        if self._fades:
            a, b = self._shares
            v = a**2 * v + b**2 * self.precision.sandwich_variances(self._masked(self.kept))
        return self._masked(v)

    def covariance(self) -> Array:
        """Return the covariance as a matrix, shape (d, d), for up to 5,000 parameters."""
        if self.d > _LARGEST:
            raise ValueError(
                f"The covariance of {self.d:,} parameters as a matrix would have {self.d**2:,} entries; it is made for "
                f"up to {_LARGEST:,}. Use var(), predict() or draws of the posterior, which need no matrix."
            )
        root = self.whitened(namespace(self.precision.W).eye(self.d, dtype=self.precision.W.dtype))
        return root @ root.T

    @property
    def normals(self) -> int:
        """The number of independent standard normal numbers that a draw takes."""
        return self.precision.normals + self.d * self._fades

    def draws(self, normals: Array) -> Array:
        """Return a draw of theta about its mean for each row of `normals` standard normal numbers, shape (n, d)."""
        P, n = self.precision, self.precision.normals
        drawn = P.draws(normals[:, :n])
        if self._fades:
            a, b = self._shares
            root = namespace(self.kept).sqrt(self._masked(self.kept))
            drawn = a * drawn + b * P.solve(normals[:, n:] * root[None])
        return self._masked(drawn)

    def _masked(self, values: Array) -> Array:
        """Return values, of which those of the held coordinates are zero."""
        if self.held is None:
            return values
        if scipy.sparse.issparse(values):
            return values @ scipy.sparse.diags((~np.asarray(self.held)).astype(float))
        return namespace(values).where(self.held if values.ndim == 1 else self.held[None], 0, values)
