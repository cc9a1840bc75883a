"""Losses compared with F.cross_entropy, and the fused output layer with F.linear_cross_entropy."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

import fewfold as ff
from benchmarks.harness import Case, Pair, Peak
from benchmarks.maps import SHAPES, draw

Loss = Callable[[Tensor, Tensor], Tensor]
LinearLoss = Callable[[Tensor, Tensor, Tensor], Tensor]

TOKENS, WIDTH, VOCABULARY = 512, 256, 262_144
LAYER = f"N={TOKENS} d={WIDTH} V={VOCABULARY}"


def fused(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    """Compute the fused loss: scores are never stored, the gradient of the weight is sparse."""
    return ff.linear_entmax_loss(hidden, weight, target, sparse_grad=True)


def unfused_entmax(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    """Compute the same loss from stored scores."""
    return ff.entmax_loss(hidden @ weight.T, target)


def unfused(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    """Compute the softmax loss from stored scores."""
    return F.cross_entropy(hidden @ weight.T, target)


LINEAR: dict[str, LinearLoss] = {
    "linear_entmax_loss": fused,
    "linear + cross_entropy": unfused,
    "linear + entmax_loss": unfused_entmax,
    "F.linear_cross_entropy": F.linear_cross_entropy,
}


def cases() -> list[Case]:
    """Yield all rows of the suite, in the order of the claims."""
    return [*_losses(), *_linear()]


def _losses() -> Iterator[Case]:
    losses: dict[str, Loss] = {
        "sparsemax_loss": ff.sparsemax_loss,
        "entmax_loss(1.5)": ff.entmax_loss,
    }
    for name, loss in losses.items():
        for shape in SHAPES[2:]:
            yield Case(
                what=f"{name} forward+backward",
                size=f"{shape[0]} x {shape[1]}",
                peer="F.cross_entropy",
                bar=0.9,
                build=partial(_against_cross_entropy, loss, shape),
            )


def _against_cross_entropy(loss: Loss, shape: tuple[int, int]) -> Pair:
    scores = draw("normal", shape).requires_grad_()
    target = torch.randint(shape[1], shape[:1], generator=torch.Generator().manual_seed(1))
    return Pair(
        lambda: torch.autograd.grad(loss(scores, target), scores),
        lambda: torch.autograd.grad(F.cross_entropy(scores, target), scores),
    )


def _linear() -> Iterator[Case]:
    for peer in ("F.linear_cross_entropy", "linear + cross_entropy"):
        yield Case(
            what="linear_entmax_loss forward+backward",
            size=LAYER,
            peer=peer,
            bar=0.4,
            build=partial(_layers, LINEAR[peer]),
        )
    for peer in ("linear + entmax_loss", "linear + cross_entropy"):
        yield Case(
            what="linear_entmax_loss peak memory",
            size=LAYER,
            peer=peer,
            bar=1 / 8,
            build=partial(_peaks, peer),
        )


def layer() -> tuple[Tensor, Tensor, Tensor]:
    """Return hidden states, output weights scaled such that scores are N(0, 1), and targets."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(TOKENS, WIDTH, generator=generator)
    weight = torch.randn(VOCABULARY, WIDTH, generator=generator).mul_(WIDTH**-0.5)
    target = torch.randint(VOCABULARY, (TOKENS,), generator=generator)
    return hidden.requires_grad_(), weight.requires_grad_(), target


def step(loss: LinearLoss, hidden: Tensor, weight: Tensor, target: Tensor) -> None:
    """Run forward and backward, and discard the gradients."""
    loss(hidden, weight, target).backward()
    hidden.grad = weight.grad = None


def _layers(peer: LinearLoss) -> Pair:
    hidden, weight, target = layer()
    return Pair(
        lambda: step(fused, hidden, weight, target), lambda: step(peer, hidden, weight, target)
    )


def _peaks(peer: str) -> Peak:
    return Peak(_peak("linear_entmax_loss"), _peak(peer))


def _peak(name: str) -> float:
    """Return the peak memory of one step, measured in a new process."""
    command = [sys.executable, "-m", "benchmarks.memory", name]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
