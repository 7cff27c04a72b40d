"""Which models merge, and which settings may change as rows are learned."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from kalprox.base.arrays import Array
from kalprox.base.text import worded
from kalprox.information import Information
from kalprox.learning.design import Design
from kalprox.learning.rules import FACTS, check, is_one_of
from kalprox.learning.settings import Settings
from kalprox.likelihoods import Likelihood
from kalprox.linalg.triangle import triangle_of
from kalprox.models import Model
from kalprox.posterior import InformationPosterior

SIZE = 7  # numbers in a fingerprint
_TOL = 1e-9  # far above the rounding of sums over rows, far below the difference that another row makes
_ROUNDING = 1e-12  # of a mean, relative to its size
_CONSTANT = 1e-9  # a column with a smaller standard deviation, relative to its mean, is taken as constant
_SAMPLE = 512  # rows on which a distance is estimated


def in_coordinates(info: Information, J: Array | None, times: float = 1.0) -> Information:
    """Return information about J theta as one about theta, in which a row counts `times` as often.

    If J is None, theta is in the same coordinates.
    """
    if J is None:
        return info
    T, shift = np.asarray(info.T), np.asarray(info.shift)
    rows = np.column_stack([T[:, :1], T[:, 1:-1] @ J, T[:, -1:]])
    p = rows.shape[1]
    T = triangle_of(np.concatenate([np.zeros((p, p)), rows]))
    shift = np.append(shift[:-1] @ J, shift[-1])
    return replace(info, T=T, shift=shift, rows=times * info.rows, squares=times * info.squares)


def change(of: Design, to: Design) -> Array | None:
    """Return J such that J theta are the parameters of one design for those of another; None if they are the same."""
    A, B = of.jacobian(), to.jacobian()
    if A is None or B is None or np.array_equal(A, B):
        return None
    return np.kron(np.linalg.solve(A, B), np.eye(of.outputs or 1))


def likely_rows(mean: Array, std: Array, data: Information, design: Design) -> Array:
    """Return normal rows with these means and standard deviations of the columns, and the correlations in some data."""
    m, first = design.outputs or 1, design.first
    R = np.asarray(data.R).reshape(-1, len(mean) + first, m)
    C = np.einsum("rim,rjm->ij", R, R)
    if first:
        C = C[1:, 1:] - np.outer(C[0, 1:], C[0, 1:]) / max(C[0, 0], np.finfo(float).tiny)
    size = np.sqrt(np.maximum(np.diagonal(C), 0))
    values, vectors = np.linalg.eigh(C / np.where(size > 0, np.outer(size, size), 1.0))
    normal = np.random.default_rng(0).standard_normal((_SAMPLE, len(mean)))
    return mean + std * (normal * np.sqrt(np.maximum(values, 0)) @ vectors.T)


def mean_skew(*parts: tuple[Information, Array | None, Array | None]) -> Array | None:
    """Return the skewness of the rows of all parts: it does not grow with them, and so it is the mean by rows.

    The third of each part is the matrix to its coordinates; None if they are those of the first.
    """
    known = [(float(data.rows), skew if J is None else J.T @ skew) for data, skew, J in parts if skew is not None]
    rows = sum(float(data.rows) for data, *_ in parts)
    return sum(n / rows * skew for n, skew in known) if known else None


def distance(
    model: Model, likelihood: Likelihood, posterior: InformationPosterior, parts: list[tuple[float, Array, Array]]
) -> float:
    """Return about how many standard errors the merged estimate is from the minimiser, at most over the coefficients.

    A part that was linearised at its own estimate t has, at the merged estimate, the slope s + c (f - f_t) where the
    loss has the slope at f. The difference, summed over the rows of all parts, moves the estimate by V times as much.

    Parameters
    ----------
    model : Model
    likelihood : Likelihood
    posterior : InformationPosterior
        Of all rows.
    parts : list of tuples
        For each part the number of its rows, its estimate, and inputs of h that are like those of its rows. The
        distance is taken as 0 if a part has none.
    """
    if not all(len(inputs) for _, _, inputs in parts):
        return 0.0
    theta = np.asarray(posterior.mean)
    missing = np.zeros_like(theta)
    for rows, own, inputs in parts:
        (here, D), (there, D0) = (model.linearize_rows(t, inputs) for t in (theta, own))
        y = _typical(likelihood, there)
        slope, old = likelihood.expand(y, here)[0], likelihood.expand(y, there)
        straight = old[0] + _times_curvature(likelihood, old[1], D0 @ (theta - own))
        left = slope.ravel() @ D.reshape(-1, len(theta)) - straight.ravel() @ D0.reshape(-1, len(theta))
        missing += rows / len(inputs) * left
    factor = posterior.metric_factors[0]
    with np.errstate(invalid="ignore"):  # infinite variances times 0: a direction that is undetermined has no distance
        moved = np.abs(np.asarray(factor.covariance()) @ missing) / np.sqrt(np.asarray(factor.variances()))
    return float(np.max(moved, where=np.isfinite(moved), initial=0.0))


def _times_curvature(likelihood: Likelihood, curvature: Array, step: Array) -> Array:
    """Return the curvature of the loss times a step of the outputs."""
    if not likelihood.interacts:
        return curvature * step
    return curvature * (step - (curvature * step).sum(axis=-1, keepdims=True))  # diag p - p p'


def _typical(likelihood: Likelihood, f: Array) -> Array:
    """Return observations whose loss has about its mean slope at f, zero: the mean of the predictive distribution."""
    from kalprox.noise import Noise

    leverage: Any = np.zeros((*f.shape, f.shape[-1]) if likelihood.interacts else f.shape)
    return likelihood.predict(f, leverage, Noise.known(1.0)).mean


# ---- fingerprints -------------------------------------------------------------------------------------


def fingerprint(info: Information) -> Array:
    """Return the fingerprint of the rows of an information, shape (7,).

    It has the number of rows and their weight, the mean and the standard deviation of the (first) target, and of the
    columns that vary a random combination of mean / std, the size of its terms, and one of log(std).
    """
    T, shift = np.asarray(info.T), np.asarray(info.shift)
    weight = float(T[0, 0]) ** 2
    mean = T[0, 1:] / T[0, 0] + shift
    return of_moments(float(info.rows), weight, mean, np.sqrt((T[1:, 1:] ** 2).sum(axis=0) / weight), info.d)


def of_moments(rows: float, weight: float, mean: Array, std: Array, d: int) -> Array:
    """Return the fingerprint of rows with these means and standard deviations of d columns and of the targets."""
    r = np.random.default_rng(0).standard_normal(len(mean)) / len(mean) ** 0.5
    varies = std > _CONSTANT * np.abs(mean)
    r, place, spread = r[varies], mean[varies] / std[varies], np.log(std[varies])
    return np.array([rows, weight, mean[d], std[d], r @ place, np.abs(r) @ np.abs(place), r @ spread])


def check_apart(mine: Array, theirs: Array) -> None:
    """Raise a ValueError if one of my fingerprints, shape (m, 7), is one of theirs, shape (n, 7), up to rounding."""
    rows, weight, mean, std, _, size, _ = mine.T
    target, place = _TOL * std + _ROUNDING * np.abs(mean), _TOL + _ROUNDING * size
    same = [_TOL * rows, _TOL * weight, target, target, place, _TOL * size + _TOL, np.full(len(mine), _TOL)]
    if (np.abs(mine[:, None] - theirs[None]) <= np.column_stack(same)[:, None]).all(axis=-1).any():
        raise ValueError(
            worded(
                "The models have rows in common: both have learned the same rows, or one of them was merged from a "
                "model of rows that the other has, too. Merge models of different rows, or set {allow_overlap=True} if "
                "these rows are to count twice."
            )
        )


@dataclass(frozen=True)
class Fixed:
    """Parameters that cannot change once rows have been learned.

    Attributes
    ----------
    names : tuple of str
        The parameters; of several, all that have changed are named.
    why : str
        Completes "because ...".
    when : mapping
        Facts that must hold of the settings so far, see `kalprox.learning.rules.FACTS`.
    before, after : str
        Words of the fact of this name, separated by bars: the change is refused only from, or to, one of them. Any
        change is refused if both are empty.
    by_word : bool
        Whether only the word counts, and not the parameter as it was given.
    """

    names: tuple[str, ...]
    why: str
    when: Mapping[str, str] = field(default_factory=dict)
    before: str = ""
    after: str = ""
    by_word: bool = False

    def changes(self, before: Settings, now: Settings) -> list[str]:
        """Return what has changed and must not, in words."""
        if not all(is_one_of(before, name, words) for name, words in self.when.items()):
            return []
        changed = [name for name in self.names if self._differs(name, before, now) and self._applies(name, before, now)]
        return [
            f"{name} cannot change from {self._value(name, before)!r} to {self._value(name, now)!r}" for name in changed
        ]

    def _value(self, name: str, settings: Settings) -> Any:
        return FACTS[name](settings) if self.by_word else settings.parameters[name]

    def _differs(self, name: str, before: Settings, now: Settings) -> bool:
        return FACTS[name](before) != FACTS[name](now) if self.by_word else bool(now.changed(before, name))

    def _applies(self, name: str, before: Settings, now: Settings) -> bool:
        if not (self.before or self.after):
            return True
        return is_one_of(before, name, self.before) or is_one_of(now, name, self.after)


FIXED = [
    Fixed(("forget",), "ways to forget that are mixed learn every row side by side", before="auto", after="auto"),
    Fixed(
        ("link", "function", "likelihood", "structure"), "the rows learned so far were taken for rows of such a model"
    ),
    Fixed(("weight_kind",), "the rows learned so far were counted by it"),
    Fixed(
        ("coef_cov",),
        "the scores of the rows learned so far were not summed",
        after="robust|clustered",
        by_word=True,
    ),
    Fixed(("forget",), "the rows learned so far are not held", after="window"),
    Fixed(("fit_intercept", "standardize"), "the rows learned so far were linearised with it", {"model": "other"}),
    Fixed(
        ("forget",),
        "the rows learned so far have faded in another way",
        {"model": "other"},
        before="time",
        after="time",
    ),
    Fixed(
        ("penalty", "alpha", "noise", "forget", "start", "coef_cov", "change_points"),
        "the precision that is kept began with it",
        {"structure": "other"},
    ),
]


def check_change(before: Settings, now: Settings) -> None:
    """Raise a ValueError if settings differ that cannot change once rows have been learned."""
    for fixed in FIXED:
        if changes := fixed.changes(before, now):
            raise ValueError(f"{'; '.join(changes)} between calls of partial_fit, because {fixed.why}: use fit.")


def settings_for(now: Settings, given: Settings | None, *, fitted: bool, clusters: bool = False) -> Settings:
    """Return the settings of more rows, with clusters or without: those that are `given`, or else those of `now`.

    They are those of now if they are equal to them: an unpickled model has other objects for the same.
    """
    known = given is None or given is now or not given.changed(now)
    if given is None or known:
        found = now
    elif given.awaits_alpha and fitted and now.chooses_alpha:
        found = given.with_alpha(now.alpha)
    else:
        found = given
        if fitted:
            check(given, way="one pass")
    if not clusters and (known or now.coef_cov != "clustered" or found.parameters["coef_cov"] != "auto"):
        return found
    if fitted and now.coef_cov != found.clustered().coef_cov:
        raise ValueError(
            "Clusters are given, and the rows learned so far had none: give the clusters (groups) of all rows, "
            "from the first batch on, or leave them out."
        )
    return found.clustered()


def check_alike(mine: Settings, theirs: Settings) -> None:
    """Raise a ValueError unless models with these settings can be merged."""
    if different := mine.changed(theirs):
        a, b = mine.parameters, theirs.parameters
        raise ValueError(
            "merge needs two models with the same settings; these differ in "
            + ", ".join(f"{name} ({a[name]!r} and {b[name]!r})" for name in different)
            + "."
        )
    if mine.coef_cov != theirs.coef_cov:
        raise ValueError("merge needs the clusters of all rows, or of none: one of these models was given clusters.")
    if mine.alpha != theirs.alpha:
        raise ValueError(
            "merge needs two models with the same alpha; alpha='auto' has chosen "
            f"{mine.alpha:.4g} and {theirs.alpha:.4g}. Give one number to both."
        )
    check(mine, way="merge")
