"""Every torch transform as a check of a function of one tensor, and the table of what passes.

`tests/MODULE/transforms.py` holds the `Table` of a module, `tests/MODULE/test_transforms.py` runs
it, and `python -m tests.MODULE.transforms FILE` writes it for the documentation.
"""

import functools
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

D = torch.float64
Function = Callable[[Tensor], Tensor]
WARNINGS = pytest.mark.filterwarnings("ignore:.*:Warning")  # of the compilers, about themselves


@dataclass(frozen=True)
class Table:
    """Rows with a name, checks of a row in the order of columns, and what is known to fail."""

    what: str
    rows: Sequence[Any]
    checks: dict[str, Callable[[Any], None]]
    limits: dict[tuple[str, str], str] = field(default_factory=dict)
    """(row, check) that cannot work, and why. Its test must then fail, and the table says so."""
    distinct: Sequence[str] = ()
    """Variants of a row with code of their own."""

    def known(self, row: Any, check: str, request: pytest.FixtureRequest) -> None:
        """Tell pytest if this must fail."""
        reason = self.limits.get((row.name, check))
        if reason:
            request.applymarker(pytest.mark.xfail(reason=reason, strict=True))

    def traced(self) -> pytest.MarkDecorator:
        """Each check of `TRACED` on the rows that it is made for in tests.

        One row of a kind is compiled, the others are exported; `make tables` does all. At night
        comes what is known to fail, and the export of variants ("name, variant") of a row.
        """
        names = {row.name for row in self.rows}

        def at_night(row: Any, name: str) -> bool:
            known = (row.name, name) in self.limits
            start, _, variant = row.name.partition(", ")
            same = bool(variant) and start in names and row.name not in self.distinct
            return known or (same and not row.wide)

        return pytest.mark.parametrize(
            ("case", "name"),
            [
                pytest.param(
                    row, name, id=f"{row.name}-{name}",
                    marks=pytest.mark.nightly if at_night(row, name) else (),
                )
                for row in self.rows
                for name in TRACED
                if row.wide or name == "export"
            ],
        )  # fmt: skip

    def promised(self) -> str:
        """The table when every check passes except the known limits."""
        return self._written(lambda row, check: (row.name, check) not in self.limits)

    def measured(self) -> str:
        """The table from running every check now."""

        def passed(row: Any, check: str) -> bool:
            try:
                self.checks[check](row)
            except Exception as error:
                first = str(error).strip().splitlines()[:1]
                print(f"{row.name}, {check}: {type(error).__name__} {first}", file=sys.stderr)
                return False
            return True

        return self._written(passed)

    def _written(self, passed: Callable[[Any, str], bool]) -> str:
        """One line per row, one column per check, and a note for each reason."""
        lines = [
            f"| {self.what} | " + " | ".join(self.checks) + " |",
            "|" + "---|" * (len(self.checks) + 1),
        ]
        notes: list[str] = []
        for row in self.rows:
            cells = []
            for check in self.checks:
                if passed(row, check):
                    cells.append("yes")
                    continue
                reason = self.limits.get((row.name, check), "fails")
                if reason not in notes:
                    notes.append(reason)
                cells.append(f"no ({notes.index(reason) + 1})")
            lines.append(f"| `{row.name}` | " + " | ".join(cells) + " |")
        lines += ["", *(f"{i}. {note[0].upper()}{note[1:]}." for i, note in enumerate(notes, 1))]
        return "\n".join(lines).rstrip() + "\n"

    def main(self) -> None:
        """Write what is measured to the file that was named, or show it."""
        torch.set_num_threads(1)
        text = self.measured()
        if len(sys.argv) > 1:
            Path(sys.argv[1]).write_text(text)
        else:
            print(text, end="")


@dataclass(frozen=True)
class Case:
    """A row: a module of one input, of `shape` without its batch."""

    name: str
    build: Callable[[], nn.Module]
    wide: bool = False  # whether it is compiled to machine code, as one of its kind
    shape: tuple[int, ...] = (6, 4)
    draws: bool = False  # whether there is noise in it, which each dtype has of its own

    def module(self, dtype: torch.dtype = D) -> nn.Module:
        torch.manual_seed(0)
        return self.build().to(dtype).eval()

    def function(self, dtype: torch.dtype = D) -> Function:
        return seeded(self.module(dtype))

    def data(self, *batch: int, dtype: torch.dtype = D, seed: int = 0) -> Tensor:
        g = torch.Generator().manual_seed(seed)
        return torch.randn(*batch, *self.shape, generator=g, dtype=D).to(dtype)


def seeded(function: Function) -> Function:
    """The same with the same noise in every call, so that draws are a function of parameters."""

    def call(given: Tensor) -> Tensor:
        torch.manual_seed(0)
        return function(given)

    return call


def total(function: Function, given: Tensor) -> Tensor:
    """A number with a gradient that is nowhere the same."""
    out = function(given)
    waves = torch.cos(1.7 * torch.arange(out.numel(), dtype=D) + 0.3)  # vmap draws no numbers
    return (out * waves.view(out.shape).to(out)).sum()


def slope(function: Function, given: Tensor) -> Tensor:
    leaf = given.detach().clone().requires_grad_()
    with torch.enable_grad():
        return torch.autograd.grad(total(function, leaf), leaf)[0]


def nudged(function: Function, given: Tensor, direction: Tensor, step: float = 1e-5) -> Tensor:
    """The derivative in a direction, by central differences."""
    with torch.no_grad():
        return (function(given + step * direction) - function(given - step * direction)) / (
            2 * step
        )


def close(got: Tensor, want: Tensor, tolerance: float = 1e-6) -> None:
    torch.testing.assert_close(got, want.to(got.dtype), atol=tolerance, rtol=tolerance)


# The checks, in the order of the table -----------------------------------------------------------


def backward(case: Case) -> None:
    function, given, direction = case.function(), case.data(3), case.data(3, seed=2)
    want = nudged(lambda x: total(function, x), given, direction)
    close((slope(function, given) * direction).sum(), want)


def double_backward(case: Case) -> None:
    function, given, direction = (
        case.function(),
        case.data(2).requires_grad_(),
        case.data(2, seed=2),
    )
    (first,) = torch.autograd.grad(total(function, given), given, create_graph=True)
    # what is linear in places has a constant gradient there, and no graph behind it
    (second,) = torch.autograd.grad((first * direction + 0 * given).sum(), given)
    close(second, nudged(lambda x: slope(function, x), given.detach(), direction), 1e-4)


def gradcheck(case: Case) -> None:
    given = case.data(1).requires_grad_()
    assert torch.autograd.gradcheck(case.function(), given, check_batched_grad=True)


def gradgradcheck(case: Case) -> None:
    assert torch.autograd.gradgradcheck(
        case.function(), case.data(1).requires_grad_(), fast_mode=True
    )


def autocast(case: Case) -> None:
    function, given = case.function(torch.float32), case.data(3, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, moved = function(given), slope(lambda x: function(x).float(), given)
    assert out.isfinite().all()
    assert moved.dtype == torch.float32
    close(out.double(), function(given).double(), 0.15)


def half(case: Case) -> None:
    for dtype, rounding in ((torch.float16, 0.02), (torch.bfloat16, 0.15)):
        module, given = case.module(dtype), case.data(3).to(dtype)
        out = seeded(module)(given)
        assert out.dtype == dtype
        assert out.isfinite().all()
        if not case.draws:
            close(out.double(), seeded(module.double())(given.double()), rounding)
        assert slope(case.function(dtype), given).isfinite().all()


def forward_mode(case: Case) -> None:
    function, given, tangent = case.function(), case.data(3), case.data(3, seed=2)
    with forward_ad.dual_level():
        moved = forward_ad.unpack_dual(function(forward_ad.make_dual(given, tangent))).tangent
    close(moved, nudged(function, given, tangent))
    close(torch.func.jvp(function, (given,), (tangent,))[1], moved)


def func_grad(case: Case) -> None:
    function, given = case.function(), case.data(3)
    close(torch.func.grad(lambda x: total(function, x))(given), slope(function, given))


def func_vmap(case: Case) -> None:
    function, given = case.function(), case.data(3, 2)
    mapped = functools.partial(torch.vmap, randomness="same")
    for dim in (0, 1):
        want = torch.stack([function(one) for one in given.unbind(dim)], dim)
        close(mapped(function, in_dims=dim, out_dims=dim)(given), want, 1e-9)
    slopes = mapped(torch.func.grad(lambda x: total(function, x)))(given)
    close(slopes, torch.stack([slope(function, one) for one in given]), 1e-9)


def func_jacobians(case: Case) -> None:
    function, given = case.function(), case.data()
    reverse = torch.func.jacrev(function)(given)
    forward = torch.func.jacfwd(function, randomness="same")(given)
    close(reverse, forward, 1e-8)
    eye = torch.eye(given.numel(), dtype=D).view(-1, *given.shape)
    want = torch.stack([nudged(function, given, direction) for direction in eye], -1)
    close(reverse.reshape(want.shape), want)


def func_hessian(case: Case) -> None:
    function, given, direction = case.function(), case.data(), case.data(seed=2)
    first = torch.func.jacrev(lambda x: total(function, x))
    found = torch.func.jacfwd(first, randomness="same")(given)  # which is what func.hessian does
    want = nudged(lambda x: slope(function, x), given, direction)
    close((found * direction).sum([-1 - i for i in range(given.dim())]), want, 1e-4)


def compiled(case: Case) -> None:
    torch._dynamo.reset()
    # the graph is what may fail; code is made of it for one row of a kind, as that takes minutes
    backend = "inductor" if case.wide else "aot_eager"
    module, given = case.module(torch.float32), case.data(3, dtype=torch.float32)
    # noise of torch and not of the compiler, so that there is something to compare
    options = {"fallback_random": True} if backend == "inductor" else None
    fast = torch.compile(module, fullgraph=True, dynamic=False, backend=backend, options=options)
    function, fast = seeded(module), seeded(fast)
    close(slope(fast, given), slope(function, given), 1e-4)
    close(fast(given), function(given), 1e-5)


def compiled_dynamic(case: Case) -> None:
    torch._dynamo.reset()
    module = case.module(torch.float32)
    fast = seeded(torch.compile(module, fullgraph=True, dynamic=True, backend="aot_eager"))
    for rows in (3, 5, 2):
        given = case.data(rows, dtype=torch.float32, seed=rows)
        close(slope(fast, given), slope(seeded(module), given), 1e-4)


@functools.lru_cache(maxsize=1)
def program(case: Case) -> torch.export.ExportedProgram:
    """For any number of rows; tracing takes longest, so that the next check finds it here."""
    shapes = ({0: torch.export.Dim("rows")},)
    given = case.data(3, dtype=torch.float32)
    return torch.export.export(case.module(torch.float32), (given,), dynamic_shapes=shapes)


def exported(case: Case) -> None:
    function, made = case.function(torch.float32), seeded(program(case).module())
    for rows in (3, 5):
        given = case.data(rows, dtype=torch.float32, seed=rows)
        close(made(given), function(given), 1e-5)


def onnx(case: Case) -> None:
    function = case.function(torch.float32)
    run = onnx_session(program(case))
    for rows in (3, 5):
        given = case.data(rows, dtype=torch.float32, seed=rows)
        close(run(given), function(given), 1e-5)


def onnx_session(program: torch.export.ExportedProgram) -> Function:
    """The program in the ONNX format, run by its runtime."""
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")  # the exporter and its libraries warn about themselves
        path = Path(folder) / "program.onnx"
        torch.onnx.export(program, (), path, dynamo=True, verbose=False)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 3
        session = onnxruntime.InferenceSession(path, options)
    name = session.get_inputs()[0].name
    return lambda given: torch.from_numpy(session.run(None, {name: given.numpy()})[0])


EAGER: dict[str, Callable[[Case], None]] = {
    "backward": backward,
    "double backward": double_backward,
    "gradcheck": gradcheck,
    "gradgradcheck": gradgradcheck,
    "autocast": autocast,
    "fp16, bf16": half,
}

FUNCTIONAL: dict[str, Callable[[Case], None]] = {
    "forward mode": forward_mode,
    "func.grad": func_grad,
    "vmap": func_vmap,
    "jacrev, jacfwd": func_jacobians,
    "hessian": func_hessian,
}

TRACED: dict[str, Callable[[Case], None]] = {
    "compile": compiled,
    "compile, dynamic": compiled_dynamic,
    "export": exported,
    "ONNX": onnx,
}

CHECKS = EAGER | FUNCTIONAL | TRACED
