"""What the processes of the tests compute; every result must be the same in any world."""

import os
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from safetensors.torch import load_file
from torch import Tensor

import fewfold as ff
from fewfold._native import dispatch
from fewfold.distributed import group as groups
from fewfold.distributed.group import Group, PeerError
from fewfold.distributed.row_exchange import look_up
from fewfold.recommender.evaluation.metrics import NDCG, evaluate
from fewfold.recommender.evaluation.splits import random_split
from fewfold.recommender.interactions import Interactions
from fewfold.recommender.models.fastvae.fitted import FittedVAE
from fewfold.recommender.models.fastvae.recipe import VAE
from fewfold.recommender.models.fastvae.sharded_tables import ShardedTables
from fewfold.recommender.models.fastvae.shortcut import Directions
from fewfold.recommender.models.fastvae.tables import Tables
from tests.distributed.processes import job

ITEMS, HIDDEN, LATENT = 103, 12, 7


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def log(users: int = 61, items: int = ITEMS) -> Interactions:
    """Users with 0 to 14 items, of which the first are popular."""
    generator = _generator(5)
    lengths = torch.randint(15, (users,), generator=generator)
    lengths[0] = 9
    row = torch.arange(users).repeat_interleave(lengths)
    ids = (torch.rand(len(row), generator=generator) ** 2 * items).long()
    return Interactions.from_pairs(row, ids, shape=(users, items))


def whole(group: Group, rows: Tensor, count: int) -> Tensor:
    """Return all rows of a sharded table."""
    return group.merge(rows.detach(), count, "test")


@job
def operations() -> dict[str, Any]:
    """Operations of a group, each with a result that does not depend on the world."""
    group = Group.current()
    table = torch.arange(22.0).view(11, 2)
    own = table[group.rank :: group.world]
    counts = group.shares(11)
    block = table[group.share(11)]
    every, total = group.gather_and_sum(
        block, counts, torch.full((7,), 6.0 / group.world), "together"
    )
    return {
        "gather": group.gather(block, counts, "rows"),
        "sums": group.gather(group.scatter_sums(table / group.world, counts, "sums"), counts, ""),
        "rows together": every,
        "sums together": total,
        "merge": group.merge(own, 11, "rows"),
        "added up": group.add_up((table / group.world).T, "sums"),
        "started": [wait() for wait in [group.start_gather(block + n, counts, "") for n in (0, 5)]],
        "agree": group.agree(1.0 + group.rank, 5.0),
        "empty": group.gather(block[:0], [0] * group.world, "rows"),
    }


@job
def failed_on_the_last() -> tuple[int, str]:
    """Result of a call on every rank, and what each says about one that fails on the last rank."""
    group = Group.current()

    try:
        with group.together():
            if group.rank == group.world - 1:
                raise ValueError("the reason")
    except (PeerError, ValueError) as error:
        with group.together():
            return 7, str(error)
    return 0, ""


@job
def collected() -> list[Tensor | None]:
    """A sharded table on rank 0, nothing on the others: as one block, in blocks of a few rows."""
    group, found = Group.current(), []
    table = torch.arange(26.0).view(13, 2)
    for most in (1 << 22, 4, 1):
        with mock.patch.object(groups, "_BLOCK", most):
            found.append(group.collect(table[group.rank :: group.world].clone(), 13))
    return found


@job
def traffic() -> dict[str, tuple[int, int]]:
    """Bytes sent and calls of some operations."""
    group = Group.current()
    rows = torch.zeros(2, 3)
    group.gather(rows, [2] * group.world, "gathered")
    group.scatter_sums(torch.zeros(2 * group.world, 3), [2] * group.world, "summed")
    counted = group.traffic
    return {name: (counted.bytes[name], counted.calls[name]) for name in ("gathered", "summed")}


@job
def looked_up() -> dict[str, Tensor]:
    """Rows that every process looks up with ids of its own, and the gradient of the table."""
    group = Group.current()
    table = torch.randn(ITEMS, 5, generator=_generator(1))
    part = table[group.rank :: group.world].clone().requires_grad_()
    ids = torch.randint(ITEMS, (64,), generator=_generator(2))  # with repeats
    weights = torch.randn(64, 5, generator=_generator(3))
    mine = group.share(64)
    rows = look_up(group, part, ids[mine])
    (rows * weights[mine]).sum().backward()
    assert part.grad is not None
    return {
        "rows": group.gather(rows.detach(), group.shares(64), "test"),
        "gradient": whole(group, part.grad.to_dense(), ITEMS),
        "nothing": look_up(group, part, ids[:0]).detach(),
    }


@job
def initial_weights() -> dict[str, Tensor]:
    """Initial tables of sizes around the blocks in which they are drawn."""
    found = {}
    for items, hidden, latent in (
        (7, 3, 1),
        (4095, 2, 2),
        (8192, 3, 2),
        (8193, 1, 3),
        (12303, 5, 1),
    ):
        tables = ShardedTables(items, hidden, latent)
        model = ff.recommender.FastVAE(tables, seed=4)
        found[f"inputs {items}"] = tables.input_vectors()
        found[f"items {items}"] = tables.output_vectors()
        found[f"posterior {items}"] = model.posterior.weight.detach()
    return found


@job
def proposals() -> dict[str, Tensor]:
    """States of proposals that are fitted to sharded vectors."""
    tables = ShardedTables(5003, 4, 7)
    ff.recommender.FastVAE(tables, seed=2)
    counts, found = torch.arange(5003.0) % 7 + 1, {}
    for name, proposal in (
        ("product", ff.MultiIndex(4, within="popularity")),
        ("residual", ff.MultiIndex(4, residual=True)),
        ("small", ff.MultiIndex(64)),  # k-means takes all vectors
        ("popularity", ff.Popularity()),
        ("uniform", ff.Uniform()),
    ):
        state = proposal.fit(tables.output_rows(), counts).state_dict()
        state |= {f"refreshed {key}": value for key, value in
                  proposal.refresh(tables.output_rows()).state_dict().items()}  # fmt: skip
        found |= {f"{name} {key}": value for key, value in state.items()}
    return found


def step(tables: Tables, objective: Any, history: Any) -> dict[str, Tensor | float]:
    """Return the loss and gradients of a batch."""
    group, model = tables.group, ff.recommender.FastVAE(tables, seed=3)
    objective.proposal.fit(tables.output_rows(), torch.ones(ITEMS))
    loss = model.loss(history, objective, beta=0.3, generator=_generator(8))
    loss.backward()
    dense = [p for p in model.parameters() if all(p is not row for row in tables.row_parameters)]
    found: dict[str, Tensor | float] = {
        "loss": tables.sum_gradients(loss.detach().view(1), dense, lambda: None).item()
    }
    for name, param in model.named_parameters():
        assert param.grad is not None
        grad = param.grad
        found[name] = whole(group, grad.to_dense(), ITEMS) if grad.is_sparse else grad.clone()
    return found


def _step(objective: Any, history: Any) -> dict[str, Tensor | float]:
    return step(ShardedTables(ITEMS, HIDDEN, LATENT), objective, history)


@job
def steps() -> dict[str, Any]:
    """Losses and gradients of batches: of usual length, of few items, of fewer users than ranks."""
    softmax, index = ff.recommender.SampledSoftmax, ff.MultiIndex(4)
    usual = log().rows(slice(0, 40))
    short = log().rows(slice(0, 40)).select(torch.arange(len(usual.values)) % 9 == 0)
    found = {
        "own samples": _step(softmax(index, 20), usual),
        "shared": _step(softmax(index, 30, shared=True), usual),
        "few items": _step(softmax(index, 20), short),
        "one user": _step(softmax(index, 20), log().rows(slice(0, 1))),
        "one user, shared": _step(softmax(index, 20, shared=True), log().rows(slice(0, 1))),
        "uniform": _step(softmax(ff.Uniform(), 20), usual),
        "weights": _step(
            softmax(index, 20, weights=torch.arange(len(usual.values)) / 100.0), usual
        ),
    }
    with dispatch.disabled():
        found["plain torch"] = _step(softmax(index, 20), usual)
        found["plain torch, uniform"] = _step(softmax(ff.Uniform(), 20), usual)
    return found


def _trained(**options: Any) -> dict[str, Any]:
    tables = ShardedTables(ITEMS, HIDDEN, LATENT)
    model = ff.recommender.FastVAE(tables, seed=1)
    given = {"epochs": 3, "batch": 20, "progress": False, "lr": 2e-2, **options}
    epochs = ff.recommender.train(model, log(), **given)
    return {
        "losses": [epoch.loss for epoch in epochs],
        "ndcg": [epoch.ndcg for epoch in epochs],
        "inputs": tables.input_vectors(),
        "items": tables.output_vectors(),
        "posterior": model.posterior.weight.detach().clone(),
    }


@job
def trained() -> dict[str, Any]:
    """A training; its last batch has one user."""
    return _trained()


@job
def trained_again() -> dict[str, Any]:
    """The same training."""
    return _trained()


@job
def trained_shared() -> dict[str, Any]:
    """A training with samples that the users of a batch share."""
    objective = ff.recommender.SampledSoftmax(ff.MultiIndex(4), 40, shared=True)
    return _trained(objective=objective)


@job
def refused() -> dict[str, str]:
    """Messages of what several processes cannot do."""
    found = {}
    if Group.current().world == 1:
        return found
    tables = ShardedTables(ITEMS, HIDDEN, LATENT)
    model = ff.recommender.FastVAE(tables)
    history = log().rows(slice(0, 9))
    for name, call in {
        "full softmax": lambda: model.loss(
            history, ff.recommender.FullSoftmax(), generator=_generator()
        ),
        "no generator": lambda: model.loss(history, ff.recommender.FullSoftmax()),
        "exact": lambda: ff.MultiIndex(4, within="exact").fit(tables.output_rows()),
        "dynamic": lambda: ff.sampling.Dynamic().fit(tables.output_rows()),
        "new items": lambda: tables.with_new_items(history.values, history.values),
        "too few items": lambda: ShardedTables(1),
    }.items():
        try:
            call()
        except (TypeError, ValueError) as error:
            found[name] = str(error)
    return found


@job
def ranked() -> dict[str, Tensor]:
    """Rankings of a model that is the same in any world, with scores that are equal."""
    tables = ShardedTables(ITEMS, HIDDEN, LATENT)
    model = ff.recommender.FastVAE(tables, seed=1)
    with torch.no_grad():
        tables.items.mul_(8).round_().div_(8)
        model.posterior.weight.mul_(16).round_()
    known = log().rows(slice(None))
    allowed = torch.arange(ITEMS) % 4 > 0
    found = {"plain": model.recommend(known, 20)}
    fitted = FittedVAE(VAE(HIDDEN, LATENT), model)
    found["more than there are"] = fitted.rank(known, ITEMS + 3, exclude=known).ids
    found["allowed"] = fitted.rank(known, 9, exclude=known, allowed=allowed).ids
    found["nobody"] = fitted.rank(known.rows(slice(0, 0)), 9).ids
    whole, group = Directions.find(log(), 6, seed=1).shortcut(1.0, 30.0), tables.group
    model.shortcut = replace(whole, table=whole.table[group.rank :: group.world], group=group)
    found["shortcut"] = FittedVAE(VAE(HIDDEN, LATENT), model).rank(known, 20, exclude=known).ids
    report = evaluate(found["shortcut"], log().rows(slice(None)), resamples=50)
    return found | {"ndcg": report[NDCG(50)].per_user}


@job
def directions() -> dict[str, Any]:
    """Shortcuts whose table is shared by the processes, and that of one process alone."""
    group, found = Group.current(), {}
    weights = torch.rand(log().pairs, generator=_generator(3)) + 0.5
    for name, pairs in {
        "plain": log(),
        "weights": log().with_values(weights=weights),
        "fewer users than directions": log(5),
        "fewer items than directions": log(30, 4),
    }.items():

        def blocks(pairs: Interactions = pairs) -> Iterator[Interactions]:
            return (pairs.select(users) for users in torch.arange(pairs.users).split(10))

        parts = Directions.of_blocks(blocks, pairs.counts(), pairs.users, 6, seed=1, group=group)
        alone, known = Directions.find(pairs, 6, seed=1), pairs.rows(slice(None))
        scores = [
            each.shortcut(1.0, 2.0).queries(known) @ each.shortcut(1.0, 2.0).vectors.T
            for each in (parts, alone, parts.of_items(torch.arange(pairs.items)))
        ]
        assert len(parts.vectors) == group.owned(pairs.items)
        found[name] = scores
    return found


@job
def stopped() -> dict[str, Any]:
    """Trainings that validation or a time budget ends; all processes must end them alike."""
    split = random_split(log(), test=0.3)
    early = _trained(validation=split, patience=1, epochs=6)
    timed = _trained(time_budget=0.5, epochs=2000, validation=split)
    return {"early": early["losses"], "ndcg": early["ndcg"], "timed": timed["losses"]}


@job
def fitted() -> dict[str, Any]:
    """A fit of the whole recommender: metrics, and the folder that one process reads."""
    pairs = log(400, 60)
    frame = {"user": [f"u{u}" for u in pairs.row.tolist()], "item": pairs.ids.tolist()}
    training = ff.recommender.Training(epochs=3, batch=64)
    rec = ff.Recommender(VAE(HIDDEN, LATENT, shortcut=8), training=training, seed=1)
    rec.fit(frame, test=0.2, refit=True, progress=False)
    assert rec.report is not None
    folder = Path(tempfile.mkdtemp()) if Group.current().leads else Path("nowhere")
    rec.save(folder / "model")
    answers = rec.recommend(["u1", "u2"], 5)
    found = {
        "evaluation": rec.report.as_dict()["evaluation"]["overall"],
        "losses": [epoch.loss for epoch in rec.report.epochs],
        "shares": {
            name: tuple(value.shape)
            for name, value in rec.fitted.state().items()
            if name.startswith("vae.i")
        },
        "recommended": answers.items,
    }
    if Group.current().leads:
        loaded = load_file(folder / "model" / "model.safetensors")
        found["tensors"] = dict(sorted(loaded.items()))
    return found


@job
def automatic() -> dict[str, Any]:
    """A fit without a named model, and messages of fits that one process does."""
    found: dict[str, Any] = {}
    if Group.current().world == 1:
        return found
    pairs = log(80, 20)
    frame = {"user": pairs.row.tolist(), "item": pairs.ids.tolist()}
    training = ff.recommender.Training(epochs=1)
    rec = ff.Recommender(training=training).fit(frame, progress=False)
    found["model"] = type(rec.model).__name__, rec.fitted.recipe.name
    for name, model, options in (
        ("ease", ff.recommender.EASE(), {}),
        ("anchors", VAE(HIDDEN, LATENT, anchors=4), {}),
        ("half-life", VAE(HIDDEN, LATENT), {"half_life": "auto"}),
    ):
        try:
            ff.Recommender(model).fit(frame, progress=False, **options)
        except ValueError as error:
            found[name] = str(error)
    return found


@job
def interrupted() -> str:
    """A training of which the last process gets a signal in its fourth step."""
    group, steps, loss = Group.current(), iter(range(1, 100)), ff.recommender.FastVAE.loss

    def counted(*arguments: Any, **options: Any) -> Any:
        if next(steps) == 4 and group.rank == group.world - 1:
            signal.raise_signal(signal.SIGTERM)
        return loss(*arguments, **options)

    ff.recommender.FastVAE.loss = counted  # type: ignore[method-assign]
    try:
        _trained()
    except KeyboardInterrupt as error:
        return str(error)
    finally:
        ff.recommender.FastVAE.loss = loss  # type: ignore[method-assign]
    return "not interrupted"


@job
def step_bytes() -> tuple[int, int]:
    """Bytes that all processes send in six training steps, and the number of dense parameters."""
    row = torch.arange(96).repeat_interleave(12)
    pairs = Interactions.from_pairs(row, torch.arange(len(row)) % 500, shape=(96, 500))
    tables = ShardedTables(500, 32, 15)
    model = ff.recommender.FastVAE(tables, seed=1)
    objective = ff.recommender.SampledSoftmax(ff.MultiIndex(4), 40)
    ff.recommender.train(model, pairs, objective=objective, epochs=2, batch=32, progress=False)
    sent = tables.group.traffic.bytes
    mine = sum(n for name, n in sent.items() if not name.startswith(("proposal", "decisions")))
    total = tables.group.gather(torch.tensor([mine]), [1] * tables.group.world, "test").sum()
    dense = sum(p.numel() for p in model.parameters()) - tables.inputs.numel()
    return int(total), dense - tables.items.numel()


@job
def receiving_threads() -> int:
    """Number of receiving threads of gloo that take over from one that sends; 0 is right."""
    Group.current()
    found = 0
    for task in Path("/proc/self/task").glob("*"):
        if (task / "comm").read_text().strip() == "gloo_tcp_loop":
            found += os.sched_getscheduler(int(task.name)) != os.SCHED_BATCH
    return found
