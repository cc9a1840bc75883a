"""Regrowth of rows of fixed width."""

import torch

import fewfold as ff
from fewfold.embeddings.sparsify.regrow import regrow


def test_exchanges_the_weakest_for_the_steepest() -> None:
    table = ff.AnchorEmbedding(3, 4, anchors=4, width=2)
    with torch.no_grad():
        table.anchors.copy_(torch.eye(4))
        table.transform.copy_(torch.tensor([[1.0, 0.0], [1.0, 0.5], [0.0, 1.0]]))
        assert table.slots is not None
        table.slots.copy_(torch.tensor([[0, 1], [0, 1], [0, 1]]))
    ids = torch.tensor([0, 0, 1, 2])
    gradients = torch.tensor(
        [[0.0, 0, -1, 0], [0, 0, 0.5, -1.2], [0, 0, -9, 0], [0, 0, -0.05, -0.01]]
    )
    row, place = regrow(table, ids, gradients, below=0.1, l1=0.1)
    # Row 0 takes anchor 3; row 1 has no weak entry; of row 2 no gradient beats the penalty.
    assert row.tolist() == [0]
    assert place.tolist() == [1]
    assert table.slots.tolist() == [[0, 3], [0, 1], [0, 1]]
    assert table.transform[0].tolist() == [1, 0]


def test_supports_are_learned_not_guessed(path: str) -> None:
    """A table of known mixes is found again from random supports, and not without regrowing."""

    def train(how: ff.embeddings.Regrow | None, sparse: bool) -> float:
        generator = torch.Generator().manual_seed(0)
        truth = ff.AnchorEmbedding(60, 16, anchors=12, width=2, generator=generator)
        table = ff.AnchorEmbedding(60, 16, anchors=12, width=3, sparse=sparse, generator=generator)
        table.anchors.data.copy_(truth.anchors.detach())
        table.anchors.requires_grad_(False)
        inner = ff.optim.Adam([table.transform], lr=0.02)
        optimizer = ff.proximal(inner, table, l1=1e-2, regrow=how)
        for _ in range(800):
            ids = torch.randint(0, 60, (30,), generator=generator)
            optimizer.zero_grad()
            (table(ids) - truth.weight[ids].detach()).square().sum(1).mean().backward()
            optimizer.step()
        return float(((table.weight - truth.weight).norm() / truth.weight.norm()).detach())

    for sparse in (False, True):
        assert train(ff.embeddings.Regrow(every=20), sparse) < 0.2
    if path == "native":
        assert train(None, sparse=True) > 0.4


def test_learns_from_bags_and_scores_too() -> None:
    for use in ("bag", "logits"):
        table = ff.AnchorEmbedding(
            20, 8, anchors=16, width=2, generator=torch.Generator().manual_seed(0)
        )
        assert table.slots is not None
        before = table.slots.clone()
        optimizer = ff.proximal(
            torch.optim.Adam(table.parameters()),
            table,
            l1=0.0,
            regrow=ff.embeddings.Regrow(1, below=1.0),
        )
        if use == "bag":
            out = table.bag(torch.arange(10), torch.tensor([0, 4]))
        else:
            out = table.logits(torch.randn(3, 8, generator=torch.Generator().manual_seed(1)))
        out.square().sum().backward()
        optimizer.step()
        changed = (table.slots != before).any(1)
        assert changed[:10].any()
        assert use == "logits" or not changed[10:].any()


def test_only_places_that_a_narrowing_left_are_exchanged() -> None:
    generator = torch.Generator().manual_seed(0)
    table = ff.AnchorEmbedding(20, 8, anchors=16, width=4, generator=generator)
    goal = torch.randn(20, 8, generator=generator)
    optimizer = ff.proximal(
        torch.optim.SGD([table.transform], lr=0.01), table, l1=0.0,
        keep=ff.embeddings.Narrowing(4, 2, over=3, every=1),
        regrow=ff.embeddings.Regrow(every=1, below=1.0),
    )  # fmt: skip
    assert table.slots is not None

    def step() -> None:
        optimizer.zero_grad()
        (table.weight - goal).square().sum().backward()
        table(torch.arange(20)).mul(table.weight.detach() - goal).sum().backward()
        optimizer.step()

    for _ in range(4):
        step()
    (left,) = optimizer.winners()
    assert left is not None
    before = table.slots.clone()
    for _ in range(5):
        step()
    changed = table.slots != before
    assert changed.any()
    assert not changed[~left].any()  # an anchor there would have no weight for ever


def test_a_new_entry_is_remembered_as_at_the_start(path: str) -> None:
    for make, place in (
        (lambda p: ff.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.5), slice(None)),
        (lambda p: ff.optim.Yogi(p, lr=0.1, initial_accumulator_value=0.5), (slice(None), 1)),
    ):
        table = ff.AnchorEmbedding(
            20, 8, anchors=16, width=2, generator=torch.Generator().manual_seed(0)
        )
        assert table.slots is not None
        before = table.slots.clone()
        inner = make([table.transform])
        optimizer = ff.proximal(inner, table, l1=0.0, regrow=ff.embeddings.Regrow(1, below=1.0))
        table(torch.arange(20)).square().sum().backward()
        optimizer.step()
        memory = inner.state[table.transform]["memory"][place]
        changed = table.slots != before
        assert changed.any()
        assert (memory[changed] == 0.5).all()
        assert (memory[~changed] != 0.5).all()
