"""Training step of FastVAE compared with the full softmax for growing catalogues, and its sampler.

Both have an encoder without further layers. Ours moves its tables as `train` does, by a step
size per row without momentum, which is part of the gain; the full softmax has torch's fused Adam.

``python -m benchmarks.fastvae ITEMS``: peak memory of a few steps, in bytes; with ``anchors``
behind it, that of a training with tables of anchors.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial

import torch

import fewfold as ff
from benchmarks.harness import Case, Pair, Peak
from fewfold._resources import peak_memory
from fewfold._timing import race

USERS, LENGTH, HIDDEN, WIDTH = 256, 40, 200, 32
DRAWS, SHARED = 200, 1000
MODES = {f"{DRAWS} draws per user": False, f"{SHARED} draws shared": True}
ANCHORS = ff.recommender.Anchors(count=255, width=8)
Step = Callable[[], object]


def cases() -> list[Case]:
    """Yield all rows of the suite, in the order of the claims."""
    return [*_sampler(), *_against_full(), *_flat(), _memory(), *_anchored()]


def _sampler() -> Iterator[Case]:
    for within, bar in (("uniform", 1.0), ("popularity", 3.0)):
        yield Case(
            what=f"MultiIndex(16, {within}), {USERS} x {DRAWS}",
            size="1000000 items",
            peer="0.05 us a draw",
            bar=bar,
            build=partial(_draws, within),
        )


def _against_full() -> Iterator[Case]:
    for mode, items, times in (
        (f"{DRAWS} draws per user", 200_000, 35),
        (f"{DRAWS} draws per user", 1_000_000, 250),
        (f"{SHARED} draws shared", 1_000_000, 500),
    ):
        yield Case(
            what=f"step, {mode}",
            size=f"{items} items",
            peer="full softmax, fused Adam",
            bar=1 / times,
            build=partial(_sampled_and_full, items, MODES[mode]),
            threads=2,
        )


def _flat() -> Iterator[Case]:
    for mode, bar in zip(MODES, (2.0, 1.3), strict=True):
        yield Case(
            what=f"step, {mode}",
            size="3000000 items",
            peer="10000 items",
            bar=bar,
            build=partial(_two_sizes, MODES[mode]),
            threads=2,
        )


def _memory() -> Case:
    return Case(
        what="steps, peak memory",
        size="1000000 items",
        peer="3 GiB",
        bar=1.0,
        build=lambda: Peak(_peak(1_000_000), 3 * 2**30),
        threads=2,
    )


def _anchored() -> Iterator[Case]:
    for mode, shared in MODES.items():
        yield Case(
            what=f"step with anchors, {mode}",
            size="1000000 items",
            peer="dense tables",
            bar=1.5,
            build=partial(_anchored_and_dense, shared),
            threads=2,
        )
    yield Case(
        what="training with anchors, peak memory",
        size="3000000 items",
        peer="2 GB",
        bar=1.0,
        build=lambda: Peak(_peak(3_000_000, "anchors"), 2e9),
        threads=2,
    )


def _anchored_and_dense(shared: bool) -> Pair:
    ours, peer = anchored_step(1_000_000, shared), sampled_step(1_000_000, shared)
    return Pair(ours, peer, before_ours=_often(ours), before_peer=_often(peer))


def _draws(within: str) -> Peak:
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(1_000_000, WIDTH, generator=generator) / WIDTH**0.5
    counts = torch.rand(1_000_000, generator=generator).reciprocal()
    proposal = ff.MultiIndex(16, within=within).fit(vectors, counts)  # type: ignore[arg-type]
    queries = torch.randn(USERS, WIDTH, generator=generator)
    taken = race({"draw": lambda: proposal.sample(queries, DRAWS, generator=generator)})["draw"]
    return Peak(taken.median, USERS * DRAWS * 0.05e-6, unit="seconds")


def _sampled_and_full(items: int, shared: bool) -> Pair:
    ours = sampled_step(items, shared)
    # Training is one step after the other: not each after seconds of something else.
    return Pair(ours, full_step(items), before_ours=_often(ours))


def _two_sizes(shared: bool) -> Pair:
    large, small = sampled_step(3_000_000, shared), sampled_step(10_000, shared)
    return Pair(large, small, before_ours=_often(large), before_peer=_often(small))


def _often(step: Step) -> Step:
    return lambda: [step() for _ in range(8)]


def sampled_step(items: int, shared: bool, proposal: ff.sampling.Proposal | None = None) -> Step:
    """Build a training step of fewfold; each call uses the next batch.

    The proposal is by default the multi-index with uniform draws inside cells.
    """
    model = ff.recommender.FastVAE(items, hidden=HIDDEN, latent=WIDTH - 1, layers=0)
    counts = torch.arange(1, items + 1).reciprocal()
    proposal = (proposal or ff.MultiIndex(16)).fit(model.outputs(), counts)
    objective = ff.recommender.SampledSoftmax(proposal, SHARED if shared else DRAWS, shared=shared)
    tables = ff.optim.Adam(
        model.tables.row_parameters, betas=(0.0, 0.99), by_row=True
    )  # as ff.recommender.train does
    dense = torch.optim.Adam(_others(model), fused=True)
    return _step(model, objective, [tables, dense])


def anchored_step(items: int, shared: bool) -> Step:
    """Build the same step with anchor tables."""
    model = ff.recommender.AnchorVAE(items, ANCHORS, hidden=HIDDEN, latent=WIDTH - 1, layers=0)
    proposal = ff.MultiIndex(16).fit(model.outputs())
    objective = ff.recommender.SampledSoftmax(proposal, SHARED if shared else DRAWS, shared=shared)
    rows = ff.optim.Adam(model.tables.row_parameters, betas=(0.0, 0.99), by_row=True)
    tables = model.tables.row_optimizer(rows, 10**6, torch.ones(items))
    return _step(model, objective, [tables, torch.optim.Adam(_others(model), fused=True)])


def full_step(items: int) -> Step:
    """Build the step with all scores, dense gradients and torch's fused Adam."""
    model = ff.recommender.FastVAE(items, hidden=HIDDEN, latent=WIDTH - 1, layers=0)
    model.tables.sparse = False
    return _step(
        model, ff.recommender.FullSoftmax(), [torch.optim.Adam(model.parameters(), fused=True)]
    )


def _step(
    model: ff.recommender.FastVAE,
    objective: ff.recommender.Objective,
    optimizers: list[torch.optim.Optimizer],
) -> Step:
    generator = torch.Generator().manual_seed(1)
    batches = [_batch(model.count, generator) for _ in range(8)]

    def step() -> None:
        batches.append(batches.pop(0))
        model.loss(batches[0], objective, generator=generator).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return step


def _others(model: ff.recommender.FastVAE) -> list[torch.nn.Parameter]:
    rows = model.tables.row_parameters
    return [p for p in model.parameters() if all(p is not table for table in rows)]


def _batch(items: int, generator: torch.Generator) -> ff.recommender.Jagged:
    lengths = torch.randint(LENGTH // 2, 3 * LENGTH // 2 + 1, (USERS,), generator=generator)
    users = torch.repeat_interleave(torch.arange(USERS), lengths)
    ids = torch.randint(items, users.shape, generator=generator)
    return ff.recommender.Interactions.from_pairs(users, ids, shape=(USERS, items)).jagged


def _trained(items: int) -> None:
    """Train one epoch with anchors on users with random histories."""
    generator = torch.Generator().manual_seed(0)
    users = torch.repeat_interleave(torch.arange(20_000), LENGTH)
    ids = torch.randint(items, users.shape, generator=generator)
    log = ff.recommender.Interactions.from_pairs(users, ids, shape=(20_000, items))
    model = ff.recommender.AnchorVAE(items, ANCHORS)
    ff.recommender.train(model, log, epochs=1, progress=False)


def _peak(items: int, *how: str) -> float:
    command = [sys.executable, "-m", "benchmarks.fastvae", str(items), *how]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


if __name__ == "__main__" and sys.argv[2:] == ["anchors"]:
    _trained(int(sys.argv[1]))
    print(peak_memory())
elif __name__ == "__main__":
    step = sampled_step(int(sys.argv[1]), shared=False)
    for _ in range(20):
        step()
    print(peak_memory())
