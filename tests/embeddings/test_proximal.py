"""The proximal step: step sizes of the optimiser, exactness, deferred penalties."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fewfold as ff
from experiments import datasets

ROWS, DIM, ANCHORS = 12, 4, 6


def make(width: int | None = None, seed: int = 0, **options: Any) -> ff.AnchorEmbedding:
    generator = torch.Generator().manual_seed(seed)
    return ff.AnchorEmbedding(
        ROWS, DIM, anchors=ANCHORS, width=width, generator=generator, dtype=torch.float64, **options
    )


GOLD = datasets.DATA.parent / "facts" / "gold.json"


@pytest.mark.skipif(not GOLD.exists(), reason="the gold values are not on this machine")
def test_two_steps_of_yogi_as_published(path: str) -> None:
    gold = json.loads(GOLD.read_text())["ant"]["yogi_prox"]
    table = ff.AnchorEmbedding(1, 2, anchors=3, dtype=torch.float64)
    table.transform.data.copy_(torch.tensor([gold["p0"]], dtype=torch.float64))
    inner = ff.optim.Yogi(
        table.parameters(), lr=gold["lr"], betas=tuple(gold["betas"]), eps=gold["eps"],
        initial_accumulator_value=gold["v0"],
    )  # fmt: skip
    optimizer = ff.proximal(inner, table, l1=gold["l1"])
    for step in gold["steps"]:
        table.transform.grad = torch.tensor([step["grad"]], dtype=torch.float64)
        optimizer.step()
        expected = torch.tensor([step["post_prox"]], dtype=torch.float64)
        torch.testing.assert_close(table.transform.detach(), expected, rtol=1e-9, atol=1e-12)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.1),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.1),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True),
    "own SGD": lambda p: ff.optim.SGD(p, lr=0.1),
    "own Adagrad": lambda p: ff.optim.Adagrad(p, lr=0.1),
    "own Adam": lambda p: ff.optim.Adam(p, lr=0.1),
    "own Adam by row": lambda p: ff.optim.Adam(p, lr=0.1, by_row=True),
    "own Yogi": lambda p: ff.optim.Yogi(p, lr=0.1),
}
OWN = [name for name in OPTIMIZERS if name.startswith("own")]


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("signed", [False, True])
def test_is_the_optimiser_followed_by_shrinking(name: str, signed: bool, path: str) -> None:
    table, plain = make(signed=signed), make(signed=signed)
    optimizer = ff.proximal(OPTIMIZERS[name](table.parameters()), table, l1=0.3)
    inner = OPTIMIZERS[name](plain.parameters())
    generator = torch.Generator().manual_seed(1)
    for _ in range(4):
        grad = torch.randn(ROWS, ANCHORS, dtype=torch.float64, generator=generator)
        for one in (table, plain):
            one.transform.grad, one.anchors.grad = grad.clone(), torch.ones_like(one.anchors)
        optimizer.step()
        inner.step()
        by = 0.3 * _rate(name, inner, plain.transform)
        with torch.no_grad():
            moved = plain.transform
            less = moved.sign() * (moved.abs() - by).clamp(min=0)
            moved.copy_(less if signed else (moved - by).clamp(min=0))
        torch.testing.assert_close(table.transform, plain.transform)
        torch.testing.assert_close(table.anchors, plain.anchors)
    assert (table.transform == 0).any()


def _rate(name: str, optimizer: Any, param: Tensor) -> Any:
    """lr over the root of the second moment, written down again."""
    state, group = optimizer.state.get(param, {}), optimizer.param_groups[0]
    lr = group["lr"]
    if "SGD" in name or name == "momentum":
        return lr
    if "Adagrad" in name:
        return lr / (state["memory"].sqrt() + group["eps"])
    beta1, beta2 = group["betas"]
    if name.startswith("own"):
        age = state["step"].double().unsqueeze(1)
        square = state["square"].unsqueeze(1) if "row" in name else state["memory"][:, 1]
    else:
        age = float(state["step"])
        square = state["max_exp_avg_sq" if name == "amsgrad" else "exp_avg_sq"]
    if name == "own Yogi":
        return lr * (1 - beta2**age) ** 0.5 / (1 - beta1**age) / (square.sqrt() + group["eps"])
    return lr / (1 - beta1**age) / ((square / (1 - beta2**age)).sqrt() + group["eps"])


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("width", [None, 3])
@pytest.mark.parametrize("related", [False, True])
def test_lazy_equals_eager(
    name: str, signed: bool, width: int | None, related: bool, path: str
) -> None:
    """Rows not in use owe what an eager step would have taken, also as lr and l1 change."""
    table, eager = (make(width, sparse=True, signed=signed) for _ in range(2))
    relations = None
    if related:
        edges = torch.tensor([[1, 0], [3, 2], [3, 3], [7, 5]])
        relations = ff.embeddings.Relations.from_edges(
            edges, objects=ROWS, anchors=torch.arange(ANCHORS)
        )
    exempt = None if relations is None else relations.exempt(eager.slots)
    schedule = ff.embeddings.Warmup(0.7, after=1, over=4)
    optimizer = ff.proximal(
        OPTIMIZERS[name](table.parameters()), table, l1=schedule, relations=relations
    )
    inner = OPTIMIZERS[name](eager.parameters())
    generator = torch.Generator().manual_seed(2)
    for step in range(12):
        ids = torch.randint(0, ROWS, (3,), generator=generator)
        by = torch.randn(3, DIM, dtype=torch.float64, generator=generator)
        for one, opt in ((table, optimizer), (eager, inner)):
            opt.param_groups[0]["lr"] = 0.1 / (1 + step)
            opt.zero_grad()
            (one(ids) * by).sum().backward()
            opt.step()
        with torch.no_grad():
            less = schedule(step) * inner.rates(eager.transform)  # type: ignore[attr-defined]
            less = less.expand_as(eager.transform)
            if exempt is not None:
                less = torch.where(exempt, 0, less)
            moved = eager.transform
            # A row is clipped at zero when it moves, not before.
            clipped = (moved - less).clamp(min=0)
            untouched = torch.ones(ROWS, 1, dtype=torch.bool)
            untouched[ids] = False
            clipped = torch.where(untouched & (less == 0), moved, clipped)
            moved.copy_(moved.sign() * (moved.abs() - less).clamp(min=0) if signed else clipped)
        if step == 6:
            torch.testing.assert_close(table(torch.arange(3)), eager(torch.arange(3)))
    assert not torch.equal(table.transform, eager.transform)  # something is still owed
    torch.testing.assert_close(table.weight, eager.weight)
    torch.testing.assert_close(table.transform, eager.transform)
    assert table.nonzeros() < eager.transform.numel()


def test_everything_that_reads_settles_first() -> None:
    reads: dict[str, Callable[[ff.AnchorEmbedding], Any]] = {
        "state_dict": lambda t: t.state_dict()["transform"].clone(),
        "rows": lambda t: t.rows().values,
        "nonzeros": lambda t: torch.tensor(t.nonzeros()),
        "logits": lambda t: t.logits(torch.ones(1, DIM, dtype=torch.float64)),
        "bag": lambda t: t.bag(torch.arange(ROWS), torch.tensor([0])),
        "weight": lambda t: t.weight,
    }
    found: dict[str, list[Tensor]] = {name: [] for name in reads}
    for eager in (False, True):
        for name, read in reads.items():
            table = make(3, sparse=True)
            optimizer = ff.proximal(ff.optim.SGD(table.parameters(), lr=0.1), table, l1=0.5)
            for ids in ([0, 1, 2], [2, 3], [2, 3]):
                optimizer.zero_grad()
                table(torch.tensor(ids)).sum().backward()
                optimizer.step()
                if eager:
                    _ = table.weight
            found[name].append(read(table).detach())
    for name, (late, early) in found.items():
        torch.testing.assert_close(late, early, msg=name)


def test_resumes_exactly() -> None:
    def train(table: ff.AnchorEmbedding, optimizer: Any, steps: range) -> None:
        for step in steps:
            generator = torch.Generator().manual_seed(step)
            optimizer.zero_grad()
            table(torch.randint(0, ROWS, (4,), generator=generator)).square().sum().backward()
            optimizer.step()

    def both() -> tuple[ff.AnchorEmbedding, Any]:
        table = make(sparse=True)
        inner = ff.optim.Adam(table.parameters(), lr=0.01)
        keep = ff.embeddings.Narrowing(first=6, last=2, over=4, every=1)
        return table, ff.proximal(inner, table, l1=ff.embeddings.Warmup(0.1, over=5), keep=keep)

    whole, optimizer = both()
    train(whole, optimizer, range(12))
    first, optimizer = both()
    train(first, optimizer, range(7))
    table_state, state = first.state_dict(), optimizer.state_dict()
    second, optimizer = both()
    second.load_state_dict(table_state)
    optimizer.load_state_dict(state)
    train(second, optimizer, range(7, 12))
    torch.testing.assert_close(second.weight, whole.weight, rtol=1e-12, atol=1e-12)


def test_at_most_so_many_in_a_row() -> None:
    for sparse in (False, True):
        table = make(sparse=sparse)
        optimizer = ff.proximal(ff.optim.Adam(table.parameters(), lr=0.1), table, l1=0.0, keep=2)
        for _ in range(3):
            optimizer.zero_grad()
            table(torch.arange(6)).sin().sum().backward()
            optimizer.step()
        counts = (table.transform != 0).sum(1)
        assert counts[:6].max() <= 2
        assert counts[6:].max() > 2 or not sparse


def test_winners_keep_their_places() -> None:
    table = make()
    narrowing = ff.embeddings.Narrowing(first=6, last=2, over=6, every=1)
    optimizer = ff.proximal(torch.optim.Adam(table.parameters()), table, l1=0.0, keep=narrowing)
    seen = []
    for _ in range(12):
        optimizer.zero_grad()
        (table(torch.arange(ROWS)) - 1).square().sum().backward()
        optimizer.step()
        seen.append(table.transform != 0)
    for step, on in enumerate(seen):
        assert on.sum(1).max() <= narrowing(step)
    assert seen[0].sum() > seen[6].sum()
    for after in seen[7:]:  # from then on none comes back
        assert not (after & ~seen[6]).any()


def test_winners_of_the_whole_table() -> None:
    table = make()
    sizes = torch.rand(ROWS, ANCHORS, generator=torch.Generator().manual_seed(0)).double()
    table.transform.data.copy_(sizes * torch.linspace(1, 3, ROWS).unsqueeze(1))
    narrowing = ff.embeddings.Narrowing(first=2, last=2, over=1, together=True)
    optimizer = ff.proximal(
        torch.optim.SGD(table.parameters(), lr=0.0), table, l1=0.0, keep=narrowing
    )
    before = table.transform.detach().clone()
    table(torch.arange(ROWS)).sum().backward()
    optimizer.step()
    kept = table.transform != 0
    assert kept.sum() == 2 * ROWS
    assert before[kept].min() > before[~kept].max()
    assert kept.sum(1).max() > 2


def test_anchors_not_in_use_are_left_alone() -> None:
    table = make()
    optimizer = ff.proximal(torch.optim.Adam(table.parameters()), table, l1=0.1)
    for active in (6, 3, 3, 3):
        table.active = active
        aside = table.transform[:, 3:].detach().clone()
        optimizer.zero_grad()
        table(torch.arange(ROWS)).square().sum().backward()
        optimizer.step()
        if active == 3:
            assert torch.equal(table.transform[:, 3:], aside)


@pytest.mark.parametrize("name", ["Adam", "AdamW", "own Adam", "own Yogi"])
def test_rows_without_any_gradient_are_left_alone(name: str) -> None:
    table = make()
    before = table.transform.detach().clone()
    optimizer = ff.proximal(OPTIMIZERS[name](table.parameters()), table, l1=0.05)
    for _ in range(2):
        optimizer.zero_grad()
        table(torch.tensor([0, 1])).sin().sum().backward()
        optimizer.step()
    decay = 0.99**2 if name == "AdamW" else 1.0
    if name != "own Yogi":  # which begins with a second moment
        torch.testing.assert_close(table.transform[2:].detach(), before[2:] * decay)
    assert not torch.equal(table.transform[:2], before[:2])


def test_schedulers_and_scaling_find_an_optimiser() -> None:
    table = make()
    optimizer = ff.proximal(torch.optim.SGD(table.parameters(), lr=0.1), table, l1=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    table(torch.arange(3)).sum().backward()
    optimizer.step()
    scheduler.step()
    assert optimizer.inner.param_groups[0]["lr"] == 0.05
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(2))]})
    assert len(optimizer.param_groups) == len(optimizer.inner.param_groups) == 2
    assert optimizer.step(lambda: 3.0) == 3.0


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (lambda t: ff.proximal(torch.optim.SGD([t.anchors]), t), ValueError, "does not have"),
        (lambda t: ff.proximal(torch.optim.SGD(t.parameters()), t, l1=-1), ValueError, "l1"),
        (
            lambda t: ff.proximal(
                torch.optim.SGD(t.parameters()), t, regrow=ff.embeddings.Regrow()
            ),
            ValueError,
            "regrow is for tables of fixed width",
        ),
        (
            lambda t: ff.proximal(torch.optim.SGD(t.parameters()), torch.nn.Embedding(2, 2)),
            TypeError,
            "tables must be",
        ),
    ],
)
def test_refuses(wrong: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        wrong(make())


def test_refuses_optimisers_it_does_not_know() -> None:
    table = make()
    for kind in (torch.optim.RMSprop, torch.optim.Rprop, torch.optim.SparseAdam):
        inner = kind([table.transform])
        with pytest.raises(TypeError, match=f"must be SGD, Adam or AdamW.*got {kind.__name__}"):
            ff.proximal(inner, table)  # not only at its first step
    sparse = make(sparse=True)
    optimizer = ff.proximal(torch.optim.SGD([sparse.transform], lr=0.1), sparse)
    sparse(torch.arange(3)).sum().backward()
    with pytest.raises(TypeError, match=r"need an optimiser of fewfold\.optim"):
        optimizer.step()


@pytest.mark.parametrize("name", ["own SGD", "own Adam", "own Adagrad"])
@pytest.mark.parametrize("together", [False, True])
def test_cuts_compare_rows_that_owe_nothing(name: str, together: bool) -> None:
    tables = []
    for eager in (False, True):
        table = make(sparse=True)
        keep = ff.embeddings.Narrowing(first=6, last=2, over=10, every=2, together=together)
        inner = OPTIMIZERS[name](table.parameters())
        optimizer = ff.proximal(inner, table, l1=0.2, keep=keep)
        generator = torch.Generator().manual_seed(5)
        for _ in range(14):
            ids = torch.randint(0, ROWS, (3,), generator=generator)
            optimizer.zero_grad()
            table(ids).sin().sum().backward()
            optimizer.step()
            if eager:
                table.nonzeros()
        tables.append(table.weight.detach())
    torch.testing.assert_close(*tables)


def owing(**options: Any) -> tuple[ff.AnchorEmbedding, Any]:
    """A table of which all rows but the first owe .15."""
    table = make(sparse=True, signed=True)
    optimizer = ff.proximal(ff.optim.SGD(table.parameters(), lr=0.1), table, l1=0.5, **options)
    for _ in range(3):
        optimizer.zero_grad()
        table(torch.tensor([0])).sum().backward()
        optimizer.step()
    return table, optimizer


def test_what_is_owed_is_owed_by_the_values_there_were() -> None:
    fresh = make(sparse=True, signed=True)
    table, _ = owing()
    table.load_state_dict(fresh.state_dict())
    assert torch.equal(table.transform, fresh.transform)
    table, _ = owing()
    copied = copy.deepcopy(table)
    torch.testing.assert_close(copied.weight, table.weight)
    table, optimizer = owing()
    optimizer.param_groups[0]["lr"] = 0.0
    related = ff.embeddings.Relations.from_edges(
        torch.empty(0, 2, dtype=torch.int64), objects=ROWS, anchors=torch.arange(ANCHORS)
    )
    other, slow = owing(relations=related)
    slow.param_groups[0]["lr"] = 0.0
    # Of related ones an anchor and itself are exempt.
    apart = ~related.exempt(None)
    torch.testing.assert_close(
        (table.weight, table.transform)[1][apart], (other.weight, other.transform)[1][apart]
    )


def test_anchors_out_of_use_neither_pay_nor_count() -> None:
    table = make(sparse=True)
    table.transform.data[:, 3:] = 5.0
    table.active = 3
    optimizer = ff.proximal(ff.optim.SGD(table.parameters(), lr=0.1), table, l1=0.5, keep=2)
    for _ in range(3):
        optimizer.zero_grad()
        table(torch.tensor([0])).sum().backward()
        optimizer.step()
    table.nonzeros()
    assert (table.transform[:, 3:] == 5).all()


def test_ties_are_broken_not_all_dropped() -> None:
    table = make()
    table.transform.data.fill_(1.0)
    keep = ff.embeddings.Narrowing(first=2, last=2, over=1, together=True)
    optimizer = ff.proximal(torch.optim.SGD(table.parameters(), lr=0.0), table, l1=0.0, keep=keep)
    table(torch.arange(ROWS)).sum().backward()
    optimizer.step()
    assert table.nonzeros() == 2 * ROWS


def test_refuses_a_table_twice_and_relations_of_another() -> None:
    table = make()
    with pytest.raises(ValueError, match="must be given once"):
        ff.proximal(torch.optim.SGD(table.parameters()), [table, table])
    other = ff.embeddings.Relations.from_edges(
        torch.tensor([[1, 0]]), objects=ROWS, anchors=torch.arange(2)
    )
    with pytest.raises(ValueError, match="relations must be of 12 objects and 6 anchors"):
        ff.proximal(torch.optim.SGD(table.parameters()), table, relations=other)


def test_refuses_a_transform_under_two_names() -> None:
    table, twin = make(), make()
    twin.transform = table.transform
    with pytest.raises(ValueError, match="share a transform"):
        ff.proximal(torch.optim.SGD(table.parameters(), lr=0.1), [table, twin])


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf")])
def test_refuses_what_a_schedule_must_not_return(wrong: float) -> None:
    table = make()
    optimizer = ff.proximal(
        torch.optim.SGD(table.parameters(), lr=0.1), table, l1=lambda step: wrong if step else 0.0
    )
    table(torch.arange(ROWS)).sum().backward()
    optimizer.step()
    before = table.transform.detach().clone()
    with pytest.raises(
        ValueError, match=f"l1 must be finite and at least 0, got {wrong} at step 1"
    ):
        optimizer.step()
    assert torch.equal(table.transform, before)


def test_refuses_shares_of_nothing() -> None:
    with pytest.raises(ValueError, match="shares must have a number above 0"):
        ff.embeddings.Narrowing(4, 2, over=10, shares=torch.zeros(5))


def _shrunk(l1: Any, *, sparse: bool, steps: int = 70, rows: int = 60, **options: Any) -> Any:
    """A table after steps that use its first 40 rows only, under a penalty."""
    table = ff.AnchorEmbedding(
        rows, 4, anchors=6, sparse=sparse, generator=torch.Generator().manual_seed(0), **options
    )
    optimizer = ff.proximal(ff.optim.Adam(table.parameters(), lr=0.05), table, l1=l1)
    ids, goal = torch.arange(min(rows, 40)), torch.ones(min(rows, 40), 4)
    for _ in range(steps):
        optimizer.zero_grad()
        (table(ids) - goal).square().mean().backward()
        optimizer.step()
    return table, optimizer


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("width", [None, 2])
def test_a_table_that_collapses_says_so_once(sparse: bool, width: int | None) -> None:
    with pytest.warns(UserWarning, match="an anchor table collapses") as told:
        table, _ = _shrunk(3.0, sparse=sparse, width=width)
    (text,) = (str(each.message) for each in told)
    assert "60 rows have become zero vectors" in text
    assert "the penalty l1=3 is too strong" in text
    assert "use a smaller l1" in text
    assert "Warmup" in text
    shares = (table.transform == 0).all(1).double().mean()
    assert float(shares) > 0.5


def test_tables_that_do_not_collapse_say_nothing() -> None:
    _shrunk(1e-3, sparse=False)
    _shrunk(1e-3, sparse=True)
    _shrunk(3.0, sparse=False, rows=20)  # a toy
    table = ff.AnchorEmbedding(100, 4, anchors=6)
    with torch.no_grad():
        table.transform[:80] = 0  # zero before there was a penalty
    optimizer = ff.proximal(torch.optim.SGD(table.parameters(), lr=0.1), table, l1=1e-4)
    table(torch.arange(80, 100)).sum().backward()
    optimizer.step()
    assert float((table.transform == 0).all(1).double().mean()) > 0.5


def test_rows_that_owe_are_looked_at_when_they_pay() -> None:
    """Nobody reads most rows; they become zero when all are brought up to date."""
    table = ff.AnchorEmbedding(100, 4, anchors=6, sparse=True)
    optimizer = ff.proximal(ff.optim.SGD(table.parameters(), lr=0.1), table, l1=0.0)
    for ids, l1 in ((torch.arange(100), 0.0), (torch.arange(3), 0.0), (torch.arange(3), 100.0)):
        optimizer.l1 = l1
        optimizer.zero_grad()
        table(ids).sum().backward()
        optimizer.step()
    with pytest.warns(UserWarning, match="collapses"):
        table.nonzeros()


def test_what_was_owed_before_loading_is_forgotten() -> None:
    """A loaded state owes nothing, and brings the places a narrowing left."""

    def stepped(steps: int, l1: float) -> tuple[ff.AnchorEmbedding, Any]:
        table = make(sparse=True)
        keep = ff.embeddings.Narrowing(first=6, last=2, over=2, every=1)
        optimizer = ff.proximal(ff.optim.SGD(table.parameters(), lr=0.01), table, l1=l1, keep=keep)
        for step in range(steps):
            optimizer.zero_grad()
            table(torch.arange(ROWS if step == 0 else 2)).sum().backward()
            optimizer.step()
        return table, optimizer

    first, optimizer = stepped(6, 0.0)
    (fixed,) = optimizer.winners()
    second, other = stepped(3, 5.0)  # its rows owe
    second.load_state_dict(first.state_dict())
    other.load_state_dict(optimizer.state_dict())
    other.apply_deferred()
    torch.testing.assert_close(second.transform, first.transform, rtol=0, atol=0)
    (loaded,) = other.winners()
    assert fixed is not None
    assert loaded is not None
    assert torch.equal(loaded, fixed)
    assert other.steps == 6


def test_the_state_of_an_optimiser_is_that_of_rows_that_owe_nothing() -> None:
    table = make(sparse=True)
    optimizer = ff.proximal(ff.optim.SGD(table.parameters(), lr=0.01), table, l1=0.5)
    for ids in (torch.arange(ROWS), torch.arange(2)):
        optimizer.zero_grad()
        table(ids).sum().backward()
        optimizer.step()
    before = table.transform.detach().clone()  # the bare parameter: rows 2 and on owe a step
    optimizer.state_dict()
    expected = (before[2:] - 0.5 * 0.01).clamp(min=0)
    torch.testing.assert_close(table.transform[2:], expected)
    assert torch.equal(table.transform[:2], before[:2])
