"""Refinement: passes over all rows, each linearised at the last estimate, until convergence.

Refinement solves

    min over theta of  sum_k w_k loss(y_k, h_k(theta)) + g(theta)                      (1)

by damped proximal Gauss-Newton steps. One pass computes the loss at theta and the information (R, z) of the rows
linearised at theta, O(d^2) numbers for any number of rows. The next trial is

    t = argmin 1/2 ||R (t - theta) - z||^2 + mu/2 ||S (t - theta)||^2 + g(t),

the prox of g in the metric of the data, with the damping as d additional rows. The trial replaces theta only if (1)
decreases. Each pass replaces the information of the previous one, so that no row counts twice.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from kalprox.algorithms.descent import Point, Problem, descend_jointly
from kalprox.base.arrays import Array, brief
from kalprox.base.checks import check_is, check_positive, check_vector
from kalprox.base.text import Text, worded
from kalprox.display.progress import progress_bar
from kalprox.information import Information
from kalprox.information.linearized import rows_not_finite
from kalprox.likelihoods import Likelihood
from kalprox.likelihoods.names import likelihood_of
from kalprox.models import Model
from kalprox.predictive import Student
from kalprox.regularizers import Regularizer
from kalprox.sources import Source, as_source
from kalprox.sources.weighting import check_weight_kind, counted_source
from kalprox.structures import Dense, Structure, structure_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Refined:
    """The result of `kalprox.refine`: the minimiser, its covariance, and how it was reached.

    Attributes
    ----------
    mean : array of shape (d,)
        The minimiser of sum_k w_k loss(y_k, h_k(theta)) + g(theta).
    cov : array of shape (d, d), or None
        The covariance noise_var (J'J + Hess g)^-1, with the Jacobian J at the mean. None with a structure, which holds
        no matrix of that size: see `var` and `information`.
    passes : int
        The number of passes over the rows, including those for the curvature of h, and not those over a sample of the
        rows that finds a start, nor `products`.
    converged : bool
        Whether the refinement has converged to a stationary point. False on a plateau, where the model does not respond
        to theta, and where theta runs to infinity.
    objective : float
        The objective at the mean, computed from the residuals there.
    message : str
        Why the refinement stopped.
    noise_var : float
        The noise variance: 1 / gamma if gamma was given, else the residual sum of squares divided by `dof`.
    dof : float
        The residual degrees of freedom: the number of rows minus the effective degrees of freedom of the fit. With a
        structure they are estimated, and NaN if the likelihood has no noise variance.
    information : Information or Structured
        The information of all rows about theta, linearised at the mean. A prior is not included. With a structure it is
        that of `kalprox.structures`, which includes the prior and the curvature of g at the mean; a coordinate that g
        holds at a kink or a bound is left out of it.
    noise_dof : float
        The degrees of freedom of the noise variance: infinite if gamma was given.
    likelihood : Likelihood
        The likelihood, with the parameter that was learned, such as the scale of `Huber`.
    var : array of shape (d,)
        The variances of theta, the diagonal of the covariance. With a structure they may be too small.
    sums : array or None
        The sums over the rows from which its parameter was learned; see `kalprox.likelihoods.Likelihood.sums`.
    products : int
        With a structure: the number of products with the Jacobian and its transpose, each of which goes over all rows.

    Examples
    --------
    >>> import kalprox as kp
    >>> X, y = np.array([[1.0], [2.0], [3.0]]), np.array([2.0, 4.0, 6.5])
    >>> fit = kp.refine(kp.models.Linear(), kp.regularizers.Zero(), (X, y), np.zeros(1))
    >>> fit.mean.round(3), fit.converged, fit.dof
    (array([2.107]), True, 2.0)
    """

    mean: Array
    cov: Array | None
    passes: int
    converged: bool
    objective: float
    message: str
    noise_var: float
    dof: float
    information: Any
    noise_dof: float
    likelihood: Likelihood
    var: Array
    sums: Array | None = None
    products: int = 0

    def __repr__(self) -> str:
        return (
            f"Refined(mean={brief(self.mean)}, std={brief(np.sqrt(self.var))}, passes={self.passes}, "
            f"converged={self.converged}, objective={self.objective:.6g}, noise_var={self.noise_var:.6g}, "
            f"dof={self.dof:.6g})"
        )

    def _repr_html_(self) -> str:
        from kalprox.display.tables import card, facts, first_rows, table

        about = {
            "Rows": f"{float(self.information.rows):,.10g}",
            "Passes": f"{self.passes:,}",
            "Result": self.message,
            "Objective": f"{self.objective:.6g}",
            "Noise std": f"{self.noise_var**0.5:.4g} ({'given' if np.isinf(self.noise_dof) else 'learned'})",
        }
        labels = [f"theta[{j}]" for j in range(len(self.mean))]
        rows = first_rows(labels, self.mean, np.sqrt(self.var))
        return card("Refined", facts(about, () if self.converged else ("Result",)), table(("", "mean", "std"), rows))

    def plot(
        self,
        ax: "Axes | None" = None,
        *,
        names: Sequence[str] | None = None,
        level: float = 0.95,
        top: int | None = None,
    ) -> "Axes":
        """Plot the parameters with their intervals, those of Student's t distribution if the noise was learned.

        Parameters
        ----------
        ax : Axes, optional
            The axes of matplotlib to draw on. By default a new figure is made.
        names : sequence of str, optional
            The names of the d parameters.
        level : float
            The level of the intervals, strictly between 0 and 1.
        top : int, optional
            The number of parameters shown, the largest; by default as many as fit, and 40 at most.

        Returns
        -------
        Axes

        Examples
        --------
        >>> from kalprox.models import Function
        >>> from kalprox.regularizers import Zero
        >>> x = np.linspace(0.0, 4.0, 9)
        >>> y = 3 / (1 + 2 * x) + 0.01 * np.cos(9 * x)
        >>> fit = refine(Function(lambda theta, x: theta[0] / (1 + theta[1] * x)), Zero(), (x, y), np.array([1.0, 1.0]))
        >>> ax = fit.plot(names=["v_max", "1/k"])
        >>> [label.get_text() for label in ax.get_yticklabels()]
        ['v_max', '1/k']
        """
        from kalprox.display.plots import plot_coefficients

        if names is not None and len(names) != len(self.mean):
            raise ValueError(f"names must name each of the {len(self.mean)} parameters; got {len(names)}.")
        names = [f"theta[{j}]" for j in range(len(self.mean))] if names is None else list(map(str, names))
        std = np.sqrt(self.var)
        ends = Student(self.mean, std, self.noise_dof).interval(level)
        return plot_coefficients(ax, names, self.mean, *ends, np.abs(self.mean), level=level, top=top, what="parameter")


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
    Gaussian likelihood takes one pass. Of very many rows in memory a sample is refined first, and its minimiser is the
    start if it is clearly better.

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
        stays sparse, without an engine. Each step makes as many passes over the rows as conjugate gradients take; see
        `Refined.products`. The noise variance is the residual sum of squares divided by degrees of freedom that are
        estimated with 4 to 16 random vectors, to 1% unless they are a small part of the rows.

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
    check_is("model", model, Model, "a model, such as kalprox.models.Linear()")
    check_is("regularizer", regularizer, Regularizer, "a regulariser, such as kalprox.regularizers.Zero()")
    theta = np.array(start)
    check_vector("start", theta)
    if gamma is not None:
        check_positive("gamma", gamma)
    check_positive("tol", tol)
    if max_passes < 1:
        raise ValueError(f"max_passes must be at least 1; got {max_passes}.")
    check_weight_kind(weight_kind)
    check_is("prior", prior, (Information, type(None)), "a kalprox.Information or None")
    likelihood = likelihood_of(likelihood, weight_kind=weight_kind)
    form = Dense() if structure is None else structure_of(structure)
    dense = isinstance(form, Dense)
    kind: Callable[..., Problem] = Problem
    if not dense:
        from kalprox.large.refinement import MatrixFreeProblem

        kind = partial(MatrixFreeProblem, form)
    from kalprox.engines.opening import opened_source  # a command on one machine does without

    with opened_source(source, engine) as opened, progress_bar("passes", shown=progress) as watch:
        rows = counted_source(as_source(opened, keep_sparse=not dense), weight_kind)
        problem = kind(model, likelihood, regularizer, rows, prior, watch)
        point, left, change = _descended(problem, theta, max_passes, tol)
        converged, message = _verdict(problem, point, left, change, max_passes, tol)
        read = problem.read(point, gamma)
        watch(problem.passes, None)
    return Refined(
        mean=point.theta,
        cov=read.cov,
        var=read.var,
        passes=problem.passes,
        converged=converged,
        objective=point.objective,
        message=Text.of(message, " ", read.noise.reason) if read.noise.reason else message,
        noise_var=float(read.noise.variance),
        dof=read.dof,
        information=read.information,
        noise_dof=float(read.noise.dof),
        likelihood=problem.likelihood,
        sums=point.sums,
        products=problem.products,
    )


def _descended(problem: Problem, theta: Array, max_passes: int, tol: float) -> tuple[Point, float, float]:
    """Return the last point, and what is left to move; see `descend_jointly`."""
    if problem.model.linear and problem.likelihood.quadratic:  # one pass is enough; linearised at 0 the residuals are y
        if (solved := problem.one_step(theta, tol)) is None:
            raise ValueError(_why_not_finite(problem, np.zeros_like(theta)))
        return *solved, 0.0
    if not np.isfinite(problem.g(theta)):
        g = type(problem.regularizer).__name__
        raise ValueError(f"start must lie where g is finite; {g} is {problem.g(theta)} there. Change start, or bounds.")
    nearer = None if max_passes < 2 else _from_sample(problem, theta, max_passes)
    if nearer is not None:
        problem.likelihood = nearer[1]
        found = descend_jointly(problem, nearer[0], max_passes, tol, straight=True)
        if found is not None:
            return found
        problem.likelihood = problem.given
    if (found := descend_jointly(problem, theta, max_passes, tol)) is None:
        raise ValueError(_why_not_finite(problem, theta))
    return found


_SAMPLE = 16384, 256  # rows of a sample: as many, or as many for each parameter
_LARGE = 4  # samples in the rows from which on one is taken
_CLEAR = 20  # times what noise explains, by which the minimiser of a sample must be better than the start
_ROUGH = 1e-2  # the tolerance of that minimiser


def _from_sample(problem: Problem, theta: Array, max_passes: int) -> tuple[Array, Likelihood] | None:
    """Return the minimiser of (1) for a sample of the rows, as a start for all of them, and its likelihood.

    None if the rows are few or not in memory, or if the start is about as good: noise alone lets the minimiser of m
    rows decrease their sum of squares by d / m of it.
    """
    size = max(_SAMPLE[0], _SAMPLE[1] * theta.size)
    part = problem.source.sample(size, _LARGE * size)
    if part is None:
        return None
    about = Problem(problem.model, problem.given, problem.regularizer, part, problem.before)
    result = descend_jointly(about, theta, max_passes, _ROUGH)
    start = None if result is None else about.at(theta)  # with the parameter found
    if result is None or start is None:
        return None
    found, left, _ = result
    better = start.objective - found.objective > _CLEAR * theta.size / size * abs(found.loss)
    return (found.theta, about.likelihood) if better and left <= _ROUGH and not _on_plateau(found) else None


def _verdict(
    problem: Problem, point: Point, left: float, change: float, max_passes: int, tol: float
) -> tuple[bool, str]:
    """Return whether the descent converged, and why it stopped.

    `left` is the relative length of the next step, and `change` the relative change of a parameter of the likelihood.

    Small steps alone are not convergence: on a plateau, where h does not respond to theta, every step is zero; and
    where theta runs to infinity, as with a saturating link and separable rows, each step still changes theta by a few
    per cent when the objective no longer changes.
    """
    if not (problem.model.linear and problem.likelihood.quadratic) and _on_plateau(point):
        return False, (
            "stopped on a plateau: the model does not respond to theta here, so that the rows say nothing about it. "
            "Choose another start, or add a penalty."
        )
    if _separates(problem, point, left, max_passes):
        counts = problem.likelihood.outcomes == "counts"
        what = "rows whose counts are all zero from the others" if counts else "the classes without an error"
        whose = "tell these rows apart" if counts else "determine the class"
        return False, worded(
            f"The coefficients run to infinity (complete or quasi-complete separation): some columns separate {what}. "
            f"Set a penalty, such as {{penalty='ridge'}}, or remove the columns that {whose}."
        )
    if change > 0:
        return False, worded(
            f"stopped at {{max_passes={max_passes}}}: the {problem.likelihood.parameter} of the likelihood would still "
            f"change by {change:.1e} (relative). Allow more passes, or give the {problem.likelihood.parameter}."
        )
    if left <= tol:
        return True, f"converged: the next step would change theta by {left:.1e} (relative); tol is {tol:.1e}."
    if problem.predicted(point, problem.step(point)) <= point.rounding:
        if left > _RUNNING:
            return False, (
                f"stopped where the objective is flat: the next step would change theta by {left:.1e} (relative), and "
                "not the objective. theta runs to infinity, as it does where a saturating link separates the rows. Add "
                "a penalty, or remove the parameters that separate them."
            )
        return True, f"converged to rounding: the next step ({left:.1e} relative) no longer changes the objective."
    if problem.passes >= max_passes:
        return False, worded(
            f"stopped at {{max_passes={max_passes}}}: the next step would change theta by {left:.1e} (relative); tol "
            f"is {tol:.1e}. Allow more passes, or choose a start nearer to the solution."
        )
    what = f"no step decreases the objective, although the next would change theta by {left:.1e} (relative)"
    return False, Text.of(f"stopped: {what}. ", problem.no_step)


def _on_plateau(point: Point) -> bool:
    """Whether changing every parameter by its own size, or by 1, changes h by no more than rounding."""
    response = point.columns @ np.maximum(np.abs(point.theta), 1)
    return bool(response <= point.eps * point.size**0.5 and point.rss > 0)


_RUNNING = 1e-3  # a step of this relative length that does not change the objective leads away to infinity
_NOTHING = 1e-6  # a decrease of the objective, a log likelihood, that says nothing about theta
_MOVED = 0.1  # the change of an output by such a step that rounding does not explain: it is 1 on a way without end


def _separates(problem: Problem, point: Point, left: float, max_passes: int) -> bool:
    """Whether theta runs to infinity in a linear model of classes or counts, which separates some rows from the others.

    The loss of these falls exponentially: each step of Newton's method changes their outputs by 1 and the objective by
    less and less. At a minimum the next step changes no output; one pass over the rows tells, if one is left.
    """
    loss = problem.likelihood
    if not problem.model.linear or loss.quadratic or loss.location:
        return False
    p = problem.step(point)
    if not (np.abs(p) > _RUNNING * np.abs(point.theta)).any() or problem.predicted(point, p) > _NOTHING:
        return False
    return left > _RUNNING if problem.passes >= max_passes else problem.largest_move(point.theta, p) > _MOVED


def _why_not_finite(problem: Problem, theta: Array) -> str:
    part = partial(rows_not_finite, problem.model, problem.likelihood, theta)
    bad = np.flatnonzero(np.concatenate(problem.source.fold(part).total or []))
    shown = ", ".join(map(str, bad[:5])) + (", ..." if len(bad) > 5 else "")
    return (
        f"The model, its derivative and their squares must be finite at start; they are not in {len(bad)} row(s): "
        f"{shown}. Change start, or remove these rows."
    )
