"""`kalprox.refine`: refinement over arrays, sources, partitions and Dask arrays."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from kalprox.algorithms.refine import Refined
from kalprox.algorithms.refine import refine as refine_source
from kalprox.base.arrays import Array
from kalprox.engines.collections import is_collection
from kalprox.engines.cutting import partitions_of
from kalprox.engines.opening import engine_of, open
from kalprox.engines.source import EngineSource
from kalprox.information import Information
from kalprox.likelihoods import Likelihood
from kalprox.models import Model
from kalprox.regularizers import Regularizer
from kalprox.sources import Source
from kalprox.structures import Structure

__all__ = ["refine"]


def refine(
    model: Model,
    regularizer: Regularizer,
    source: Source | Sequence[Any],
    start: Array,
    *,
    gamma: float | None = None,
    max_passes: int = 200,
    tol: float = 1e-10,
    prior: Information | None = None,
    likelihood: Likelihood | None = None,
    weight_kind: str = "frequency",
    engine: Any = None,
    progress: bool = False,
    structure: Structure | str | None = None,
) -> Refined:
    """Minimise the loss of all rows plus the regularizer, relinearising in every pass over the rows.

    Solves min over theta of sum_k w_k loss(y_k, h_k(theta)) + g(theta) by damped proximal Gauss-Newton. It converges to
    a stationary point for smooth and nonsmooth g (zeros are exact), whatever the scales of the parameters. The
    covariance is (J'J + Hess g)^-1 / gamma there: exact for a linear model with Gaussian likelihood and quadratic g,
    Laplace's approximation otherwise. Each pass costs the Jacobian of the model and O(d^2) per row; a linear model with
    Gaussian likelihood takes one pass.

    Parameters
    ----------
    model : Model
        The model h, one of `kalprox.models`.
    regularizer : Regularizer
        The penalty g, one of `kalprox.regularizers`.
    source : tuple of arrays, Source, or list of partitions
        (X, y) or (X, y, weights), arrays of NumPy, JAX or Dask; any `kalprox.sources.Source`; or the list that
        `kalprox.engines.partitions_of` returns.
    start : array of shape (d,)
        The first theta. The model and g must be finite there.
    gamma : float, optional
        The noise precision. By default the noise variance is learned from the residuals.
    max_passes : int
        The maximum number of passes over the rows.
    tol : float
        The refinement has converged when an undamped step is this small relative to theta, in units of the column
        norms of the Jacobian.
    prior : Information, optional
        Information about theta from elsewhere, in units of the noise: it adds 1/2 ||R theta - z||^2 to the objective.
        The prior counts in `mean`, `cov` and `objective` of the result, and not in `information`.
    likelihood : Likelihood, optional
        One of `kalprox.likelihoods`. The default is Gaussian.
    weight_kind : {"frequency", "precision"}
        What the weights of the rows mean: how often each row counts, or its 1 / sigma^2 up to a common factor. The
        degrees of freedom of precision weights are counted from the number of rows.
    engine : str, distributed.Client, pyspark.sql.SparkSession or Engine, optional
        Where the rows are folded; see `kalprox.engines.open`. By default arrays and sources are folded in this thread,
        partitions in threads, and Dask arrays by the current Dask client.
    progress : bool
        Show the number of passes, in a terminal or a notebook.
    structure : Structure or str, optional
        One of `kalprox.structures`, or its name, such as "diagonal", for more parameters than a matrix of d x d numbers
        allows: the mean is then found by conjugate gradients, with products of the Jacobian and vectors. It is that of
        the dense refinement, up to `tol`; only the covariance, `var`, is approximate. X may be a sparse matrix, which
        stays sparse, without an engine.

    Returns
    -------
    Refined
        The minimiser with its covariance, the number of passes, whether it converged, and why it stopped.

    Examples
    --------
    >>> import numpy as np
    >>> from kalprox.models import Function
    >>> from kalprox.regularizers import Zero
    >>> x = np.linspace(0.0, 4.0, 9)
    >>> y = 3 / (1 + 2 * x)
    >>> fit = refine(Function(lambda theta, x: theta[0] / (1 + theta[1] * x)), Zero(), (x, y), np.array([1.0, 1.0]))
    >>> fit.mean.round(8), fit.converged
    (array([3., 2.]), True)
    """
    with _opened(source, engine) as rows:
        return refine_source(
            model,
            regularizer,
            rows,
            start,
            gamma=gamma,
            max_passes=max_passes,
            tol=tol,
            prior=prior,
            likelihood=likelihood,
            weight_kind=weight_kind,
            progress=progress,
            structure=structure,
        )


@contextmanager
def _opened(source: Any, engine: Any) -> Iterator[Any]:
    """Yield a source whose rows the engine folds, if they are not folded in this thread."""
    if hasattr(source, "fold"):
        if engine is not None:
            raise ValueError("engine must be None where source is a Source, which folds its rows itself.")
        yield source
        return
    items = source if isinstance(source, Sequence) else ()
    in_dask = any(map(is_collection, items))
    partitioned = len(items) > 0 and not in_dask and hasattr(items[0], "blocks")
    if not items or (engine is None and not in_dask and not partitioned):
        yield source
        return
    with open(engine_of(items[0]) if engine is None else engine) as opened:
        yield EngineSource(opened, items if partitioned else partitions_of(tuple(items)))
