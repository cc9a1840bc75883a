"""Table of optimizers: every property test of this module runs on every row."""

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from fewfold.optim import SGD, Adagrad, Adam, Yogi


class Dense(torch.optim.Optimizer):
    """Two moments as the papers write them, with Adam's corrections: slow and obviously right."""

    def __init__(self, params: Any, lr=1e-2, betas=(0.9, 0.999), eps=1e-3, **options: Any) -> None:
        start = {"initial_accumulator_value": 0.0, "weight_decay": 0.0, "maximize": False}
        start |= {"decoupled_weight_decay": False, **options}
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, **start})

    def follow(self, v: Tensor, g: Tensor, beta: float) -> Tensor:
        raise NotImplementedError

    def divisor(self, v: Tensor, correction: float, group: dict[str, Any]) -> Tensor:
        return (v / correction).sqrt() + group["eps"]

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["t"], state["m"] = 0, torch.zeros_like(p)
                    state["v"] = torch.full_like(p, group["initial_accumulator_value"])
                g = -p.grad if group["maximize"] else p.grad
                if group["decoupled_weight_decay"]:
                    p.mul_(1 - group["lr"] * group["weight_decay"])
                else:
                    g = g + group["weight_decay"] * p
                state["t"] += 1
                state["m"] = beta1 * state["m"] + (1 - beta1) * g
                state["v"] = self.follow(state["v"], g, beta2)
                mean = state["m"] / (1 - beta1 ** state["t"])
                divisor = self.divisor(state["v"], 1 - beta2 ** state["t"], group)
                p.sub_(group["lr"] * mean / divisor)


class DenseYogi(Dense):
    """The update of the paper, its rate times sqrt(1 - b2^t), unless eps is where Adam has it."""

    def __init__(self, params: Any, **options: Any) -> None:
        super().__init__(params, **{"initial_accumulator_value": 1e-6, **options})

    def follow(self, v: Tensor, g: Tensor, beta: float) -> Tensor:
        return v - (1 - beta) * torch.sign(v - g**2) * g**2

    def divisor(self, v: Tensor, correction: float, group: dict[str, Any]) -> Tensor:
        if group.get("adam_eps", False):
            return super().divisor(v, correction, group)
        return (v.sqrt() + group["eps"]) / correction**0.5


class DenseByRow(Dense):
    def __init__(self, params: Any, **options: Any) -> None:
        super().__init__(params, **{"eps": 1e-8, **options})

    def follow(self, v: Tensor, g: Tensor, beta: float) -> Tensor:
        rest = tuple(range(1, g.dim()))
        return beta * v + (1 - beta) * ((g**2).mean(rest, keepdim=True) if rest else g**2)


@dataclass(frozen=True)
class Case:
    """An optimiser of rows, the dense one it equals where every row is touched, and options."""

    ours: type[torch.optim.Optimizer]
    dense: type[torch.optim.Optimizer]
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return "-".join([self.ours.__name__, *(f"{k}={v}" for k, v in self.options.items())])

    def make(self, *params: Tensor) -> torch.optim.Optimizer:
        return self.ours(params, **{"lr": 0.05, **self.options})

    def peer(self, *params: Tensor) -> torch.optim.Optimizer:
        return self.dense(params, **{"lr": 0.05, **self.options})


CASES = [
    Case(SGD, torch.optim.SGD),
    Case(SGD, torch.optim.SGD, {"weight_decay": 0.1, "maximize": True}),
    Case(SGD, torch.optim.SGD, {"momentum": 0.9}),
    Case(SGD, torch.optim.SGD, {"momentum": 0.8, "nesterov": True, "weight_decay": 0.05}),
    Case(Adagrad, torch.optim.Adagrad),
    Case(Adagrad, torch.optim.Adagrad, {"initial_accumulator_value": 0.2, "eps": 1e-3}),
    Case(Adagrad, torch.optim.Adagrad, {"weight_decay": 0.1, "maximize": True}),
    Case(Adam, torch.optim.Adam),
    Case(Adam, torch.optim.Adam, {"betas": (0.5, 0.9), "eps": 1e-4, "weight_decay": 0.1}),
    Case(Adam, torch.optim.AdamW, {"weight_decay": 0.1, "maximize": True}),
    Case(Adam, torch.optim.Adam, {"betas": (0.0, 0.0)}),
    Case(Yogi, DenseYogi),
    Case(Yogi, DenseYogi, {"betas": (0.5, 0.9), "weight_decay": 0.1, "maximize": True}),
    Case(Yogi, DenseYogi, {"weight_decay": 0.1, "initial_accumulator_value": 0.0}),
]
# torch's Adam has the decoupled decay under a name of its own.
CASES[9] = Case(Adam, torch.optim.Adam, {**CASES[9].options, "decoupled_weight_decay": True})
CASES.append(Case(Yogi, DenseYogi, {"weight_decay": 0.1, "decoupled_weight_decay": True}))
CASES.append(Case(Yogi, DenseYogi, {"adam_eps": True, "weight_decay": 0.1}))

every_optimizer = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}


def sparse(rows: Any, values: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A gradient as it comes from an embedding: uncoalesced, unchecked."""
    index = torch.as_tensor(rows, dtype=torch.int64).reshape(1, -1)
    return torch.sparse_coo_tensor(index, values, shape, check_invariants=False)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def leaf(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return normal(*shape, seed=99, dtype=dtype).requires_grad_()


def close(ours: Tensor, expected: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(ours, expected, atol=tolerance, rtol=tolerance)


def train(
    optimizer: torch.optim.Optimizer, param: Tensor, steps: int, *, first: int = 0, count: int = 12
) -> None:
    """Steps with gradients of random rows, the same ones for the same numbers."""
    for t in range(first, first + steps):
        draw = torch.Generator().manual_seed(t)
        rows = torch.randint(param.shape[0], (count,), generator=draw)
        values = normal(count, *param.shape[1:], seed=1000 + t, dtype=param.dtype)
        param.grad = sparse(rows, values, tuple(param.shape))
        optimizer.step()


CASES.append(Case(Adam, DenseByRow, {"by_row": True}))
CASES.append(Case(Adam, DenseByRow, {"by_row": True, "betas": (0.0, 0.9), "weight_decay": 0.1}))
CASES.append(
    Case(Adam, DenseByRow, {"by_row": True, "weight_decay": 0.1, "betas": (0.5, 0.9), "eps": 1e-4})
)
CASES.append(
    Case(
        Adam,
        DenseByRow,
        {"by_row": True, "weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True},
    )
)
