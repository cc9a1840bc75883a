"""Cost of maps and losses under torch.compile: run time next to eager mode, and compile time."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

import fewfold as ff
from benchmarks.harness import Case, Pair, Peak

ROWS, SIZE = 4096, 512
WORDS = (512, 256, 20_000)  # rows, features, classes
COMPILE_SECONDS = 15.0

Function = Callable[..., Tensor]

MAPS: dict[str, tuple[Function, float | None]] = {
    "sparsemax": (ff.sparsemax, None),
    "1.1-entmax": (lambda scores: ff.entmax(scores, 1.1), None),
    "1.3-entmax": (lambda scores: ff.entmax(scores, 1.3), None),
    "1.5-entmax": (ff.entmax, None),
    "entmax, learnt alpha": (ff.entmax, 1.5),
    "normmax(2)": (ff.normmax, None),
    "normmax, learnt alpha": (ff.normmax, 1.5),
    "ksubset(3)": (lambda scores: ff.ksubset(scores, 3), None),
    "ksubset, learnt k": (ff.ksubset, 3.0),
    "topk_sparsemax(5)": (lambda scores: ff.topk_sparsemax(scores, 5), None),
    "fusedmax(0.1)": (ff.fusedmax, None),
    "oscarmax(0.1)": (ff.oscarmax, None),
}

_COMPILE = """
import resource, sys, torch, fewfold as ff
torch.set_num_threads(1)
model_kind, map_kind = sys.argv[1:]

class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        omega = None if map_kind == "learnt" else ff.Shannon()
        self.norm = torch.nn.LayerNorm(64)
        self.attend = ff.MultiheadAttention(64, num_heads=4, omega=omega)
        self.feed = torch.nn.Sequential(
            torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64)
        )

    def forward(self, x):
        x = x + self.attend(self.norm(x))
        return x + self.feed(x)

def linear():
    last = ff.AdaptiveEntmax() if map_kind == "learnt" else torch.nn.Softmax(-1)
    return torch.nn.Sequential(torch.nn.Linear(64, 64), last)

def processor_seconds():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)

layer = linear if model_kind == "linear" else Attention
model, x = torch.nn.Sequential(layer(), layer()), torch.randn(4, 32, 64)
model(x).sum().backward()
before = processor_seconds()
torch.compile(model, fullgraph=True)(x).sum().backward()
print("seconds", processor_seconds() - before)
"""


def cases() -> list[Case]:
    """Yield the rows: compiled within 1.2 of eager mode; two layers compiled in 15 CPU seconds."""
    return [*_maps(), *_losses(), *_compile_time()]


def _maps() -> Iterator[Case]:
    for name, (function, value) in MAPS.items():
        for both in (False, True):
            yield _race(name, both, f"{ROWS} x {SIZE}", partial(_map, function, value, both))


def _losses() -> Iterator[Case]:
    losses: dict[str, tuple[Function, float | None]] = {
        "sparsemax_loss": (ff.sparsemax_loss, None),
        "entmax_loss(1.5)": (ff.entmax_loss, None),
        "entmax_loss, learnt alpha": (ff.entmax_loss, 1.5),
        "normmax_loss(2)": (ff.normmax_loss, None),
    }
    for name, (function, value) in losses.items():
        for both in (False, True):
            build = partial(_loss, function, value, both, soft=False)
            yield _race(name, both, f"{ROWS} x {SIZE}", build)
    build = partial(_loss, ff.entmax_loss, None, True, soft=True)
    yield _race("entmax_loss(1.5), probabilities", True, f"{ROWS} x {SIZE}", build)
    rows, features, classes = WORDS
    for reduction in ("mean", "none"):
        yield _race(
            f'linear_entmax_loss, "{reduction}"',
            True,
            f"{rows} x {features} x {classes}",
            partial(_linear, reduction),
        )


def _race(name: str, both: bool, size: str, build: Callable[[], Pair]) -> Case:
    what = f"{name} {'forward+backward' if both else 'forward'}, compiled"
    return Case(what=what, size=size, peer="eager", bar=1.2, build=build)


def _map(function: Function, value: float | None, both: bool) -> Pair:
    torch.manual_seed(0)
    given = [torch.randn(ROWS, SIZE), *([] if value is None else [torch.tensor(value)])]
    return _pair(function, given, both, torch.randn(ROWS, SIZE))


def _loss(function: Function, value: float | None, both: bool, soft: bool) -> Pair:
    torch.manual_seed(0)
    target = torch.randint(SIZE, (ROWS,))
    if soft:
        target = torch.softmax(3 * torch.randn(ROWS, SIZE), -1)
    given = [3 * torch.randn(ROWS, SIZE), *([] if value is None else [torch.tensor(value)])]
    return _pair(lambda scores, *more: function(scores, target, *more), given, both, None)


def _linear(reduction: str) -> Pair:
    torch.manual_seed(0)
    rows, features, classes = WORDS
    target = torch.randint(classes, (rows,))
    given = [torch.randn(rows, features), torch.randn(classes, features) * 3 / features**0.5]

    def function(hidden: Tensor, table: Tensor) -> Tensor:
        return ff.linear_entmax_loss(hidden, table, target, reduction=reduction)

    return _pair(function, given, True, torch.rand(rows) if reduction == "none" else None)


def _pair(function: Function, given: list[Tensor], both: bool, grad: Tensor | None) -> Pair:
    """Return the compiled and the eager function, each forward only or with gradients."""
    torch._dynamo.reset()
    leaves = [one.requires_grad_(both) for one in given]
    fast = torch.compile(function, fullgraph=True, dynamic=False)

    def call(one: Function) -> None:
        answer = one(*leaves)
        if both:
            torch.autograd.grad(answer, leaves, grad)

    call(fast)
    # One thread, by the time it computes: compiled calls are short next to the turns of others.
    return Pair(partial(call, fast), partial(call, function), clock=time.thread_time)


def _compile_time() -> Iterator[Case]:
    """Measure compilation with empty caches, including torch's C++ compiler."""
    for kind, name in (("linear", "linear layers"), ("transformer", "transformer layers")):
        what = f"compiling two {name} with learnt alphas"
        yield Case(
            what=what,
            size="4 x 32 x 64",
            peer=f"{COMPILE_SECONDS:g} processor-seconds",
            bar=1.0,
            build=partial(_compile_limit, kind),
        )
        yield Case(
            what=what,
            size="4 x 32 x 64",
            peer="the same with softmax",
            bar=1.2,
            build=partial(_compile_race, kind),
        )


def _compile_limit(kind: str) -> Peak:
    return Peak(_compile(kind, "learnt"), COMPILE_SECONDS, "seconds")


def _compile_race(kind: str) -> Peak:
    return Peak(_compile(kind, "learnt"), _compile(kind, "softmax"), "seconds")


def _compile(*arguments: str) -> float:
    """Return the CPU time of a new process and of the compilers it starts, with empty caches."""
    fresh = {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _COMPILE, *arguments],
        env={**os.environ, **fresh},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(run.stdout.split("seconds")[1])
