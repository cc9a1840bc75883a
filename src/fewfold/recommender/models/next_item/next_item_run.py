"""Training of a next-item network in progress: batches of windows, their loss, the validation."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fewfold import optim
from fewfold._torch import transferred
from fewfold.recommender.evaluation.metrics import NDCG, evaluate
from fewfold.recommender.interactions import Jagged
from fewfold.recommender.models.fastvae.objectives import FullSoftmax, Objective, SampledSoftmax
from fewfold.recommender.models.next_item.next_item_network import NextItemNetwork
from fewfold.recommender.models.next_item.windows import Windows
from fewfold.recommender.ranking.exact_ranking import DotProduct, top_k
from fewfold.recommender.training.checkpoint_file import digest
from fewfold.recommender.training.run import TrainingRun
from fewfold.recommender.training.train_options import TrainOptions
from fewfold.sampling.static import Popularity

__all__ = ["HeldOut", "NextItemRun", "default_objective"]

_FULL = 2_000  # items up to which the whole softmax is about as fast as a sampled one
_SAMPLES = 1024  # items, drawn for all positions of a batch together
_POWER = 0.75  # of the counts in the proposal
_HELD_OUT = 2048  # most sequences whose last item is held out
_ENOUGH = 100  # fewest by which the best epoch is chosen
_TIMED = 256  # of those, whose validation is timed
_DENSE = 0.1  # of the learning rate, for parameters other than the table


def default_objective(items: int) -> Objective:
    """Return the full softmax for few items, otherwise one sampled by popularity."""
    if items <= _FULL:
        return FullSoftmax()
    return SampledSoftmax(Popularity(_POWER), _SAMPLES, shared=True)


@dataclass(frozen=True, eq=False)
class HeldOut:
    """The last items of some sequences, held out from training.

    Attributes:
        rest: all sequences, without them.
        history: the items before each.
        targets: the items held out, one for each row of the history.
    """

    rest: Jagged
    history: Jagged
    targets: Jagged

    @classmethod
    def draw(cls, sequences: Jagged, seed: int) -> "HeldOut":
        """Hold out the last item of a twentieth of the sequences with at least three items."""
        long = (sequences.lengths > 2).nonzero().squeeze(1)
        order = torch.randperm(len(long), generator=torch.Generator().manual_seed(seed))
        chosen = long[order[: min(_HELD_OUT, len(long) // 20)]].sort().values
        last = sequences.offsets[chosen + 1] - 1
        kept = torch.ones(len(sequences.values), dtype=torch.bool)
        kept[last] = False
        lengths = sequences.lengths
        lengths[chosen] -= 1
        rest = Jagged(sequences.values[kept], F.pad(lengths.cumsum(0), (1, 0)))
        targets = Jagged(sequences.values[last], torch.arange(len(last) + 1))
        return cls(rest, rest.rows(chosen), targets)

    @property
    def repeated(self) -> bool:
        """Whether an item held out occurs in the history before it."""
        same = self.history.values == self.targets.values[self.history.row]
        return bool(same.any())


class NextItemRun(TrainingRun):
    """A training of a `NextItemNetwork`; its rows are windows of sequences.

    Args:
        network: that is trained.
        held_out: sequences to learn from, and those to validate on.
        objective: of the queries of all positions and their next items.
        options: of which `batch` is the number of positions of a step.
        progress: write a line per epoch to standard error.
    """

    model: NextItemNetwork

    def __init__(
        self, network: NextItemNetwork, held_out: HeldOut, objective: Objective,
        options: TrainOptions, progress: bool,
    ) -> None:  # fmt: skip
        self.held_out = held_out
        self.windows = Windows.every(held_out.rest, network.length)
        if not len(self.windows.lengths):
            raise ValueError(
                "there is nothing to learn from: no sequence has two items; pass longer ones"
            )
        generator = torch.Generator().manual_seed(options.seed)
        count = len(self.windows.batches(options.batch, torch.Generator()))
        super().__init__(
            network, _optimizers(network, options.lr), objective, options, count, progress,
            generator,
        )  # fmt: skip

    def epoch_batches(self, generator: torch.Generator) -> Sequence[Tensor]:
        """Draw the windows of each step of an epoch."""
        return self.windows.batches(self.options.batch, generator)

    def loss(self, rows: Tensor) -> tuple[Tensor, int]:
        """Return the mean loss of the next items in these windows, and their number."""
        ids, there = (transferred(each, self.model.device) for each in self.windows.padded(rows))
        known = there[:, 1:]
        targets = ids[:, 1:][known]
        generator = self.step_generator()
        queries = self.model(ids[:, :-1], generator)[known]
        sampled = isinstance(self.objective, SampledSoftmax)
        items: Any = self.model.items if sampled else F.normalize(self.model.table, dim=1)
        history = Jagged(targets, torch.arange(len(targets) + 1, device=targets.device))
        total = self.objective(queries, items, history, generator)
        return total / len(targets), len(targets)

    def passed(self) -> tuple[int, int]:
        """Return the numbers of windows and of next items in this epoch so far."""
        rows = torch.cat([*self.all_batches()[: self.position]])
        return len(rows), int((self.windows.lengths[rows] - 1).sum())

    def proposal_counts(self) -> Tensor:
        """Return one more than the number of times each item occurs, (items,)."""
        return torch.bincount(self.held_out.rest.values, minlength=self.model.count) + 1

    def item_vectors(self) -> Tensor:
        """Return the vectors of all items, of length one."""
        return self.model.vectors

    def validate(self) -> float | None:
        """Return NDCG@50 of the items held out; None if they are too few to choose by."""
        enough = len(self.held_out.targets.values) >= _ENOUGH
        return self._ndcg(slice(None)) if enough else None

    def validation_seconds(self) -> float:
        """Estimate the seconds of a validation, from a part of its rows."""
        rows = len(self.held_out.targets.values)
        if rows < _ENOUGH:
            return 0.0
        began = time.perf_counter()
        self._ndcg(slice(0, _TIMED))
        return (time.perf_counter() - began) * rows / min(rows, _TIMED)

    def _ndcg(self, rows: slice) -> float:
        """Return NDCG@50 of a part of the items held out."""
        self.model.eval()
        history = self.held_out.history.rows(rows)
        scorer = DotProduct(self.model.queries(history), self.model.vectors)
        top = top_k(scorer, 50, exclude=None if self.held_out.repeated else history).ids.cpu()
        self.model.train()
        targets = self.held_out.targets.rows(rows)
        return evaluate(top, targets, (NDCG(50),), resamples=1)[NDCG(50)].mean

    def data_settings(self) -> dict[str, Any]:
        """Return settings of the network and a digest of the sequences."""
        held, model = self.held_out, self.model
        return {
            "length": model.length, "dropout": model.dropout, "scale": model.scale,
            "heads": [block.heads for block in model.blocks], "alpha": model.alpha,
            "sequences": digest(*held.rest, *held.history, held.targets.values),
        }  # fmt: skip


def _optimizers(network: NextItemNetwork, lr: float) -> dict[str, torch.optim.Optimizer]:
    """Return the optimisers of the table and of all other parameters."""
    table = [{"params": [network.table], "share": 1.0}]
    others = [{"params": network.dense_parameters, "share": _DENSE}]
    return {
        "tables": optim.Adam(table, lr=lr, betas=(0.9, 0.999)),
        "others": torch.optim.AdamW(
            others, lr=lr, betas=(0.9, 0.98), weight_decay=0.01, fused=True
        ),
    }
