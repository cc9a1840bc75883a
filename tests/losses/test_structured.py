"""Fenchel-Young losses over structures."""

import copy

import pytest
import torch
from torch import nn

import fewfold as ff
from fewfold.structured.structures import (
    Bits,
    Budget,
    KSubset,
    Sequence,
    SequentialSubset,
    SpanningTree,
    Structure,
)

STRUCTURES = [Bits(), Bits(on_off=True), KSubset(2), Budget(2)]


@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
def test_the_gradient_is_marginals_less_target(structure: Structure) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 6, dtype=torch.double, generator=generator).requires_grad_()
    y = structure.argmax(torch.randn(4, 6, dtype=torch.double, generator=generator))
    omega = ff.SparseMAP(structure)
    losses = ff.fenchel_young_loss(x, y, omega, reduction="none")
    assert losses.shape == (4,)
    assert (losses > 0).all()
    (slope,) = torch.autograd.grad(losses.sum(), x, retain_graph=True)
    torch.testing.assert_close(slope, ff.sparsemap(x, structure) - y, atol=1e-8, rtol=0)
    torch.testing.assert_close(ff.fenchel_young_loss(x, y, omega), losses.mean())
    assert torch.autograd.gradcheck(lambda t: ff.fenchel_young_loss(t, y, omega), x)
    far = 10 * (2 * y - 1)
    torch.testing.assert_close(ff.fenchel_young_loss(far, y, omega), torch.tensor(0.0).double())


def test_a_wrong_part_may_cost_something() -> None:
    omega, y = ff.SparseMAP(KSubset(2)), torch.tensor([1.0, 1.0, 0.0, 0.0])
    x = 1.5 * y  # ahead by more than one, so that nothing is lost without a cost
    assert ff.fenchel_young_loss(x, y, omega) == 0
    costly = ff.fenchel_young_loss(x, y, omega, cost=1.0)
    torch.testing.assert_close(costly, ff.fenchel_young_loss(x + (1 - y), y, omega))
    assert costly > 0
    module = ff.FenchelYoungLoss(omega, cost=1.0)
    torch.testing.assert_close(module(x, y), costly)


def test_a_module_holds_the_additional_scores_of_its_structure() -> None:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(2, 4, 3, generator=generator)
    y = torch.nn.functional.one_hot(torch.randint(3, (2, 4), generator=generator), 3).float()
    table = nn.Parameter(torch.randn(3, 3, generator=generator))
    stop = torch.randn(3, generator=generator)
    module = ff.FenchelYoungLoss(ff.SparseMAP(Sequence(table, stop=stop)))
    assert dict(module.named_parameters()) == {"structure_transitions": table}
    assert [name for name, _ in module.named_buffers()] == ["structure_stop"]
    assert list(module.state_dict()) == ["structure_transitions", "structure_stop"]
    plain = ff.fenchel_young_loss(x, y, ff.SparseMAP(Sequence(table, stop=stop)))
    (wanted,) = torch.autograd.grad(plain, table)
    assert wanted.abs().max() > 0
    loss = module(x, y)
    torch.testing.assert_close(loss, plain)
    loss.backward()
    torch.testing.assert_close(table.grad, wanted)


def test_a_module_uses_the_scores_it_holds_now() -> None:
    x, y = torch.tensor([[0.3, 0.1], [0.2, 0.4]]), torch.eye(2)
    module = ff.FenchelYoungLoss(ff.SparseMAP(Sequence(nn.Parameter(torch.zeros(2, 2)))))
    before = module(x, y)
    other = torch.tensor([[0.0, 3.0], [0.0, 0.0]])
    module.load_state_dict({"structure_transitions": other})
    torch.testing.assert_close(
        module(x, y), ff.fenchel_young_loss(x, y, ff.SparseMAP(Sequence(other)))
    )
    assert module(x, y) < before
    module.to(torch.double)
    assert module.omega.structure.transitions.dtype == torch.double  # type: ignore[attr-defined]
    copied = copy.deepcopy(module)
    with torch.no_grad():
        copied.get_parameter("structure_transitions").zero_()
    torch.testing.assert_close(copied(x, y), before)
    assert module(x, y) < before


def test_numbers_that_are_no_scores_stay_in_the_structure() -> None:
    tree = SpanningTree(torch.tensor([[0, 1], [1, 2], [2, 0]]), 3)
    assert not ff.FenchelYoungLoss(ff.SparseMAP(tree)).state_dict()
    bonus = ff.FenchelYoungLoss(ff.SparseMAP(SequentialSubset(2, nn.Parameter(torch.tensor(0.5)))))
    assert [name for name, _ in bonus.named_parameters()] == ["structure_bonus"]


def test_a_module_holds_its_cost() -> None:
    x, y = torch.randn(2, 4, generator=torch.Generator().manual_seed(4)), torch.eye(4)[:2]
    cost = torch.tensor([0.5, 1.0, 2.0, 0.0])
    module = ff.FenchelYoungLoss(ff.SparseMAP(KSubset(1)), cost=cost.clone())
    assert list(module.state_dict()) == ["cost"]
    torch.testing.assert_close(
        module(x, y), ff.fenchel_young_loss(x, y, ff.SparseMAP(KSubset(1)), cost=cost)
    )
    module.load_state_dict({"cost": 2 * cost})
    torch.testing.assert_close(
        module(x, y), ff.fenchel_young_loss(x, y, ff.SparseMAP(KSubset(1)), cost=2 * cost)
    )
    assert module.to(torch.double).cost.dtype == torch.double  # type: ignore[union-attr]
    learned = ff.FenchelYoungLoss(ff.SparseMAP(KSubset(1)), cost=nn.Parameter(cost.clone()))
    assert [name for name, _ in learned.named_parameters()] == ["cost"]
    learned(x, y).backward()
    assert learned.cost.grad.abs().max() > 0  # type: ignore[union-attr]
    assert not ff.FenchelYoungLoss(ff.SparseMAP(KSubset(1)), cost=1.0).state_dict()


def test_a_cost_must_fit_the_scores() -> None:
    x, y, omega = torch.zeros(2, 3), torch.eye(3)[:2], ff.SparseMAP(KSubset(1))
    for cost in (torch.ones(2), torch.ones(4, 2, 3)):
        with pytest.raises(ValueError, match="cost must broadcast to the shape of the scores"):
            ff.fenchel_young_loss(x, y, omega, cost=cost)
    with pytest.raises(TypeError, match="cost must be a number or a tensor, got str"):
        ff.fenchel_young_loss(x, y, omega, cost="1")  # type: ignore[arg-type]


def test_what_is_about_classes_is_refused() -> None:
    x, y = torch.zeros(2, 3), torch.zeros(2, 3)
    omega = ff.SparseMAP(Bits())
    with pytest.raises(ValueError, match="apply to classes"):
        ff.fenchel_young_loss(x, y, omega, label_smoothing=0.1)
    with pytest.raises(ValueError, match="structures of the shape"):
        ff.fenchel_young_loss(x, torch.tensor([0, 1]), omega)
    with pytest.raises(ValueError, match="cost needs an omega over structures"):
        ff.fenchel_young_loss(x, torch.tensor([0, 1]), ff.Gini(), cost=1.0)
