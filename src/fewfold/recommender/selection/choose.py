"""Choose a model for a log by trials on a validation part of it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from fewfold._progress import phase
from fewfold.recommender.evaluation.model_evaluation import MINUTE
from fewfold.recommender.evaluation.paired_interval import PairedInterval, paired_interval
from fewfold.recommender.interactions import Interactions
from fewfold.recommender.models.model import FitOptions, Model
from fewfold.recommender.models.registry import models
from fewfold.recommender.selection.choice import Choice, Tried
from fewfold.recommender.selection.model_candidates import Candidate, best_blend, single
from fewfold.recommender.selection.trials import Trial, Trials, Validation
from fewfold.recommender.training.train_options import Deadline

__all__ = ["choose"]

_USERS, _FEWEST = 10_000, 2_000  # validated users
_SCORES = 2e9  # of validated users and items; with more items fewer users are validated
_FIRST = 0.25  # share of a training in the first round
_OPTIMISM = 1.15  # factor by which a quarter of a training may fall short of the whole
_BEHIND = 0.05  # relative shortfall at which the model that a cheap one approximates is not tried
_LONGEST = 1.5  # times a whole training: work of all trials of a model that is not trained
_SURVIVORS = 3  # models in the second round


def choose(
    log: Interactions,
    options: FitOptions,
    names: Sequence[str] | None = None,
    *,
    blends: bool = True,
    prefer_completable: bool = False,
) -> tuple[Model, Choice]:
    """Return the model for a log, with its settings, and how it was chosen.

    A small part of the log is held out to validate; see `Validation`. First every candidate is
    fitted, those trained in epochs for a part of them; the best settings of each model stay.
    Then at most three models that may still win are trained whole. The best of them by NDCG@10 is
    chosen, or, if the paired 95 % interval of the difference contains 0, the smallest and fastest
    that equals it. A blend of two models is chosen if it is significantly better on users that did
    not choose its weight.

    The choice depends on the log, the seed and the models alone, unless there is a time limit.

    Args:
        log: to choose for; nothing else is looked at.
        options: of the fit; trials are kept in a stage of its checkpoint.
        names: models to consider; by default all that are registered.
        blends: also consider blends of two models.
        prefer_completable: prefer a model that can rank items without interactions by their
            attributes to one that is not significantly better.
    """
    candidates, skipped = _candidates(log, names)
    validation = Validation.of(
        log, split=options.split, users=_validated(log.items), seed=options.seed
    )
    if validation is None:
        return _without_validation(log, candidates, skipped)
    half = None if options.deadline is None else options.deadline.share(0.5)
    trials = Trials(log, validation, replace(options, deadline=half))
    total = _expected_work(candidates, log, half)
    with phase("choosing a model", total=total) as progress:
        pace, done = _Pace(half), 0.0
        first: dict[str, Trial] = {}
        for name, grid in candidates.items():
            group, why = _after_cheap_version(grid, first, log.items)
            if why:
                skipped[name] = why
            for model in group:
                work = _share(model) * model.work(log)
                if first and not pace.allows(work):
                    skipped.setdefault(name, "the time budget was too short")
                    break
                progress.what, progress.part = f"choosing a model, trying {name}", work
                trial = trials.run(model, _share(model))
                pace.add(work, trial.seconds)
                if name not in first or trial.mean > first[name].mean:
                    first[name] = trial
                done += work
                progress.advance(done)
        survivors, dropped = _halve([*first.values()])
        progress.total = done + sum(one.model.work(log) for one in survivors if one.effort < 1)
        whole: list[Trial] = []
        for one in survivors:
            work = one.model.work(log)
            if one.effort < 1 and pace.allows(work):
                name = one.model.name
                progress.what, progress.part = f"choosing a model, training {name}", work
                one = trials.run(one.model, 1.0)
                done += work
                progress.advance(done)
            whole.append(one)
    found = [single(trial) for trial in whole]
    best_single = max(found, key=lambda one: one.mean)
    blend = best_blend(found, best_single, validation) if blends else None
    if blend is not None:
        found.append(blend)
    chosen, why = _smallest_equal(found, blend, dropped)
    if prefer_completable and not chosen.model.completable:
        chosen, why = _completable(found, chosen, why)
    rows = [_row(one, chosen) for one in found] + [_dropped_row(one, chosen) for one in dropped]
    rows.sort(key=lambda row: (row.outcome != "chosen", -row.ndcg))
    users = validation.histories.users
    settings = chosen.model.summary()
    return chosen.model, Choice(
        chosen.model.name, settings, why, validation.split, users, tuple(rows), skipped
    )


def _expected_work(
    candidates: Mapping[str, Sequence[Model]], log: Interactions, deadline: Deadline | None
) -> float:
    """Upper bound of the work of all trials that the time allows, to show progress."""
    limit = math.inf if deadline is None else deadline.left() / 60 * MINUTE
    total = 0.0
    for group in candidates.values():
        for one in group:
            work = (_share(one) + one.resumable) * one.work(log)
            if total and total + work > limit:
                return total
            total += work
    return total


def _validated(items: int) -> int:
    """Number of validated users: ranking them should not take longer than fitting."""
    return int(max(_FEWEST, min(_USERS, _SCORES / max(items, 1))))


class _Pace:
    """Estimates whether a trial ends before a deadline, from the seconds of earlier ones."""

    def __init__(self, deadline: Deadline | None) -> None:
        self._deadline, self._work, self._seconds = deadline, MINUTE, 60.0

    def add(self, work: float, seconds: float) -> None:
        self._work += work
        self._seconds += seconds

    def allows(self, work: float) -> bool:
        if self._deadline is None:
            return True
        return work * self._seconds / self._work <= self._deadline.left()


def _candidates(
    log: Interactions, names: Sequence[str] | None
) -> tuple[dict[str, list[Model]], dict[str, str]]:
    """Settings to try by model, cheapest model first, and why others are not tried."""
    found: dict[str, list[Model]] = {}
    skipped: dict[str, str] = {}
    known = models()
    for name in known if names is None else names:
        try:
            kind = known[name]
        except ImportError as error:  # a model of another package
            skipped[name] = str(error)
            continue
        grid = list(kind.grid(log.items))
        if not grid:
            continue
        why = kind.unsuitable(log)
        if why:
            skipped[name] = why
        else:
            found[name] = grid
    works = {name: sum(_share(m) * m.work(log) for m in grid) for name, grid in found.items()}
    trained = [grid[0].work(log) for grid in found.values() if grid[0].resumable]
    limit = _LONGEST * max(trained, default=MINUTE)
    for name, grid in found.items():
        if works[name] > max(limit, MINUTE) and not grid[0].resumable:
            minutes = works[name] / MINUTE
            skipped[name] = f"its trials would take about {minutes:,.0f} minutes of two processors"
    order = sorted(set(found) - set(skipped), key=lambda name: works[name])
    return {name: found[name] for name in order}, skipped


def _after_cheap_version(
    grid: Sequence[Model], first: Mapping[str, Trial], items: int
) -> tuple[Sequence[Model], str]:
    """Settings to try, given the trials so far; none, and why, if a cheap version is far behind."""
    kind = type(grid[0])
    cheap = first.get(kind.cheap_version or "")
    if cheap is None:
        return grid, ""
    behind = 1 - cheap.mean / max(one.mean for one in first.values())
    if behind > _BEHIND:
        return (), f"{cheap.model.name}, which approximates it, is {behind:.0%} behind the best"
    return kind.grid_after(items, cheap.model), ""


def _share(model: Model) -> float:
    """Share of the training in the first round."""
    return _FIRST if model.resumable else 1.0


def _halve(first: list[Trial]) -> tuple[list[Trial], list[Trial]]:
    """Split into the trials whose models may still win, at most three, and the others."""
    by_hope = sorted(first, key=_hope, reverse=True)
    best = max(one.mean for one in first)
    hopeful = [one for one in by_hope if _hope(one) >= 0.75 * best]
    survivors = hopeful[:_SURVIVORS]
    return survivors, [one for one in by_hope if one not in survivors]


def _hope(trial: Trial) -> float:
    """NDCG@10 that a whole training may reach."""
    return trial.mean * (_OPTIMISM if trial.effort < 1 else 1.0)


def _smallest_equal(
    found: Sequence[Candidate], blend: Candidate | None, dropped: Sequence[Trial]
) -> tuple[Candidate, str]:
    """The cheapest candidate that is not significantly worse than the best, and the reason."""
    best = max(found, key=lambda one: one.mean) if blend is None else blend
    equal = [
        one for one in found if one is best or paired_interval(best.per_user, one.per_user).low <= 0
    ]
    chosen = min(equal, key=lambda one: one.bytes * max(one.cost, 1.0))
    name = chosen.model.name
    if chosen is not best:
        return chosen, (
            f"{name} was chosen: {best.model.name} is not significantly better "
            f"({_against(best, chosen)}), and larger or slower."
        )
    others: list[Candidate | Trial] = [*(one for one in found if one is not chosen), *dropped]
    if not others:
        return chosen, f"{name} was chosen: no other model was tried."
    rival = max(others, key=lambda one: one.mean)
    reason = f"{name} was chosen, against {rival.model.name}: {_against(chosen, rival)}"
    if len(equal) > 1:
        reason += "; of those that are equally good it is the smallest and fastest"
    return chosen, f"{reason}."


def _completable(found: Sequence[Candidate], chosen: Candidate, why: str) -> tuple[Candidate, str]:
    """The best model with item vectors that is not significantly worse than the chosen one."""
    able = [
        one for one in found
        if one.model.completable and paired_interval(chosen.per_user, one.per_user).low <= 0
    ]  # fmt: skip
    if not able:
        return chosen, f"{why} It cannot rank items without interactions."
    best = max(able, key=lambda one: one.mean)
    return best, (
        f"{best.model.name} was chosen, which ranks items without interactions by their "
        f"attributes: {chosen.model.name} is not significantly better ({_against(chosen, best)})."
    )


def _against(one: Candidate, other: Candidate | Trial) -> str:
    return f"NDCG@10 {paired_interval(one.per_user, other.per_user)}"


def _row(one: Candidate, chosen: Candidate) -> Tried:
    gap = paired_interval(one.per_user, chosen.per_user)
    outcome = "chosen" if one is chosen else "whole training"
    return _tried(one.model, one, gap, 1.0, outcome)


def _dropped_row(one: Trial, chosen: Candidate) -> Tried:
    gap = paired_interval(one.per_user, chosen.per_user)
    return _tried(one.model, one, gap, one.effort, "dropped after the first round")


def _tried(
    model: Model, one: Candidate | Trial, gap: PairedInterval, effort: float, outcome: str
) -> Tried:
    return Tried(
        model.name, model.summary(), model.flags(), one.mean, gap.mean, gap.low, gap.high,
        effort, one.bytes, one.seconds, outcome,
    )  # fmt: skip


def _without_validation(
    log: Interactions, candidates: dict[str, list[Model]], skipped: dict[str, str]
) -> tuple[Model, Choice]:
    """The choice for a log with too few users to validate: EASE where it fits, else FastVAE."""
    name = next((name for name in ("ease", "fastvae", *candidates) if name in candidates), "")
    if not name:
        reasons = "; ".join(f"{name}: {why}" for name, why in skipped.items())
        raise ValueError(f"no model can be fitted to this log ({reasons})")
    model = models()[name]()
    why = f"{name} was chosen: the log has too few users with several items to compare models."
    return model, Choice(name, model.summary(), why, "", 0, (), skipped)
