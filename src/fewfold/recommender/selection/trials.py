"""Trials of candidate models on a validation part of a log, and the file that keeps them."""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

import torch
from torch import Tensor

from fewfold._tensors import Found, Spec
from fewfold.recommender.artifact.schema import check
from fewfold.recommender.evaluation.holdout import hold_out
from fewfold.recommender.evaluation.metrics import NDCG, evaluate
from fewfold.recommender.interactions import Interactions, Jagged
from fewfold.recommender.models.model import FitOptions, Fitted, Model
from fewfold.recommender.ranking.exact_ranking import Ranking
from fewfold.recommender.training.checkpoint import CheckpointWriter
from fewfold.recommender.training.checkpoint_file import Saved, describe_log

__all__ = ["METRIC", "Trial", "Trials", "Validation", "per_user"]

METRIC = NDCG(10)
DEPTH = 200  # items of the lists, as many as a blend merges


@dataclass(frozen=True, eq=False)
class Validation:
    """A part of a log to fit candidates to, and held-out items of some of its users.

    Attributes:
        train: interactions to fit to.
        histories: interactions of the validated users in `train`.
        hidden: items of these users that were held out.
        split: description of how they were held out.
    """

    train: Interactions
    histories: Interactions
    hidden: Jagged
    split: str

    @classmethod
    def of(
        cls, log: Interactions, *, split: str, users: int, seed: int, everybody: bool = False
    ) -> "Validation | None":
        """Hold out as the evaluation does, but as little as possible, and choose random users.

        A split by time cuts off the last tenth of the log. Otherwise items are held out of each of
        at most `users` users, not more than half of all: the last one, or a tenth at random. So
        candidates are compared on nearly as much data, and nearly as long histories, as the chosen
        one will have, which matters since some models need more of them than others.

        With `everybody`, a split by time may validate on all users: it hides no more for it.

        Return None if fewer than 50 users have held-out items.
        """
        try:
            held, words = hold_out(log, test=0.1, split=split, seed=seed + 1)
        except ValueError:  # too few interactions to hold any out
            return None
        generator = torch.Generator().manual_seed(seed)
        if held.kind == "random":
            chosen = _draw_users(log.jagged, log.jagged, users, generator, least=2)
            hidden = _tenth(log.rows(chosen), generator)
            words = "a tenth of the items of each at random, at least one"
        else:
            part = 1 if everybody and held.kind == "temporal" else 2
            tested = held.test.jagged, held.fold_in.jagged
            chosen = _draw_users(*tested, users, generator, part=part)
            hidden = held.test.rows(chosen)
        train = held.train if held.kind == "temporal" else _without(log, chosen, hidden)
        return cls(train, train.select(chosen), hidden, words) if len(chosen) >= 50 else None


def _draw_users(
    test: Jagged,
    histories: Jagged,
    most: int,
    generator: torch.Generator,
    *,
    least: int = 1,
    part: int = 2,
) -> Tensor:
    """Draw users with test items and at least so many in their history, one in `part` of them."""
    able = ((test.lengths > 0) & (histories.lengths >= least)).nonzero().squeeze(1)
    order = torch.randperm(len(able), generator=generator)
    return able[order[: min(most, max(50, len(able) // part))]].sort().values


def _tenth(rows: Jagged, generator: torch.Generator) -> Jagged:
    """A tenth of the values of each row, rounded to the nearest and at least one, at random."""
    size = len(rows.values)
    order = torch.randperm(size, generator=generator)
    order = order[rows.row[order].argsort(stable=True)]  # random within each row
    place = torch.arange(size) - rows.offsets[rows.row]
    counts = (rows.lengths / 10).round().clamp(min=1).long().minimum(rows.lengths)
    kept = order[place < counts[rows.row]].sort().values
    return Jagged(rows.values[kept], torch.cat([counts.new_zeros(1), counts.cumsum(0)]))


def _without(log: Interactions, users: Tensor, hidden: Jagged) -> Interactions:
    """The log without the hidden items of these users."""
    keys = users[hidden.row] * log.items + hidden.values
    return log.keep(~torch.isin(log.row * log.items + log.ids, keys))


@dataclass(frozen=True, eq=False)
class Trial:
    """Result of one candidate: its lists for the validated users and their NDCG@10.

    Attributes:
        model: the candidate.
        effort: share of the full training, 1 for a whole one.
        ranking: (users, 200) best items; None once other settings of the model were better.
        per_user: (users,) NDCG@10.
        bytes: size of its tensors.
        cost: multiply-adds to score one item for one user.
        seconds: time to fit and rank.
        reusable: what the fit chose on held-out pairs; see `Learned.reusable`.
    """

    model: Model
    effort: float
    ranking: Ranking | None
    per_user: Tensor
    bytes: int
    cost: float
    seconds: float
    reusable: Mapping[str, float]

    @property
    def mean(self) -> float:
        """Mean NDCG@10."""
        return float(self.per_user.mean())


@dataclass(frozen=True)
class _Facts:
    """A finished trial in a checkpoint; its results are the tensors with its number."""

    number: int
    group: str
    bytes: int
    cost: float
    seconds: float
    reusable: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class _Trials:
    """Finished trials in a checkpoint, by model and effort."""

    trials: Mapping[str, _Facts]


class Trials:
    """Runs candidates on a validation part, and keeps the results in a checkpoint.

    An interrupted choice repeats only the trial it was in: finished trials are read from the file.
    Lists are kept for the best settings of each model alone; only they can become part of a blend.
    """

    def __init__(self, log: Interactions, validation: Validation, options: FitOptions) -> None:
        self.validation, self.options = validation, replace(options, cache={})
        kept = options.checkpoint and options.checkpoint.stage("choice")
        self._writer = CheckpointWriter(kept)
        self._done: dict[str, _Facts] = {}
        self._tensors: dict[str, Tensor] = {}
        settings = {"log": describe_log(log), "seed": options.seed, "split": validation.split}
        saved = self._writer.load(settings, self._layout)
        if saved is not None:
            saved.expect(self._layout(saved.found))
            found = check(_Trials, saved.facts, saved.source, exact=False).trials
            self._done, self._tensors = dict(found), saved.tensors

    def run(self, model: Model, effort: float = 1.0) -> Trial:
        """Fit a candidate to the validation part and rank for its users."""
        name = f"{model!r} {effort:g}"
        if name not in self._done:
            self._measure(model, effort, name)
            self._writer.finish(self)
        facts, lists = self._done[name], None
        if f"{facts.number}.ids" in self._tensors:
            ids, scores = (self._tensors[f"{facts.number}.{part}"] for part in ("ids", "scores"))
            lists = Ranking(ids.long(), scores)
        values = self._tensors[f"{facts.number}.ndcg"]
        return Trial(
            model, effort, lists, values, facts.bytes, facts.cost, facts.seconds, facts.reusable
        )

    def _measure(self, model: Model, effort: float, name: str) -> None:
        began, number = time.perf_counter(), len(self._done)
        whole = self.options.checkpoint
        kept = whole.stage(f"trial{number}") if whole and model.resumable else None
        options = replace(self.options, effort=effort, checkpoint=kept, previous=None)
        learned = model.learn(self.validation.train, options)
        fitted = learned.fitted
        ranking = self.rank(fitted)
        if kept is not None:
            kept.discard()
        group = f"{model.name} {effort:g}"
        self._keep(number, group, ranking)
        self._done[name] = _Facts(
            number,
            group,
            sum(tensor.nbytes for tensor in fitted.state().values()),
            float(fitted.score_cost(self.validation.histories.jagged)),
            time.perf_counter() - began,
            learned.reusable(),
        )

    def _keep(self, number: int, group: str, ranking: Ranking) -> None:
        """Store the NDCG@10, and the lists if they are the best of the group so far."""
        values = per_user(ranking, self.validation.hidden)
        others = [facts.number for facts in self._done.values() if facts.group == group]
        best = max((float(self._tensors[f"{n}.ndcg"].mean()) for n in others), default=-1.0)
        self._tensors[f"{number}.ndcg"] = values.double()
        if float(values.mean()) <= best:
            return
        for other in others:
            self._tensors.pop(f"{other}.ids", None)
            self._tensors.pop(f"{other}.scores", None)
        self._tensors[f"{number}.ids"] = ranking.ids.int()
        # A file holds finite numbers alone; the score of no item is never read.
        self._tensors[f"{number}.scores"] = ranking.scores.masked_fill(ranking.ids < 0, 0.0)

    def rank(self, fitted: Fitted) -> Ranking:
        """Rank the validated users' best items, without those of their histories."""
        known = self.validation.histories
        depth = min(DEPTH, known.items)
        history = known.rows(slice(None), ordered=fitted.recipe.ordered)
        return fitted.rank(history, depth, exclude=known.seen())

    def _layout(self, found: Found) -> list[tuple[str, Spec]]:
        users, items = self.validation.histories.users, self.validation.histories.items
        depth, specs = min(DEPTH, items), []
        for name in found:
            number, _, kind = name.partition(".")
            if kind == "ndcg":
                specs.append((name, Spec((users,), torch.float64, least=0)))
            elif kind == "ids":
                specs.append((name, Spec((users, depth), torch.int32, least=-1, below=items)))
                specs.append((f"{number}.scores", Spec((users, depth))))
        return specs

    def state(self) -> Saved:
        """All finished trials, for the checkpoint."""
        return Saved(self._tensors, {"trials": {k: asdict(v) for k, v in self._done.items()}})

    def where(self) -> str:
        """Number of finished trials, as text."""
        return f"after {len(self._done)} trials"


def per_user(ranking: Ranking, hidden: Jagged) -> Tensor:
    """NDCG@10 of each user's list."""
    return evaluate(ranking.ids, hidden, (METRIC,), resamples=0)[METRIC].per_user
