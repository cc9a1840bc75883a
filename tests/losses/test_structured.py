"""Fenchel-Young losses over structures: the one formula, for all of them."""

import pytest
import torch

import fewfold as ff
from fewfold.structured.structures import Bits, Budget, KSubset, Structure

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


def test_what_is_about_classes_is_refused() -> None:
    x, y = torch.zeros(2, 3), torch.zeros(2, 3)
    omega = ff.SparseMAP(Bits())
    with pytest.raises(ValueError, match="about classes"):
        ff.fenchel_young_loss(x, y, omega, label_smoothing=0.1)
    with pytest.raises(ValueError, match="structures of the shape"):
        ff.fenchel_young_loss(x, torch.tensor([0, 1]), omega)
    with pytest.raises(ValueError, match="cost needs an omega over structures"):
        ff.fenchel_young_loss(x, torch.tensor([0, 1]), ff.Gini(), cost=1.0)
