"""The device of the tests computes as the CPU does and refuses tensors of others."""

import pytest
import torch

from .apart import APART, Apart


def test_tensors_are_on_the_device_and_compute_as_on_the_cpu() -> None:
    x = torch.tensor([1.0, 2.0, 3.0])
    y = x.to(APART).requires_grad_()
    assert isinstance(y, Apart)
    assert y.device == APART
    (y * y).sum().backward()
    assert torch.equal(y.grad.cpu(), 2 * x)
    assert y.tolist() == [1.0, 2.0, 3.0]


def test_a_factory_makes_tensors_of_the_device() -> None:
    x = torch.zeros(3, device=APART)
    x[1] = 2.0
    assert x.device == APART
    assert x.cpu().tolist() == [0.0, 2.0, 0.0]
    assert torch.zeros(3).copy_(x).tolist() == [0.0, 2.0, 0.0]


def test_devices_do_not_mix() -> None:
    x = torch.ones(3, device=APART)
    with pytest.raises(RuntimeError, match=r"add.* both apart:0 and cpu"):
        x + torch.ones(3)
    with pytest.raises(RuntimeError, match="numpy"):
        x.numpy()
    assert (x + torch.tensor(1.0)).tolist() == [2.0, 2.0, 2.0]  # a scalar may be anywhere


def test_a_module_is_trained_on_the_device() -> None:
    layer = torch.nn.Linear(3, 4).to(APART)
    optimizer = torch.optim.Adam(layer.parameters())
    before = layer.weight.detach().cpu().clone()
    layer(torch.ones(2, 3, device=APART)).sum().backward()
    optimizer.step()
    assert layer.weight.device == APART
    assert not torch.equal(layer.weight.detach().cpu(), before)
