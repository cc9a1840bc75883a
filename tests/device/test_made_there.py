"""Modules whose parameters are made on a device, by their argument `device`."""

import inspect
from collections.abc import Callable

import pytest
import torch
from torch import nn

import fewfold as ff

from .apart import APART
from .fake import CUDA, fake_gpu
from .rows import public

MADE: dict[str, Callable[..., nn.Module]] = {
    "AdaptiveEntmax": lambda **where: ff.AdaptiveEntmax(3, **where),
    "AnchorEmbedding": lambda **where: ff.AnchorEmbedding(9, 4, anchors=3, width=2, **where),
    "AnchorEmbeddingBag": lambda **where: ff.AnchorEmbeddingBag(9, 4, anchors=3, **where),
    "ContinuousAttention": lambda **where: ff.ContinuousAttention(4, heads=2, **where),
    "Hopfield": lambda **where: ff.Hopfield(4, heads=2, beta=torch.ones(2), **where),
    "HopfieldLayer": lambda **where: ff.HopfieldLayer(4, patterns=5, **where),
    "HopfieldPooling": lambda **where: ff.HopfieldPooling(4, **where),
    "MultiheadAttention": lambda **where: ff.MultiheadAttention(4, 2, **where),
    "ProductKeyMemory": lambda **where: ff.ProductKeyMemory(8, 16, k=4, heads=2, **where),
    "attention.LengthScaling": lambda **where: ff.attention.LengthScaling(2, **where),
    "attention.AdaptiveLengthScaling": lambda **where: ff.attention.AdaptiveLengthScaling(
        2, 8, **where
    ),
}
KEPT = {"ContinuousAttention"}  # its basis keeps its own, and is moved by `to`


@pytest.mark.parametrize("name", MADE)
def test_parameters_are_made_on_the_device(name: str) -> None:
    """With a seed those of the CPU, on any device."""
    torch.manual_seed(0)
    wanted = MADE[name]().state_dict()
    torch.manual_seed(0)
    made = MADE[name](device=APART, dtype=torch.float32)
    every = [*made.named_parameters(), *made.named_buffers()]
    assert every
    for key, value in every:
        if name not in KEPT or not key.startswith("basis"):
            assert value.device == APART, key
            torch.testing.assert_close(value.detach().cpu(), wanted[key])
    empty = MADE[name](device="meta")
    assert all(each.is_meta for each in empty.parameters())
    with fake_gpu():
        assert all(each.device == CUDA for each in MADE[name](device=CUDA).parameters())


def test_every_module_with_a_device_is_here() -> None:
    found = set()
    for name in public():
        value = ff
        for part in name.split("."):
            value = getattr(value, part)
        if inspect.isclass(value) and issubclass(value, nn.Module):
            parameters = inspect.signature(value).parameters
            if "device" in parameters or "options" in parameters:
                found.add(name)
    assert found - {"embeddings.DataParallel"} == set(MADE)  # which wraps another module
