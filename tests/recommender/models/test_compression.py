"""Trained tables cut to few anchors: near in scores, in order, and on a grid."""

import pytest
import torch
from torch import Tensor

import fewfold as ff
from fewfold.recommender.models.fastvae import compression as squeeze_module
from fewfold.recommender.models.fastvae.compression import compress, score_metric
from tests.recommender.conftest import grouped

HIDDEN, LATENT = 16, 7


@pytest.fixture(scope="module")
def log() -> ff.recommender.Interactions:
    return ff.read_log(grouped()).interactions


@pytest.fixture(scope="module")
def dense(log: ff.recommender.Interactions) -> ff.recommender.FastVAE:
    model = ff.recommender.FastVAE(log.items, hidden=HIDDEN, latent=LATENT, layers=1, seed=1)
    ff.recommender.train(model, log, epochs=30, batch=16, progress=False)
    return model


def both(model: ff.recommender.FastVAE) -> Tensor:
    return torch.cat([model.inputs, model.items], 1).detach()


def error(model: ff.recommender.FastVAE, log: ff.recommender.Interactions, table: Tensor) -> float:
    """Weighted by how often items are met, in the metric of scores."""
    off = (table - both(model)).double()
    weights = log.counts().double() + 1
    return float(weights @ (off @ score_metric(model, log) * off).sum(1))


def scores(
    model: ff.recommender.FastVAE, log: ff.recommender.Interactions, table: Tensor
) -> Tensor:
    """Of all users, with these tables; a shift of all scores of a user does not matter."""
    other = ff.recommender.FastVAE(log.items, hidden=HIDDEN, latent=LATENT, layers=1)
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        other.inputs.copy_(table[:, :HIDDEN])
        other.items.copy_(table[:, HIDDEN:])
    found = other.eval().queries(log.jagged) @ other.vectors.T
    return found - found.mean(1, keepdim=True)


def test_the_metric_is_the_slope_of_scores(
    dense: ff.recommender.FastVAE, log: ff.recommender.Interactions
) -> None:
    """Of small errors: what one output row does to its scores, and one input row to all of them."""
    metric = score_metric(dense, log)
    assert torch.equal(metric[:HIDDEN, HIDDEN:], torch.zeros(HIDDEN, LATENT + 1).double())
    generator = torch.Generator().manual_seed(0)
    table, before = both(dense), scores(dense, log, both(dense))
    weights = (log.counts().double() + 1) / (log.counts() + 1).sum()
    small = torch.zeros(HIDDEN + LATENT + 1)
    small[HIDDEN:] = 1e-2 * torch.randn(LATENT + 1, generator=generator)
    moved = dense.queries(log.jagged) @ small[HIDDEN:]
    expected = float(small.double() @ metric @ small.double())
    assert float(moved.double().square().mean()) == pytest.approx(expected, rel=0.05)
    # Independent errors of all input rows: their sum over a history is as large as one of them.
    off = torch.zeros_like(table)
    off[:, :HIDDEN] = 1e-2 * torch.randn(log.items, HIDDEN, generator=generator)
    after = scores(dense, log, table + off)
    change = (after - before).double()
    change = change - (change @ weights).unsqueeze(1)
    found = float((change.square() @ weights).mean())
    each = off.double()
    expected = float((each @ metric * each).sum(1).mean())
    assert found == pytest.approx(expected, rel=0.4)


def test_nearer_in_scores_than_singular_vectors(
    dense: ff.recommender.FastVAE, log: ff.recommender.Interactions
) -> None:
    table = both(dense)
    found = compress(dense, log, count=5, width=5, bits=8)
    ours = found.transform @ found.anchors
    left, values, right = torch.linalg.svd(table, full_matrices=False)
    svd = (left[:, :6] * values[:6]) @ right[:6]  # as many numbers: ours has the bias for itself
    assert error(dense, log, ours) < 0.8 * error(dense, log, svd)
    exact = scores(dense, log, table)
    assert (scores(dense, log, ours) - exact).norm() < (scores(dense, log, svd) - exact).norm()


@pytest.mark.parametrize("bits", [8, 5, 3])
def test_items_have_the_first_few_on_a_grid(
    dense: ff.recommender.FastVAE, log: ff.recommender.Interactions, bits: int
) -> None:
    found = compress(dense, log, count=10, width=4, bits=bits)
    codes = found.transform / found.steps
    torch.testing.assert_close(codes, codes.round(), rtol=0, atol=1e-3)
    assert codes.abs().max().round() <= 2 ** (bits - 1) - 1
    last = ((codes.round() != 0) * torch.arange(1, 12)).amax(1)
    assert last.double().mean() <= 5.2  # four, and the bias
    popular = log.counts().argsort(stable=True)
    assert last[popular[-10:]].sum() > last[popular[:10]].sum()
    assert found.anchors[0].tolist() == [0.0] * (HIDDEN + LATENT) + [1.0]


def test_moving_entries_on_the_grid_beats_rounding_them(
    dense: ff.recommender.FastVAE, log: ff.recommender.Interactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved, fine = (compress(dense, log, count=10, width=6, bits=bits) for bits in (3, 8))
    monkeypatch.setattr(squeeze_module, "_SWEEPS", 0)
    rounded = compress(dense, log, count=10, width=6, bits=3)
    least, less, more = (error(dense, log, it.transform @ it.anchors)
                         for it in (fine, moved, rounded))  # fmt: skip
    assert least < less < 0.8 * more


def test_the_same_seed_the_same_tables(
    dense: ff.recommender.FastVAE, log: ff.recommender.Interactions
) -> None:
    before = dense.state_dict()
    kept = {name: value.clone() for name, value in before.items()}
    one, two = (compress(dense, log, count=6, width=3, bits=6) for _ in range(2))
    assert torch.equal(one.transform, two.transform)
    assert torch.equal(one.anchors, two.anchors)
    assert all(torch.equal(value, kept[name]) for name, value in dense.state_dict().items())


def test_more_anchors_than_the_tables_have_columns(
    dense: ff.recommender.FastVAE, log: ff.recommender.Interactions
) -> None:
    few = ff.recommender.AnchorVAE.from_dense(dense, ff.recommender.Anchors(40, 40), log)
    torch.testing.assert_close(few.outputs(), dense.outputs(), rtol=0, atol=0.02)
    few.finalize()
    torch.testing.assert_close(few.outputs(), dense.outputs(), rtol=0, atol=0.1)


def test_interactions_of_another_catalogue_are_refused(dense: ff.recommender.FastVAE) -> None:
    other = ff.recommender.Interactions.from_pairs([0, 1], [0, 1])
    with pytest.raises(ValueError, match="has 40 items, the interactions 2"):
        ff.recommender.AnchorVAE.from_dense(dense, ff.recommender.Anchors(4, 2), other)


def test_more_anchors_do_no_harm() -> None:
    """Those that few items have come not to cancel each other, also after rounding to bytes."""
    generator = torch.Generator().manual_seed(1)
    model = ff.recommender.FastVAE(1000, hidden=100, latent=27, layers=0, seed=0)
    table = torch.randn(1000, 128, generator=generator) * torch.logspace(0, -1, 128)
    table = table @ torch.linalg.qr(torch.randn(128, 128, generator=generator))[0]
    with torch.no_grad():
        model.inputs.copy_(table[:, :100])
        model.items.copy_(table[:, 100:])
    items = (torch.rand(8000, generator=generator) ** 6 * 1000).long()  # few that many have
    users = torch.randint(300, (8000,), generator=generator)
    log = ff.recommender.Interactions.from_pairs(users.tolist(), items.tolist(), shape=(300, 1000))
    errors = []
    for count in (16, 60):
        few = ff.recommender.AnchorVAE.from_dense(model, ff.recommender.Anchors(count, 6), log)
        few.finalize()
        errors.append(error(model, log, few.table.weight.detach()))
    assert errors[1] < 1.05 * errors[0]


def test_anchors_are_rounded_before_entries(
    dense: ff.recommender.FastVAE, log: ff.recommender.Interactions
) -> None:
    found = compress(dense, log, count=10, width=6, bits=8)
    codes = found.anchors / (found.anchors.abs().amax(1, keepdim=True).clamp(min=1e-9) / 127)
    torch.testing.assert_close(codes, codes.round(), rtol=0, atol=1e-3)
