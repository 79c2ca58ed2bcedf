"""What a comparison comes to, in sentences: who is ahead with how many labels, and whether that is more than chance.

Methods are compared in pairs, on the same labels and the same test rows, by the figure that tells most. A lead counts
where it is larger than its margin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats

from tabmoco.evaluation.figures import METRICS

Family = Literal["guess", "linear", "trees", "average", "control", "probe", "tabmoco"]
"""`control` reads what pretraining has to beat, `probe` what it made; `tabmoco` is the default estimator."""

RIVALS: tuple[Family, ...] = ("linear", "trees", "average")
CANDIDATES: tuple[Family, ...] = (*RIVALS, "probe", "tabmoco")
"""Families that may be recommended."""

CONFIDENCE = 0.9
"""How often chance alone stays within the margin of a lead."""

LOWER_IS_BETTER = ("rmse", "log_loss")

LEAST_LEAD = {"auroc": 0.002, "rmse": 0.005}
"""Smaller leads are no leads, however certain: 0.2 points of AUROC, or 0.5 % of the other's RMSE."""

FIGURES = {"auroc": "AUROC", "rmse": "RMSE"}


@dataclass(frozen=True)
class Outcome:
    """How well one method did with one number of labels."""

    method: str
    """What it is called in `Comparison[...]`."""

    family: Family
    learner: str
    reads: str
    """What the learner sees of a row, if anything."""

    n_labels: int
    values: Mapping[str, tuple[float, ...]]
    """For each figure its value in every draw."""

    partial: tuple[tuple[float, ...], ...] = ()
    """For every draw the leading figure without each tenth of the test rows."""

    seconds: tuple[float, ...] = ()
    """To fit and predict, in every draw, without pretraining."""

    @property
    def title(self) -> str:
        return f"{self.learner} on {self.reads}" if self.reads else self.learner

    def mean(self, figure: str) -> float:
        return float(np.mean(self.values[figure]))

    def spread(self, figure: str) -> float:
        """Standard deviation over the draws; NaN for a single one."""
        return float(np.std(self.values[figure], ddof=1)) if len(self.values[figure]) > 1 else float("nan")


@dataclass(frozen=True)
class Lead:
    """How far one method is ahead of another with as many labels."""

    ours: Outcome
    theirs: Outcome
    figure: str
    mean: float
    """Mean difference over the draws, above 0 where `ours` is better."""

    margin: float
    """What chance in the draw of the labels and of the test rows explains in `CONFIDENCE` of all cases."""

    @property
    def is_clear(self) -> bool:
        least = LEAST_LEAD[self.figure] * (self.theirs.mean(self.figure) if self.figure == "rmse" else 1.0)
        return self.mean > self.margin and self.mean >= least

    @property
    def reversed(self) -> Lead:
        return Lead(self.theirs, self.ours, self.figure, -self.mean, self.margin)

    @property
    def told(self) -> str:
        """The lead in a few words: points of AUROC, or RMSE as it is."""
        size = abs(self.mean)
        if self.figure == "auroc":
            return f"{'+' if self.mean >= 0 else '-'}{100 * size:.1f} points"
        return f"RMSE {size:.3g} {'lower' if self.mean >= 0 else 'higher'}"

    @property
    def told_margin(self) -> str:
        return f"{100 * self.margin:.1f}" if self.figure == "auroc" else f"{self.margin:.3g}"


def lead(ours: Outcome, theirs: Outcome, figure: str) -> Lead:
    """The lead of one method over another, from the differences in each draw.

    The margin has two parts, whose squares are added. For the draw of the labels: the one-sided quantile of Student's t
    times the standard error of the mean difference; nothing for a single draw. For that of the test rows, which all
    draws share: the quantile of the normal distribution times the standard error by the jackknife over tenths of them.
    """
    sign = -1.0 if figure in LOWER_IS_BETTER else 1.0
    difference = sign * (np.array(ours.values[figure]) - np.array(theirs.values[figure]))
    n_draws = len(difference)
    by_labels = by_rows = 0.0
    if n_draws > 1:
        by_labels = stats.t.ppf(CONFIDENCE, n_draws - 1) * difference.std(ddof=1) / np.sqrt(n_draws)
    if ours.partial and theirs.partial:
        without = (np.array(ours.partial) - np.array(theirs.partial)).mean(axis=0)
        n_parts = len(without)
        by_rows = stats.norm.ppf(CONFIDENCE) * np.sqrt((n_parts - 1) * without.var())
    return Lead(ours, theirs, figure, float(difference.mean()), float(np.hypot(by_labels, by_rows)))


@dataclass(frozen=True)
class _Round:
    """All outcomes with one number of labels."""

    n_labels: int
    figure: str
    outcomes: Mapping[str, Outcome]

    def of(self, *families: Family) -> list[Outcome]:
        """Outcomes of some families, the best first."""
        sign = 1 if self.figure in LOWER_IS_BETTER else -1
        chosen = [outcome for outcome in self.outcomes.values() if outcome.family in families]
        return sorted(chosen, key=lambda outcome: sign * outcome.mean(self.figure))

    @property
    def ours(self) -> Outcome:
        return self.of("tabmoco")[0]

    @property
    def learned(self) -> Outcome | None:
        """The probe of what was learned without labels."""
        return self.outcomes.get("expected", self.outcomes.get("embedding"))

    def lead(self, ours: Outcome, theirs: Outcome) -> Lead:
        return lead(ours, theirs, self.figure)

    @property
    def beats_guessing(self) -> bool:
        """Whether any method clearly does, or there is no guess to beat."""
        guess = self.of("guess")
        return not guess or any(self.lead(one, guess[0]).is_clear for one in self.outcomes.values())

    @property
    def good(self) -> list[Outcome]:
        """Candidates that the best one is not clearly ahead of, the best first."""
        candidates = self.of(*CANDIDATES)
        return [outcome for outcome in candidates if not self.lead(candidates[0], outcome).is_clear]


def verdict(
    outcomes: Sequence[Outcome], task: Literal["classification", "regression"], *, n_all: int | None = None
) -> list[str]:
    """What the figures say, in sentences; the last one recommends something.

    Parameters
    ----------
    n_all
        The number of labels that is called "all".
    """
    figure = METRICS[task][0]
    rounds = [
        _Round(n, figure, {outcome.method: outcome for outcome in outcomes if outcome.n_labels == n})
        for n in sorted({outcome.n_labels for outcome in outcomes})
    ]
    words = _Words(n_all, len(rounds))
    told = [f"With {words.labels(found.n_labels)} {_standing(found)}" for found in rounds]
    useful = [found for found in rounds if found.beats_guessing]
    if not useful:
        return [*told, _NONE]
    return [*told, *_on_trees(useful, words), *_on_pretraining(useful, words), _recommendation(useful, words)]


_NONE = (
    "Recommendation: none; no method tells the target from these columns with so many labels. Get more labels, or "
    "other columns."
)


@dataclass(frozen=True)
class _Words:
    """How numbers of labels are spoken of."""

    n_all: int | None
    n_rounds: int

    def number(self, n_labels: int) -> str:
        return f"all {n_labels:,}" if n_labels == self.n_all else f"{n_labels:,}"

    def labels(self, *n_labels: int) -> str:
        """ "25, 100 and all 4,000 labels"; all that were tried go by that."""
        if 1 < len(n_labels) == self.n_rounds:
            return "any number of labels tried"
        return f"{listed([self.number(n) for n in n_labels])} labels"


def listed(words: Sequence[str]) -> str:
    """ "a, b and c"."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _standing(found: _Round) -> str:
    """Who is ahead, the default estimator or the best of its rivals."""
    if not found.beats_guessing:
        return "nothing is clearly better than guessing."
    ours, best = found.ours, found.of(*RIVALS)[0]
    ahead = found.lead(ours, best)
    name, mine, theirs = FIGURES[found.figure], ours.mean(found.figure), best.mean(found.figure)
    if ahead.is_clear:
        who = (
            f"{ours.learner} is ahead of all rivals: {name} {mine:.4g}, {theirs:.4g} for the best of them, {best.title}"
        )
        return f"{who} ({ahead.told}, margin {ahead.told_margin})."
    behind = ahead.reversed
    if behind.is_clear:
        who = f"{best.title} is ahead of {ours.learner}: {name} {theirs:.4g} against {mine:.4g}"
        return f"{who} ({behind.told}, margin {behind.told_margin})."
    who = (
        f"{ours.learner} and the best rival, {best.title}, cannot be told apart: {name} {mine:.4g} against {theirs:.4g}"
    )
    return f"{who} ({ahead.told}, margin {ahead.told_margin})."


def _on_trees(rounds: Sequence[_Round], words: _Words) -> list[str]:
    """From how many labels on trees are the better choice."""
    leads = [found.lead(found.of("trees")[0], found.ours) for found in rounds if found.of("trees")]
    if not leads:
        return []
    ours = leads[0].theirs.learner
    n_last = len(leads)
    while n_last and leads[n_last - 1].is_clear:
        n_last -= 1
    earlier = [one for one in leads[:n_last] if one.is_clear]
    if n_last < len(leads):
        first = leads[n_last]
        since = "with any number of labels tried" if n_last == 0 else f"from {words.labels(first.ours.n_labels)} on"
        if len(leads) == n_last + 1:
            since = f"with {words.labels(first.ours.n_labels)}"
        best = listed(list(dict.fromkeys(one.ours.title for one in leads[n_last:])))
        return [f"Trees are the better choice {since}: {best} is ahead of {ours}."]
    if earlier:
        numbers = words.labels(*(one.ours.n_labels for one in earlier))
        return [f"Trees are the better choice with {numbers} only."]
    behind = [one for one in leads if one.reversed.is_clear]
    level = [one for one in leads if not one.reversed.is_clear]
    if not level:
        return [f"Trees are never the better choice here: {ours} is ahead of them with {_tried(leads, words)}."]
    if not behind:
        return [f"Trees and {ours} cannot be told apart with {_tried(leads, words)}."]
    return [
        f"Trees are nowhere clearly better: behind {ours} with {_tried(behind, words)}, not to be told from it with "
        f"{_tried(level, words)}."
    ]


def _tried(leads: Sequence[Lead], words: _Words) -> str:
    return words.labels(*(one.ours.n_labels for one in leads))


def _on_pretraining(rounds: Sequence[_Round], words: _Words) -> list[str]:
    """Whether what was learned without labels is worth more than the untrained encoder, and than no encoder."""
    rounds = [found for found in rounds if found.learned and "untrained" in found.outcomes]
    leads = [found.lead(found.learned, found.outcomes["untrained"]) for found in rounds if found.learned]
    if not leads:
        return []
    who = leads[0].ours.title
    helps, harms = [one for one in leads if one.is_clear], [one for one in leads if one.reversed.is_clear]
    if not helps:
        told = f"The pretraining adds nothing here: {who} is not clearly better than on the untrained encoder"
        worse = f", and worse with {_sizes(harms, words)}" if harms else ""
        return [f"{told} with {_tried(leads, words)} ({_range(leads)}){worse}."]
    told = f"The pretraining helps with {_sizes(helps, words)}: {who} against the same on the untrained encoder"
    rest = [one for one in leads if one not in helps and one not in harms]
    adds = f"; with {_tried(rest, words)} it adds nothing" if rest else ""
    does = f"; with {_sizes(harms, words)} it does harm" if harms else ""
    return [f"{told}{adds}{does}.", *_on_bare_cells(rounds, words)]


def _on_bare_cells(rounds: Sequence[_Round], words: _Words) -> list[str]:
    """Whether what pretraining added is more than the cells, or their principal components, tell as well."""
    leads = []
    for found in rounds:
        others = [found.outcomes[name] for name in ("logistic", "components") if name in found.outcomes]
        if others and found.learned:
            leads.append(min((found.lead(found.learned, one) for one in others), key=lambda one: one.mean))
    clear = [one for one in leads if one.is_clear]
    if not leads:
        return []
    if not clear:
        return ["Yet alone it is nowhere clearly better than the cells or their principal components."]
    learner, numbers = leads[0].ours.learner, _tried(clear, words)
    who = f"{learner[:1].upper()}{learner[1:]} learns more from {leads[0].ours.reads}"
    return [f"{who} than from the cells or their principal components with {numbers}."]


def _sizes(leads: Sequence[Lead], words: _Words) -> str:
    """ "25 and 100 labels (+3.1 points, +1.0 points)"."""
    return f"{_tried(leads, words)} ({', '.join(one.told for one in leads)})"


def _range(leads: Sequence[Lead]) -> str:
    ordered = sorted(leads, key=lambda one: one.mean)
    told = dict.fromkeys((ordered[0].told, ordered[-1].told))
    return " to ".join(told)


def _recommendation(rounds: Sequence[_Round], words: _Words) -> str:
    """What to use with how many labels: of the methods that are as good as the best, one that stays so for long."""
    groups: list[tuple[list[_Round], list[str]]] = []
    for found in rounds:
        good = [outcome.method for outcome in found.good]
        shared = [name for name in groups[-1][1] if name in good] if groups else []
        if shared:
            groups[-1] = ([*groups[-1][0], found], shared)
        else:
            groups.append(([found], good))
    told = []
    for place, (members, names) in enumerate(groups):
        chosen = _chosen(members, names)
        first, last = members[0].n_labels, members[-1].n_labels
        if len(groups) == 1 and len(members) == words.n_rounds > 1:
            when = ""
        elif first == last:
            when = f"with {words.labels(first)} "
        elif place == len(groups) - 1:
            when = f"with {words.labels(first)} or more "
        elif members[0] is rounds[0] and len(rounds) == words.n_rounds:
            when = f"with up to {words.labels(last)} "
        else:
            when = f"with {words.number(first)} to {words.labels(last)} "
        told.append(f"{when}use {chosen}")
    return f"Recommendation: {'; '.join(told)}."


def _chosen(members: Sequence[_Round], names: Sequence[str]) -> str:
    """Of methods that are all good enough a rival, which needs no pretraining; the best of them."""
    sign = 1 if members[0].figure in LOWER_IS_BETTER else -1

    def order(name: str) -> tuple[bool, float]:
        outcomes = [found.outcomes[name] for found in members]
        is_rival = outcomes[0].family in RIVALS
        return not is_rival, sign * float(np.mean([one.mean(members[0].figure) for one in outcomes]))

    ranked = [members[0].outcomes[name] for name in sorted(names, key=order)]
    best, ours = ranked[0], [outcome for outcome in ranked if outcome.family == "tabmoco"]
    also = f" ({ours[0].learner} may be as good, but has to be pretrained)" if ours and best is not ours[0] else ""
    return f"{best.title if best.family != 'tabmoco' else best.learner}{also}"
