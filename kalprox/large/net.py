"""Networks that learn in one pass and know how sure they are, as scikit-learn estimators."""

import math
import numbers
import warnings
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, check_random_state, validate_data

from kalprox.algorithms.proximal_filter import proximal_filter
from kalprox.base.arrays import Array
from kalprox.base.checks import check_level
from kalprox.base.extras import require
from kalprox.calibration import Calibration, calibration_for
from kalprox.estimators.classes import checked_classes, class_targets
from kalprox.estimators.regressor import KalproxRegressor
from kalprox.likelihoods import Bernoulli, Categorical, Gaussian
from kalprox.models import Function
from kalprox.predictive import Student, central_interval
from kalprox.regularizers import Zero
from kalprox.structures import LowRank

#: The standard deviation of the weights of a layer, times the root of the number of its inputs, by its activation.
GAINS = {"relu": math.sqrt(2.0), "tanh": 1.0}


@dataclass(frozen=True)
class DenseStart:
    """The first weights and biases of a fully connected network, normal with the variance 1 / inputs of their layer.

    Before relu the variance is twice as large, so that the outputs of every layer have the size of its inputs.

    Examples
    --------
    >>> [[W.shape, b.shape] for W, b in DenseStart((8,), "tanh")(0, 3, 2)]
    [[(8, 3), (8,)], [(2, 8), (2,)]]
    """

    hidden: tuple[int, ...]
    activation: str

    def __call__(self, seed: int, inputs: int, outputs: int) -> list[list[Array]]:
        rng, sizes = np.random.default_rng(seed), (inputs, *self.hidden, outputs)
        gains = [GAINS[self.activation]] * len(self.hidden) + [1.0]
        return [
            [gain / math.sqrt(before) * rng.normal(size=shape) for shape in ((after, before), (after,))]
            for gain, (before, after) in zip(gains, pairwise(sizes), strict=True)
        ]


@dataclass(frozen=True)
class Dense:
    """The outputs of a fully connected network for one row.

    Examples
    --------
    >>> Dense("tanh")(DenseStart((8,), "tanh")(0, 3, 2), np.zeros(3)).shape
    (2,)
    """

    activation: str

    def __call__(self, weights: list[list[Array]], x: Array) -> Array:
        import jax

        bend = {"relu": jax.nn.relu, "tanh": jax.numpy.tanh}[self.activation]
        for W, b in weights[:-1]:
            x = bend(W @ x + b)
        W, b = weights[-1]
        return W @ x + b


@dataclass(frozen=True)
class Scalar:
    """A network of one output as a number instead of a vector."""

    apply: Any

    def __call__(self, weights: Any, x: Array) -> Array:
        return self.apply(weights, x).reshape(())


def prior_stds(tree: Any) -> Any:
    """Return the scale of the prior of each array of a tree of first weights: the root mean square of its entries.

    An array of zeros, such as biases often are, has the smallest scale of the others.

    Parameters
    ----------
    tree : pytree
        Its floating-point arrays are the weights.

    Returns
    -------
    pytree
        Of the same structure, with constant arrays.

    Examples
    --------
    >>> prior_stds({"bias": np.zeros(2), "weights": np.array([[3.0, -4.0]])})
    {'bias': array([3.53553391, 3.53553391]), 'weights': array([[3.53553391, 3.53553391]])}
    """
    import jax

    leaves, treedef = jax.tree_util.tree_flatten(tree)
    arrays = {i: np.asarray(a, float) for i, a in enumerate(leaves) if getattr(a, "dtype", np.dtype(int)).kind in "fV"}
    sizes = {i: float(np.sqrt(np.mean(a**2))) for i, a in arrays.items()}
    least = min((size for size in sizes.values() if size > 0), default=1.0)
    for i, size in sizes.items():
        leaves[i] = np.full(arrays[i].shape, size or least)
    return jax.tree_util.tree_unflatten(treedef, leaves)


_FIRST = 1000  # rows whose residuals from a linear fit give the first noise variance of a regression
_PIECE = 64  # rows that are predicted, scored and then learned together
_FEW = 30  # rows from which the scale of the inputs is known badly: a standard deviation to 13%


class _Net(BaseEstimator):
    """What both estimators do: make the filter from the first rows, and learn."""

    def __init__(
        self,
        hidden: tuple[int, ...] = (50,),
        *,
        activation: str = "tanh",
        network: Any = None,
        structure: Any = None,
        prior_std: float = 1.0,
        random_state: Any = 0,
    ) -> None:
        self.hidden = hidden
        self.activation = activation
        self.network = network
        self.structure = structure
        self.prior_std = prior_std
        self.random_state = random_state

    def _check_parameters(self) -> None:
        sizes = np.asarray(self.hidden)
        if sizes.ndim != 1 or not (np.issubdtype(sizes.dtype, np.integer) or not sizes.size) or (sizes < 1).any():
            raise ValueError(f"hidden must be the numbers of units of the hidden layers; got {self.hidden!r}.")
        if self.activation not in GAINS:
            raise ValueError(f"activation must be one of {', '.join(GAINS)}; got {self.activation!r}.")
        if not (isinstance(self.prior_std, numbers.Real) and 0 < self.prior_std < np.inf):
            raise ValueError(f"prior_std must be a positive number; got {self.prior_std!r}.")
        pair = self.network
        if pair is not None and not (isinstance(pair, (tuple, list)) and len(pair) == 2 and all(map(callable, pair))):
            raise ValueError(f"network must be a pair of functions (init, apply); got {pair!r}.")

    def _make(self, X: Array, outputs: int, likelihood: Any, noise: float | None) -> None:
        """Make the filter, with inputs centred and scaled as those of the first rows."""
        require("jax", f"{type(self).__name__} needs")
        self._check_parameters()
        self.center_, self.scale_ = X.mean(axis=0), _positive(X.std(axis=0))
        init, apply = self.network or (DenseStart(tuple(self.hidden), self.activation), Dense(self.activation))
        tree = init(int(check_random_state(self.random_state).randint(2**31)), X.shape[1], max(outputs, 1))
        model = Function(apply if outputs else Scalar(apply), params=tree)
        mean, stds = (np.asarray(model.flatten(t), X.dtype) for t in (tree, prior_stds(tree)))
        structure = LowRank(20) if self.structure is None else self.structure
        gamma = 1.0 if noise is None else None  # None learns it; the prior is then in units of the noise variance
        alg = proximal_filter(model, Zero(), gamma=gamma, structure=structure, likelihood=likelihood)
        v0 = (self.prior_std * stds) ** 2 / np.asarray(1.0 if noise is None else noise, X.dtype)
        self._filter, self._state, self.n_rows_seen_ = alg, alg.init(mean, v0), 0
        self._score = calibration_for(likelihood)

    def fit(self, X: Any, y: Any) -> Self:
        """Learn all rows in one pass, in a random order, and forget what was learned before.

        Parameters
        ----------
        X : array of shape (n, d)
        y : array of shape (n,)
            Of classes there must be at least two.

        Returns
        -------
        KalproxNetRegressor or KalproxNetClassifier
        """
        X, y = self._rows(X, y, reset=True)
        self._begin(X, y)
        order = check_random_state(self.random_state).permutation(len(X))
        return self._learn(X[order], y[order])

    def _learn_more(self, X: Array, y: Array, known: Array) -> Self:
        """Learn rows of a call of `partial_fit`, of which the first begins with what is `known` of y."""
        if not self.__sklearn_is_fitted__():
            if len(X) < _FEW:
                warnings.warn(
                    f"Inputs are centred and scaled by the rows of the first call, and it has {len(X)} row(s) only: a "
                    "column that varies little among them becomes too large. Give some hundred rows first.",
                    UserWarning,
                    stacklevel=3,
                )
            self._begin(X, known)
        return self._learn(X.astype(self.center_.dtype), y)

    def _learn(self, X: Array, y: Array) -> Self:
        X, state, score = self._scaled(X), self._state, self._score
        y, targets = self._targets(y)
        for start in range(0, len(X), _PIECE):
            rows = slice(start, start + _PIECE)
            score = score.add(self._in_units(state.predict(X[rows])), y[rows])
            state = self._filter.step(state, X[rows], targets[rows])
        self._state, self._score = state, score
        self.n_rows_seen_ += len(X)
        return self

    def _in_units(self, predicted: Any) -> Any:
        """Return a prediction of targets in the units in which these were given."""
        return predicted

    def _scaled(self, X: Array) -> Array:
        found: Array = ((X - self.center_) / self.scale_).astype(self.center_.dtype)
        return found

    def _predictive(self, X: Any) -> Any:
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=[self.center_.dtype])
        return self._in_units(self._state.predict(self._scaled(X)))

    @property
    def params_(self) -> Any:
        """The mean weights, as the network takes them, for inputs that are centred and scaled."""
        check_is_fitted(self)
        return self._state.problem.model.unflatten(self._state.mean)

    @property
    def diagnostics_(self) -> Calibration:
        """How well predictions were calibrated: every row was predicted before it was learned, 64 rows at a time.

        Its `verdict` judges the predictive distributions of new observations, noise included, and not the band of the
        function alone.
        """
        check_is_fitted(self)
        return self._score

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_state")

    def __reduce__(self) -> Any:
        """Return how the network is pickled: without JAX, what loads it says so before it meets an array of JAX."""
        return _unpickled, (type(self), self.__sklearn_is_fitted__()), self.__getstate__()


class KalproxNetRegressor(RegressorMixin, _Net):
    """Regression by a network that learns in one pass, without a learning rate, and knows how sure it is.

    The weights have a normal belief, which the proximal filter updates block by block; predictions are averaged over
    it. Inputs and targets are centred and scaled by the mean and standard deviation of the rows of the first call, all
    rows for `fit`; give `partial_fit` some hundred rows first. The noise variance is learned from the errors of all
    predictions, those of the first rows included, and is too large as long as these are many.

    What may be trusted: the predictive intervals of new observations, which `diagnostics_` judges on every row before
    it is learned. The variance of the function alone, without the noise, is too small: where the network cannot follow
    the function, its misfit is learned as noise, and adds nothing to what is stated about the weights.

    Parameters
    ----------
    hidden : tuple of int
        The numbers of units of the hidden layers.
    activation : {"tanh", "relu"}
    network : (init, apply), optional
        Another network, written for JAX: `init(seed, inputs, outputs)` returns its first weights, any pytree, and
        `apply(weights, x)` its outputs for one row. `hidden` and `activation` then have no effect.
    structure : str or kalprox.structures.Structure, optional
        What is kept of the precision matrix of the weights; `kalprox.structures.LowRank(20)` by default.
    prior_std : float
        The prior standard deviation of the weights, in units of the root mean square of their first values, array by
        array: 1 / sqrt(inputs of the layer) for the built-in network with tanh.
    random_state : int, RandomState instance or None
        Draws the first weights, and the order in which `fit` takes the rows.

    Attributes
    ----------
    diagnostics_ : kalprox.calibration.Calibration
        The score of all rows, each predicted before it was learned; `diagnostics_.verdict()` sums it up.
    n_rows_seen_ : int
    noise_var_ : float
    params_ : pytree

    See Also
    --------
    KalproxNetClassifier : The same for classes.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-2, 2, size=(600, 1))
    >>> y = np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=600)
    >>> model = KalproxNetRegressor(hidden=(20,)).fit(X, y)
    >>> mean, std = model.predict([[0.5], [10.0]], return_std=True)
    >>> bool(abs(mean[0] - np.sin(1.0)) < 0.15), bool(std[1] > std[0])
    (True, True)
    >>> low, high = model.partial_fit(X[:50], y[:50]).predict_interval([[0.5]], level=0.9)
    >>> bool(low[0] < np.sin(1.0) < high[0])
    True
    """

    def partial_fit(self, X: Any, y: Any) -> Self:
        """Learn more rows, in their order.

        Parameters
        ----------
        X : array of shape (n, d)
        y : array of shape (n,)

        Returns
        -------
        KalproxNetRegressor
        """
        X, y = self._rows(X, y, reset=not self.__sklearn_is_fitted__())
        return self._learn_more(X, y, y)

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Return the predicted means, and with `return_std` their standard deviations, noise included.

        Parameters
        ----------
        X : array of shape (n, d)
        return_std : bool

        Returns
        -------
        mean : array of shape (n,)
        std : array of shape (n,)
            Only if `return_std`.
        """
        found = self._predictive(X)
        return (found.mean, found.std) if return_std else found.mean

    def predict_interval(self, X: Any, level: float = 0.95) -> tuple[Array, Array]:
        """Return central predictive intervals.

        Parameters
        ----------
        X : array of shape (n, d)
        level : float
            Strictly between 0 and 1.

        Returns
        -------
        low, high : arrays of shape (n,)
        """
        check_level(level)
        return central_interval(self._predictive(X), level)

    @property
    def noise_var_(self) -> float:
        """The learned variance of the noise."""
        check_is_fitted(self)
        return float(self._state.noise.variance) * float(self._y_scale) ** 2

    def _rows(self, X: Any, y: Any, reset: bool) -> tuple[Array, Array]:
        X, y = validate_data(self, X, y, reset=reset, dtype=[np.float64, np.float32], y_numeric=True)
        return X, np.asarray(y, X.dtype)

    def _begin(self, X: Array, y: Array) -> None:
        self._y_center, self._y_scale = y.mean(), _positive(y.std())
        linear = KalproxRegressor(standardize=True, diagnose=False).fit(X[:_FIRST], self._targets(y[:_FIRST])[1])
        noise = linear.noise_var_ if len(y) > 1 else np.nan
        self._make(X, 0, Gaussian(), float(np.clip(noise, 0.01, 1.0)) if np.isfinite(noise) else 1.0)

    def _targets(self, y: Array) -> tuple[Array, Array]:
        return y, ((y - self._y_center) / self._y_scale).astype(y.dtype)

    def _in_units(self, predicted: Any) -> Any:
        return Student(self._y_center + self._y_scale * predicted.mean, self._y_scale * predicted.std, predicted.dof)


class KalproxNetClassifier(ClassifierMixin, _Net):
    """Classification by a network that learns in one pass, without a learning rate; its probabilities are averaged.

    The weights have a normal belief, which the proximal filter updates block by block. Probabilities are averages over
    it, and so less extreme where it is wide. Inputs are centred and scaled by the mean and
    standard deviation of the rows of the first call, all rows for `fit`; give `partial_fit` some hundred rows first.
    What may be trusted are the probabilities, which `diagnostics_` judges on every row before it is learned, and not
    the variance of the log odds alone: misfit adds nothing to it.

    Parameters
    ----------
    hidden : tuple of int
        The numbers of units of the hidden layers.
    activation : {"tanh", "relu"}
    network : (init, apply), optional
        Another network, written for JAX: `init(seed, inputs, outputs)` returns its first weights, any pytree, and
        `apply(weights, x)` its outputs for one row, one for each class, or one if there are two classes. `hidden` and
        `activation` then have no effect.
    structure : str or kalprox.structures.Structure, optional
        What is kept of the precision matrix of the weights; `kalprox.structures.LowRank(20)` by default.
    prior_std : float
        The prior standard deviation of the weights, in units of the root mean square of their first values, array by
        array: 1 / sqrt(inputs of the layer) for the built-in network with tanh.
    random_state : int, RandomState instance or None
        Draws the first weights, and the order in which `fit` takes the rows.

    Attributes
    ----------
    classes_ : array of shape (m,)
    diagnostics_ : kalprox.calibration.Calibration
        The score of all rows, each predicted before it was learned; `diagnostics_.verdict()` sums it up.
    n_rows_seen_ : int
    params_ : pytree

    See Also
    --------
    KalproxNetRegressor : The same for numbers.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(500, 2))
    >>> y = np.where((X**2).sum(axis=1) > 1.5, "out", "in")
    >>> model = KalproxNetClassifier(hidden=(20,)).fit(X, y)
    >>> model.predict([[0.0, 0.0], [2.0, 2.0]])
    array(['in', 'out'], dtype='<U3')
    >>> model.partial_fit(X[:50], y[:50]).predict_proba([[2.0, 2.0]]).argmax(axis=1)  # of model.classes_
    array([1])
    """

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Learn more rows, in their order.

        Parameters
        ----------
        X : array of shape (n, d)
        y : array of shape (n,)
        classes : array of shape (m,), optional
            All classes that y will ever have; needed in the first call.

        Returns
        -------
        KalproxNetClassifier
        """
        first = not self.__sklearn_is_fitted__()
        X, y = self._rows(X, y, reset=first)
        if first and classes is None:
            raise ValueError("classes must be given in the first call of partial_fit: all that y will ever have.")
        if not first and classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise ValueError(f"classes must be those of the first call, {self.classes_}; got {classes}.")
        return self._learn_more(X, y, classes)

    def predict_proba(self, X: Any) -> Array:
        """Return the probabilities of the classes, averaged over the belief about the weights.

        Parameters
        ----------
        X : array of shape (n, d)

        Returns
        -------
        array of shape (n, m)
            In the order of `classes_`.
        """
        p = self._predictive(X).mean
        return p if p.ndim == 2 else np.stack([1 - p, p], axis=1)

    def predict(self, X: Any) -> Array:
        """Return the most probable class of each row.

        Parameters
        ----------
        X : array of shape (n, d)

        Returns
        -------
        array of shape (n,)
        """
        p = self.predict_proba(X)
        return self.classes_[p.argmax(axis=1)]

    def _rows(self, X: Any, y: Any, reset: bool) -> tuple[Array, Array]:
        X, y = validate_data(self, X, y, reset=reset, dtype=[np.float64, np.float32])
        check_classification_targets(y)
        return X, y

    def _begin(self, X: Array, y: Array) -> None:
        self.classes_ = checked_classes(y)
        outputs = 0 if len(self.classes_) == 2 else len(self.classes_)
        self._make(X, outputs, Categorical() if outputs else Bernoulli(), None)

    def _targets(self, y: Array) -> tuple[Array, Array]:
        targets = class_targets(y, np.zeros(len(y), bool), self.classes_).astype(self.center_.dtype)
        return targets, targets


def _unpickled(kind: type[_Net], fitted: bool) -> _Net:
    """Return a network without its state, which pickle sets next."""
    if fitted:
        require("jax", f"Unpickling a fitted {kind.__name__} needs")
    return kind.__new__(kind)


def _positive(scale: Array) -> Array:
    """Return scales with 1 instead of 0, for columns that are constant."""
    return np.where(scale > 0, scale, np.ones_like(scale))
