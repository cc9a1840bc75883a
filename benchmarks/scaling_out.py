"""Training by several processes on paper: bytes that a step sends, and users a second.

``python -m benchmarks.scaling_out``: seconds of the processor that one process of several takes for
a step, with others that are pretended, and the table of the page "Scaling out".
"""

import functools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

import fewfold as ff
from fewfold.distributed.group import Group, ProcessGroup
from fewfold.recommender.models.fastvae.sharded_anchored_tables import ShardedAnchoredTables
from fewfold.recommender.models.fastvae.sharded_tables import ShardedTables
from fewfold.recommender.models.fastvae.tables import Tables
from fewfold.recommender.training.schedule import build_optimizers

WORLDS = (1, 4, 16, 64)
EXCHANGE = 1e-4  # seconds before an exchange of nothing is answered, assumed
ITEMS, TIMED = 1_000_000, 15
STEPS = 10_000  # of the training whose first steps are timed


@dataclass(frozen=True)
class Step:
    """Sizes of a training step of FastVAE; see the classes of these arguments.

    Attributes:
        batch: users, of all processes together.
        length: items of a user.
        draws: sampled items, of each user or for all.
        shared: whether they are for all users.
        kept: share of the items that are input; the others are dropped.
        anchors: of tables of anchors, without that of the bias; 0 for dense tables.
    """

    batch: int = 256
    length: float = 40
    draws: int = 200
    shared: bool = False
    hidden: int = 200
    latent: int = 63
    layers: int = 1
    kept: float = 0.5
    anchors: int = 0

    @property
    def dense(self) -> int:
        """Numbers that all processes have: shifts, layers, norms, the posterior and anchors."""
        layers = self.layers * (self.hidden + 1) * self.hidden
        norms = 2 * (self.layers + 1) * self.hidden
        anchors = (self.anchors + 1) * (self.hidden + self.latent + 1) if self.anchors else 0
        return self.hidden + layers + norms + (self.hidden + 1) * 2 * self.latent + anchors

    def fetches(self, world: int) -> bool:
        """Whether input vectors are sent, and not their sums: with few items for each process."""
        return not self.anchors and self.length * self.kept <= world

    def tables(self, items: int, group: Group | None = None) -> Tables:
        """Return tables of these sizes that are shared by the processes."""
        sizes = self.hidden, self.latent
        if not self.anchors:
            return ShardedTables(items, *sizes, group)
        return ShardedAnchoredTables(items, self.anchors, *sizes, group)

    def bytes(self, world: int) -> float:
        """Return the bytes that all processes together send for each user of a step.

        Example:
            >>> round(Step().bytes(2)), round(Step().bytes(4)), round(Step(batch=4096).bytes(4))
            (5635, 14745, 8898)
        """
        if world == 1:
            return 0.0
        queries, n, length = self.latent + 1, self.draws, self.length
        # Queries and their gradients; of entries scores and gradients, and ids of those of a user.
        own = 2 * queries + 1 + 3 * (n + length) / world
        sums = 2 if self.anchors else 3  # of anchors, gradients of queries are summed once
        words = sums * queries + 2 * (n + length) / world if self.shared else own
        words += 2 * (self.dense + 2) / self.batch
        if not self.fetches(world):
            return 4 * (world - 1) * (words + 2 * self.hidden)  # sums and their gradients
        # If no item is that of two users of a process: an id, a vector and its gradient.
        vectors = (world - 1) / world * length * self.kept * (4 + 8 * self.hidden)
        return 4 * (world - 1) * words + vectors + 8 * world * (world - 1) / self.batch

    def exchanges(self, world: int) -> int:
        """Return the number of exchanges of a step, each of which waits for all processes."""
        inputs = 4 if self.fetches(world) else 1
        if self.anchors:  # gradients of the sums are not sent together with those of the layers
            inputs += 0 if self.shared else 1
        return inputs + (7 if self.shared else 5) + (1 if world == 2 else 2)

    def users_per_second(self, world: int, compute: float, gigabits: float) -> float:
        """Return the users of all processes in a second if nothing is sent while computing.

        Args:
            world: number of processes, each on a machine of its own.
            compute: seconds that each takes for a step, without exchanges.
            gigabits: a second that each machine can send.

        Example:
            >>> round(Step().users_per_second(4, 6e-3, 10))
            33885
        """
        if world == 1:
            return self.batch / compute
        sending = self.bytes(world) * self.batch / world / (gigabits * 1e9 / 8)
        return self.batch / (compute + sending + EXCHANGE * self.exchanges(world))


class PretendedGroup(ProcessGroup):
    """The first of several processes, whose others answer at once with what they were sent."""

    def exchange(
        self,
        rows: Tensor,
        send: list[int],
        receive: list[int],
        name: str,
        meanwhile: Callable[[], None] | None = None,
    ) -> Tensor:
        """Return what was sent to each process, in as many rows as it would send."""
        if meanwhile is not None:
            meanwhile()
        found = []
        for part, size in zip(rows.split(send), receive, strict=True):
            part = part if len(part) else rows
            found.append(torch.cat([part] * max(-(-size // max(len(part), 1)), 1))[:size])
        return torch.cat(found)


def training_step(sizes: Step, tables: Tables, *, fit: bool = False) -> Callable[[], object]:
    """Return a function that does one step on random users, the same ones in all processes.

    The proposal is fitted to the tables with `fit`, as in training, else to random vectors, of
    which several tables of one process share a copy.
    """
    model = ff.recommender.FastVAE(tables, layers=sizes.layers)
    optimizers = build_optimizers(
        model, ff.recommender.TrainOptions(lr=1e-3), STEPS, torch.ones(tables.count)
    )
    rows, dense = optimizers["tables"], optimizers["others"]
    others = [p for each in dense.param_groups for p in each["params"]]
    generator = torch.Generator().manual_seed(1)
    if fit:
        proposal = ff.MultiIndex(16, within="popularity")
        proposal.fit(tables.output_rows(), _counts(tables.count, generator))
    else:
        proposal = _proposal(tables.count, tables.latent + 1)
    objective = ff.recommender.SampledSoftmax(proposal, sizes.draws, shared=sizes.shared)
    length = int(sizes.length)
    offsets = torch.arange(sizes.batch + 1) * length

    def move_rows() -> None:
        rows.step()
        rows.zero_grad()

    def step() -> None:
        ids = torch.randint(tables.count, (sizes.batch * length,), generator=generator)
        history = ff.recommender.Jagged(ids, offsets)
        loss = model.loss(history, objective, beta=0.3, generator=generator)
        loss.backward()
        if tables.group.world > 1:  # with the loss, and whether to stop
            tables.sum_gradients(torch.stack([loss.detach()] * 2), others, move_rows)
        move_rows()
        dense.step()
        dense.zero_grad()

    return step


@functools.cache
def _proposal(items: int, width: int) -> ff.MultiIndex:
    """Return a proposal fitted to random vectors."""
    generator = torch.Generator().manual_seed(2)
    vectors = torch.randn(items, width, generator=generator) / width**0.5
    return ff.MultiIndex(16, within="popularity").fit(vectors, _counts(items, generator))


def _counts(items: int, generator: torch.Generator) -> Tensor:
    """Return counts by Zipf's law, as `train` has them."""
    return (1 / torch.rand(items, generator=generator).clamp(min=1e-7) + 1).log1p()


def measured(sizes: Step, world: int) -> float:
    """Return the seconds of the processor that the first of so many processes takes for a step."""
    group = PretendedGroup(0, world)
    step = training_step(sizes, sizes.tables(ITEMS, group))
    times = []
    for _ in range(TIMED + 3):
        began = time.process_time()
        step()
        times.append(time.process_time() - began)
    return statistics.median(times[3:])


def table(sizes: Step, compute: Mapping[int, float]) -> Iterator[str]:
    """Yield the lines of a table of users a second, given seconds of a step by processes."""
    yield "| processes | a step computes | sent by each | 10 Gb/s | 100 Gb/s |"
    yield "|--:|--:|--:|--:|--:|"
    for world, seconds in compute.items():
        sent = sizes.bytes(world) * sizes.batch / world / 1e6
        ten, hundred = (sizes.users_per_second(world, seconds, speed) for speed in (10, 100))
        yield (
            f"| {world} | {1e3 * seconds:.1f} ms | {sent:.1f} MB | {ten:,.0f} | {hundred:,.0f} |"
        )


def main() -> None:
    """Measure one process of several, and print the tables."""
    torch.set_num_threads(1)
    for sizes in (Step(), replace(Step(), batch=4096)):
        print(f"batch {sizes.batch}")
        for line in table(sizes, {world: measured(sizes, world) for world in WORLDS}):
            print(line, flush=True)


if __name__ == "__main__":
    main()
