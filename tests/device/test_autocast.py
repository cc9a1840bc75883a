"""Autocast of a GPU: the dtypes that autocast gives on the CPU, from fake tensors."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest
import torch
from torch import nn

from fewfold._native import dispatch
from fewfold._torch import autocast_dtype, without_autocast

from .apart import APART
from .fake import CUDA, fake_gpu
from .functions import CASES
from .table import Case, moved, tensors

NAMES = (
    "sparsemax", "entmax, 1.5", "normmax, 2", "ksubset, 2", "entmax_loss, entmax 1.5",
    "softmax_loss, softmax", "linear_entmax_loss, alpha 1.5", "sparse_attention",
    "MultiheadAttention", "Hopfield", "continuous_attention", "ProductKeyMemory",
)  # fmt: skip


@contextmanager
def autocast(device: torch.device) -> Iterator[None]:
    """Autocast to bfloat16, switched on where `torch.autocast` refuses as there is no GPU."""
    kind = device.type
    before = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
    torch.set_autocast_enabled(kind, True)
    torch.set_autocast_dtype(kind, torch.bfloat16)
    try:
        yield
    finally:
        torch.set_autocast_enabled(kind, before[0])
        torch.set_autocast_dtype(kind, before[1])


def dtypes(case: Case, device: torch.device) -> list[torch.dtype]:
    """Of what a row returns, given float32."""
    torch.manual_seed(0)
    given = [
        copy.deepcopy(each).float() if isinstance(each, nn.Module)
        else each.detach().float() if each.is_floating_point()
        else each
        for each in case.given()
    ]  # fmt: skip
    inside = fake_gpu() if device == CUDA else nullcontext()
    with inside, dispatch.disabled(), torch.no_grad(), autocast(device):
        found = case.call(*(moved(each, device) for each in given))
        return [value.dtype for value in tensors(found)]


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.name in NAMES], ids=lambda case: case.name
)
def test_dtypes_are_those_of_the_cpu(case: Case) -> None:
    assert dtypes(case, CUDA) == dtypes(case, torch.device("cpu"))


def test_autocast_of_one_device_is_not_that_of_another() -> None:
    x = torch.ones(2)
    with fake_gpu():
        there = torch.empty(2, device=CUDA)
    with autocast(CUDA):
        assert autocast_dtype(there) == torch.bfloat16
        assert autocast_dtype(x) is None
        assert autocast_dtype(x.to(APART)) is None  # a device for which torch has none
        with without_autocast(x.to("meta")):
            assert autocast_dtype(there) == torch.bfloat16
