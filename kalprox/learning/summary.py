"""The summary of a fitted model: its coefficients with standard errors, intervals and tests, and what describes it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Any

import numpy as np
from scipy import special

from kalprox.base.arrays import Array
from kalprox.base.checks import check_level
from kalprox.base.text import Text, worded
from kalprox.display.tables import Table, as_text, card, whole_table
from kalprox.learning.belief import Belief, doubt_of_weights
from kalprox.learning.facts import facts_of, numbers_in_words
from kalprox.learning.learner import Learner
from kalprox.learning.linear import LinearBelief
from kalprox.learning.mixed import MixedBelief
from kalprox.posterior import InformationPosterior

_WIDTH = 80  # characters of a line of text
_COLUMNS = "coef", "se", "t", "p", "low", "high"
_MAX_ROWS = 60  # of the coefficients in the text and in HTML
TINY = 1e-16  # p-values below it are shown as such
DEBIASED = "Intervals are debiased, those of least squares on all columns: a coefficient may lie outside of its own."


@dataclass(frozen=True, eq=False, repr=False)
class Summary:
    """The summary of a fitted model. Its text is a table of at most 80 columns; notebooks show it as HTML.

    The arrays have one entry per coefficient, the intercept first; with k targets, those of the first target come
    first. A number that is not defined is NaN, and `notes` says why.

    Attributes
    ----------
    names : list of str
    targets : list of str or None
        The target of each entry; None if there is one target.
    coef, se : array
        The coefficients and their standard errors, of the kind that `coef_cov` says.
    low, high : array
        The ends of the intervals of the coefficients; see `KalproxRegressor.coef_interval`.
    t, p : array
        coef / se, and the two-sided tail probability of Student's t distribution beyond it.
    dof : float or array of shape (k,), or for clusters of the shape of `coef`
        The degrees of freedom of t.
    level : float
        The level of the intervals.
    effect : array
        |coefficient| times the standard deviation of its column; NaN for an intercept.
    exact_zero : array of bool
        Whether the penalty has set the coefficient to zero.
    rows, rejected : int
        The numbers of rows learned and rejected.
    r2, edf, log_evidence, noise_var, noise_dof : float or array of shape (k,)
        The share of the variance of y that is explained (about zero without an intercept), the effective degrees of
        freedom with the intercept, the log evidence, and the noise variance with its degrees of freedom.
    facts : dict of str to str
        What the text says about the model.
    notes_on : dict of str to list of str
        Footnotes on the "coefficients" and on the "fit": what the numbers assume, and why some are missing.
    notes : list of str
        All of them.
    """

    names: list[str]
    targets: list[str] | None
    coef: Array
    se: Array
    low: Array
    high: Array
    t: Array
    p: Array
    dof: Any
    level: float
    effect: Array
    exact_zero: Array
    rows: int
    rejected: int
    r2: Any
    edf: Any
    log_evidence: Any
    noise_var: Any
    noise_dof: Any
    facts: dict[str, str]
    notes_on: dict[str, list[str]]

    @classmethod
    def of(
        cls,
        learner: Learner,
        names: Sequence[str],
        *,
        level: float = 0.95,
        target: str | None = None,
        rejected: int | None = None,
        cluster: str | None = None,
        classes: Sequence[str] = (),
    ) -> "Summary":
        """Return the summary of a learner.

        Parameters
        ----------
        learner : Learner
        names : sequence of str
            The name of each column of X.
        level : float
        target : str, optional
            The name of the target.
        rejected : int, optional
            The number of rejected rows, if the learner has not seen all of them.
        cluster : str, optional
            The name of the column of the clusters.
        classes : sequence of str
            The names of the classes, if the target has classes.
        """
        check_level(level)
        belief = learner.belief
        has_intercept = belief.design.intercept
        names = ["intercept", *names] if has_intercept else list(names)
        with np.errstate(invalid="ignore"):  # an unknown noise times an infinite variance
            coef, std, ends, dof = _read(belief, level)
        why = belief.why_no_std or belief.noise.reason or doubt_of_weights(belief.settings) or belief.std_doubt
        notes, of_fit = [why] if why else [], list[str]()
        t, p = _tests(belief, coef, std, dof, notes)
        _about_intervals(belief, notes)
        r2, edf, evidence = _of_fit(belief, of_fit)
        k = len(coef) if coef.ndim == 2 else None
        rejected = learner.n_rejected if rejected is None else rejected
        fit = {"R2": r2, "effective dof": edf, "log evidence": evidence}
        whole = target or ("" if k is None else f"{k} targets")
        about: dict[str, Any] = {"target": whole, "rejected": rejected, "cluster": cluster, "classes": classes}
        columns = dict(zip(_COLUMNS, (coef, std, t, p, *ends), strict=True))
        columns["effect"], columns["exact_zero"] = np.asarray(belief.effects), np.asarray(belief.exact_zeros)
        if has_intercept:
            columns["effect"] = np.insert(columns["effect"], 0, np.nan, axis=-1)
            columns["exact_zero"] = np.insert(columns["exact_zero"], 0, False, axis=-1)
        return cls(
            names=names * (k or 1),
            targets=None if k is None else [one for one in classes or [f"y{j}" for j in range(k)] for _ in names],
            **{name: np.ravel(values) for name, values in columns.items()},
            dof=dof[()],
            level=level,
            rows=learner.n_rows,
            rejected=rejected,
            r2=r2,
            edf=edf,
            log_evidence=evidence,
            noise_var=np.asarray(belief.noise.variance)[()],
            noise_dof=np.asarray(belief.noise.dof)[()],
            facts=facts_of(learner, len(names) - has_intercept, fit, **about),
            notes_on={"coefficients": notes, "fit": of_fit},
        )

    @property
    def notes(self) -> list[str]:
        return [note for notes in self.notes_on.values() for note in notes]

    def to_frame(self, kind: str = "pandas") -> Any:
        """Return the table of the coefficients as a data frame of pandas or polars.

        Parameters
        ----------
        kind : {"pandas", "polars"}

        Returns
        -------
        DataFrame
            With the columns name, coef, se, t, p, low and high, and target if there are several. A number that is not
            defined is NaN in pandas and null in polars.
        """
        columns: dict[str, Any] = {} if self.targets is None else {"target": self.targets}
        columns |= {"name": self.names} | {name: getattr(self, name) for name in _COLUMNS}
        return frame_of(columns, kind)

    def about_model(self, more: Mapping[str, str] = MappingProxyType({})) -> Table:
        """Return the facts about the model as a table, followed by `more`."""
        facts = {**self.facts, **more}
        return Table(["property", "value"], list(map(list, facts.items())), "\n".join(self.notes_on["fit"]))

    def about_coefficients(self, top: int | None = None, references: str = "") -> Table:
        """Return the table of the coefficients that the text, pages and commands show.

        Parameters
        ----------
        top : int, optional
            Show only the `top` coefficients with the largest effects; their numbers stay those of the columns.
        references : str
            What the coefficients of levels are differences from, in a sentence.
        """
        own = "parameters" in self.facts
        kind = [] if self.targets is None else ["class" if "classes" in self.facts else "target"]
        size = len(self.names) // len(dict.fromkeys(self.targets or [""]))
        terms = np.flatnonzero(~np.isnan(self.effect))  # all but intercepts, which have the number 0
        left_out = np.argsort(-self.effect[terms], kind="stable")[len(terms) if top is None else top :]
        rows: list[list[Any]] = []
        for i in np.delete(np.arange(len(self.names)), terms[left_out]).tolist():
            target = [] if self.targets is None else [self.targets[i]]
            cells = [i % size + (len(terms) == len(self.names)), *target, self.names[i], *self._cells(i)]
            rows.append(cells[: len(cells) - own])
        notes = [self._whose, *self.notes_on["coefficients"]]
        if any("unbounded" in row for row in rows):
            notes.append("An interval is unbounded where the rows alone do not determine the coefficient.")
        notes += [references] if references else []
        notes += [] if own else ["The effect is |coefficient| times the standard deviation of the column."]
        if kind == ["class"]:
            notes.append("The coefficients of a class move its linear predictor; over all classes they add up to 0.")
        if len(left_out):
            shown = len(terms) - len(left_out)
            notes.append(f"The {shown:,} with the largest effects, of {len(terms):,}, are shown.")
        header = ["#", *kind, "parameter" if own else "column", *self.heads, *([] if own else ["effect"])]
        lines = [part for note in notes for part in ("\n", note)]
        return Table(header, rows, Text.of(*lines[1:]))

    @property
    def _whose(self) -> str:
        """What the intervals are, in a sentence."""
        kind, whose = self.facts["standard errors"].split(" ")[0], ""
        if DEBIASED not in self.notes:
            whose = ", those of the posterior" if kind == "model" else f", from {kind} standard errors"
            whose += ", for one look at it"
        return f"Coefficients with {100 * self.level:.4g}% intervals{whose}."

    def _cells(self, i: int) -> list[Any]:
        """Return the numbers of a coefficient, with words where there are none."""
        coef, se, t, p, low, high = (float(getattr(self, name)[i]) for name in _COLUMNS)
        spread: list[Any] = [se, low, high]
        if np.isinf(se):
            spread = ["undetermined", None, None]
        elif np.isnan(se) or np.isnan(low):
            spread = ["unknown", None, None]
        elif np.isinf(low):
            spread[1:] = ["unbounded", "unbounded"]
        tests = [None if np.isnan(t) else _three_digits(t), None if np.isnan(p) else _three_digits(p)]
        if p < TINY:
            tests[1] = f"<{TINY:.0e}"
        effect = None if np.isnan(self.effect[i]) else _three_digits(self.effect[i])
        return [coef, spread[0], *tests, *spread[1:], "0 (exact)" if self.exact_zero[i] else effect]

    @property
    def _tables(self) -> tuple[Table, Table]:
        return self.about_model(), self.about_coefficients(_MAX_ROWS)

    def __str__(self) -> str:
        return "\n\n".join(as_text(table, _WIDTH) for table in self._tables)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return card("", *map(whole_table, self._tables))

    @property
    def heads(self) -> tuple[str, ...]:
        """The headings of the numbers of a coefficient."""
        low, high = (f"{100 * share:.4g}%" for share in ((1 - self.level) / 2, (1 + self.level) / 2))
        return "coef", "se", "t", "p", low, high


def frame_of(columns: dict[str, Any], kind: str) -> Any:
    """Return columns as a data frame of pandas or polars; raise an ImportError that says what to install."""
    if kind not in ("pandas", "polars"):
        raise ValueError(f"kind must be 'pandas' or 'polars'; got {kind!r}.")
    try:
        library = import_module(kind)
    except ImportError as missing:
        raise ImportError(f"to_frame needs {kind}, which is not installed: pip install {kind}.") from missing
    frame = library.DataFrame(columns)
    return frame.fill_nan(None) if kind == "polars" else frame


def _read(belief: Belief, level: float) -> tuple[Array, Array, tuple[Array, ...], Array]:
    """Return the coefficients, the intercept first, their standard errors, intervals and degrees of freedom."""
    first, others = (belief.intercept, belief.intercept_std), (belief.coef, belief.coef_std)
    coef, std = _joined(first, others) if belief.design.intercept else others
    if belief.why_no_interval:
        nothing = np.full(coef.shape, np.nan)
        return coef, std, (nothing, nothing), np.asarray(belief.noise.dof, float)
    estimate = belief.coef_estimate(penalised=not belief.debiased)
    ends, dof = estimate.interval(level), np.asarray(estimate.dof, float)
    if belief.design.intercept:
        intercept = belief.intercept_estimate(penalised=not belief.debiased)
        ends = _joined(intercept.interval(level), ends)
        if dof.ndim == coef.ndim:
            (dof,) = _joined((intercept.dof,), (dof,))
    return coef, std, ends, dof


def _joined(first: Sequence[Array], others: Sequence[Array]) -> tuple[Array, ...]:
    """Return arrays of coefficients with those of the intercept in front."""
    pairs = zip(first, others, strict=True)
    return tuple(np.concatenate([np.asarray(one)[..., None], many], axis=-1) for one, many in pairs)


def _tests(belief: Belief, coef: Array, std: Array, dof: Array, notes: list[str]) -> tuple[Array, Array]:
    """Return t and p of the coefficients; NaN, with a note, if the standard errors are not those of a test."""
    nothing = np.full(coef.shape, np.nan)
    if belief.settings.structure is not None:
        notes.append("t and p are empty: standard errors of coefficients are approximate with a structure.")
        return nothing, nothing
    if belief.debiased:
        notes.append(
            "t and p are empty: the penalty sets coefficients to zero or to bounds, and the standard errors are "
            "conditional on those that it selected: a coefficient and its standard error make neither a test nor a "
            "confidence interval."
        )
        return nothing, nothing
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where((std > 0) & np.isfinite(std), coef / std, np.nan)
    nu = dof if dof.ndim in (0, coef.ndim) else dof[..., None]
    p = 2 * np.where(np.isinf(nu), special.ndtr(-np.abs(t)), special.stdtr(np.where(np.isinf(nu), 1.0, nu), -np.abs(t)))
    which = f"Student's t, {numbers_in_words(dof)} degrees of freedom"
    if np.isinf(dof).all():
        which = "the normal distribution"
    elif dof.ndim == coef.ndim:  # of clusters, which say more about one coefficient than about another
        ends = dict.fromkeys(f"{float(one):.3g}" for one in (np.nanmin(dof), np.nanmax(dof)))
        which = f"Student's t, {' to '.join(ends)} degrees of freedom"
    text = f"t = coef / se; p is the probability of a larger |t| under {which}"
    if belief.settings.penalty.penalises:
        text += (
            ". The penalty pulls coefficients towards zero: p is that of the posterior, and below 1 - level where the "
            "interval excludes zero"
        )
    notes.append(f"{text}.")
    return t, p


def _of_fit(belief: Belief, notes: list[str]) -> tuple[Any, Any, Any]:
    """Return R2, the effective degrees of freedom and the log evidence; NaN, with a note, for what is not defined."""
    if isinstance(belief, MixedBelief):
        if belief.settings.likelihood.quadratic:
            notes.append(
                "R2, the effective dof and the log evidence are empty: they differ from one way to forget to another."
            )
        return np.nan, np.nan, np.nan
    return _r2(belief, notes), _edf(belief, notes), _evidence(belief, notes)


def _r2(belief: Belief, notes: list[str]) -> Any:
    """Return 1 - rss / (total sum of squares), about the mean if there is an intercept; NaN with a note.

    It is NaN without a note unless the likelihood is Gaussian.
    """
    if not belief.settings.likelihood.quadratic:
        return np.nan
    drifts = not belief.settings.forgetting.keeps_moments
    if drifts or not isinstance(belief, LinearBelief) or belief.settings.noise_depends_on_inputs:
        what = "noise='inputs'" if isinstance(belief, LinearBelief) else "a nonlinear link"
        what = what if belief.settings.structure is None else "a structure"
        what = "this kind of forgetting" if drifts else what
        notes.append(f"R2 is empty: with {what} the total sum of squares of y is not kept.")
        return np.nan
    centered = belief.rows.centered
    total = (centered.z**2).sum(axis=0) + centered.rss
    with np.errstate(divide="ignore", invalid="ignore"):
        r2 = np.where(total > 0, 1 - belief.posterior.rss / total, np.nan)
    if np.isnan(r2).any():
        notes.append("R2 is empty: the target is constant.")
    elif not belief.settings.fit_intercept:
        notes.append("R2 is about zero, not about the mean of y, because there is no intercept.")
    return r2[()]


def _edf(belief: Belief, notes: list[str]) -> Any:
    if isinstance(belief.posterior, InformationPosterior):
        return np.asarray(belief.posterior.edf)[()]
    notes.append("The effective degrees of freedom are empty: a structure does not give them.")
    return np.nan


def _evidence(belief: Belief, notes: list[str]) -> Any:
    try:
        found = np.asarray(belief.log_evidence)[()]
    except ValueError:
        if not belief.settings.likelihood.quadratic:
            return np.nan
        notes.append(
            "There is no log evidence: it needs a linear model, a penalty that is a prior, such as ridge, and rows "
            "that do not drift."
        )
        return np.nan
    if not np.isfinite(found).all():
        notes.append("There is no log evidence: the fit leaves no residuals.")
        return np.where(np.isfinite(found), found, np.nan)[()]
    if belief.settings.noise_var is None:
        notes.append(
            "The noise is integrated out of the log evidence under an improper prior: only differences between models "
            "of the same y mean anything."
        )
    return found


def _about_intervals(belief: Belief, notes: list[str]) -> None:
    """Add what is to be said of standard errors and intervals."""
    if belief.debiased:
        notes.append(DEBIASED)
    if isinstance(belief, MixedBelief):
        notes.append(
            "Coefficients are the mean of the mixture of all ways to forget, and standard errors its standard "
            "deviation. Intervals are those of Student's t distribution with these moments."
        )
    notes += [note for note in (belief.why_no_interval, belief.interval_doubt) if note]
    if unknown := int((~belief.determined(penalised=True)).sum()):
        notes.append(
            worded(
                f"Undetermined: neither the rows nor the penalty determine {unknown:,} of the coefficients, and of all "
                "that fit as well those of the smallest size are shown. Use {penalty='ridge'} with {alpha='auto'}, or "
                "leave columns out."
            )
        )


def _three_digits(value: float) -> Any:
    return float(f"{value:.3g}")
