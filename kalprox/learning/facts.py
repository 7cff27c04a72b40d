"""What is said of a fitted model, as names and values in words: every text, page and notebook takes it from here."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kalprox.learning.belief import Belief
from kalprox.learning.doubts import equal_clusters
from kalprox.learning.learner import Learner
from kalprox.learning.mixed import MixedBelief

__all__ = ["about_changes", "about_forgetting", "about_noise", "about_penalty", "facts_of", "numbers_in_words"]

_LEAST_SHOWN = 0.01  # the smallest weight of a way to forget that is shown
_FEW = 20  # clusters, below which it matters that they are unequal
# The findings of a verdict with which more change points are false.
_MORE_FALSE_ALARMS = "correlated", "skewed", "unequal spread"


def facts_of(
    learner: Learner,
    columns: int,
    numbers: Mapping[str, Any],
    *,
    target: str,
    rejected: int,
    cluster: str | None = None,
    classes: Sequence[str] = (),
) -> dict[str, str]:
    """Return the facts about a model, without those that say nothing.

    Parameters
    ----------
    learner : Learner
    columns : int
        The number of coefficients of each target, without the intercept.
    numbers : mapping
        Of the fit, such as R2, by their names.
    target, cluster : str
        The names of the columns of the target and of the clusters.
    rejected : int
        The number of rows that were rejected.
    classes : sequence of str
        The names of the classes, if the target has classes.
    """
    belief = learner.belief
    converged = "converged" if belief.converged else f"not converged{': ' * bool(belief.message)}{belief.message}"
    facts = {
        "target": target,
        "rows learned": f"{learner.n_rows:,}",
        "rows rejected": f"{rejected:,}",
        "columns" if learner.settings.function is None else "parameters": f"{columns:,}"
        + ", and an intercept" * belief.design.intercept,
        **_about_likelihood(belief, classes),
        "penalty": about_penalty(belief),
        **about_forgetting(belief),
        **about_noise(belief),
        "standard errors": _about_errors(belief, cluster),
        **{name: numbers_in_words(value) for name, value in numbers.items()},
        "passes": f"{belief.n_passes:,}, {converged}",
        "change points": about_changes(learner),
    }
    return {name: value for name, value in facts.items() if value}


def about_penalty(belief: Belief) -> str:
    """The penalty and its weight, in words."""
    penalty = belief.settings.penalty
    if not penalty.has_weight:
        return penalty.describe()
    auto = "auto -> " if belief.settings.chooses_alpha else ""
    return f"{penalty.describe()}, alpha = {auto}{numbers_in_words(np.asarray(belief.facts.alpha))}"


def about_forgetting(belief: Belief) -> dict[str, str]:
    """How rows are forgotten, in words; nothing if they are not."""
    kind = belief.settings.forgetting
    if not kind.forgets:
        return {}
    return {"forget": _weights(belief) if isinstance(belief, MixedBelief) else kind.describe()}


def _about_likelihood(belief: Belief, classes: Sequence[str]) -> dict[str, str]:
    """The link or, if it is not Gaussian, the likelihood in words, and the `classes` of the target."""
    settings = belief.settings
    if settings.likelihood.quadratic:
        if settings.function is not None:
            return {"function": getattr(settings.function, "__name__", "of one's own")}
        return {"link": settings.link}
    facts = {"likelihood": str(settings.parameters["likelihood"])}
    if classes:
        facts["classes"] = ", ".join(classes) + (f"; the coefficients are about {classes[1]}" * (len(classes) == 2))
    return facts


def about_noise(belief: Belief) -> dict[str, str]:
    """The standard deviation of the noise, and whether it was learned, in words; nothing if there is no noise."""
    likelihood = belief.settings.likelihood
    if not likelihood.learns_noise:
        return {}
    name = likelihood.noise_name
    variances, dofs = np.atleast_1d(belief.noise.variance), np.atleast_1d(belief.noise.dof)
    if np.isnan(variances).all():
        return {name: "unknown: there are no degrees of freedom left to learn it"}
    how = "given" if np.isinf(dofs).all() else f"learned, {float(dofs[0]):,.6g} degrees of freedom"
    return {name: f"{', '.join(f'{v**0.5:.4g}' for v in variances)} ({how})"}


def _weights(belief: MixedBelief) -> str:
    """The weights of the ways to forget, the largest first, and how many rows they remember."""
    parts, memory = [], np.atleast_1d(belief.memory)
    for w in belief.weights.reshape(len(belief.members), -1).T:
        order = [k for k in np.argsort(-w, kind="stable") if w[k] >= _LEAST_SHOWN]
        parts.append(", ".join(f"{belief.names[k]} {w[k]:.0%}" for k in order))
    rows = " and ".join(f"{m:,.0f}" for m in memory)
    return f"auto: {'; '.join(parts)}. The coefficients rest on about {rows} rows"


def about_changes(learner: Learner) -> str:
    """The change points that were found, in words; nothing if they were not asked for."""
    if learner.settings.change_points is None:
        return ""
    score = learner.score
    if score.changes is None:
        return f"not looked for, because {score.not_judged or 'no row was scored'}"
    findings = score.verdict().findings
    unlike = [] if "drifting" in findings else [word for word in findings if word in _MORE_FALSE_ALARMS]
    if not score.changes.found or not unlike:
        return str(score.changes).rstrip(".")
    found = " and ".join(f"'{word}'" for word in unlike)
    return f"{score.changes} Some may be none: the verdict on the errors is {found}, and false alarms are more frequent"


def _about_errors(belief: Belief, cluster: str | None) -> str:
    """What the standard errors of the coefficients assume, in words; `cluster` names the column of the clusters."""
    kind, sandwich = belief.settings.coef_cov, belief.sandwich
    if kind == "model":
        return f"model (independent rows{' with equal noise' * belief.settings.likelihood.quadratic})"
    if kind == "robust":
        return "robust (the variance of the noise may differ from row to row)"
    clusters = 0 if sandwich is None else round(sandwich.count)
    by = "" if cluster is None else f" of {cluster}"
    text = f"clustered (rows may depend on each other within each of {clusters:,} clusters{by}"
    worth = equal_clusters(belief)
    return text + (
        f"; for one coefficient they are worth {worth:.2g} equal ones)" if worth < min(clusters / 2, _FEW) else ")"
    )


def numbers_in_words(value: Any) -> str:
    """A number with six significant digits, or several; "" if none is defined."""
    values = np.atleast_1d(value).astype(float)
    if np.isnan(values).all():
        return ""
    return ", ".join("-" if np.isnan(v) else f"{v:,.6g}" for v in values)
