"""Regressions and rotations: kernels against the normal equations in double precision."""

import pytest
import torch
from torch import Tensor

from fewfold import _native
from fewfold.recommender import Jagged
from fewfold.recommender.models.least_squares import Rotated, diagonalise, regress
from tests.paths import kernels_only, on_path

# Around the widths of tiles (4, 8), vectors (8, 16), their multiples, and the chunk of 256 pairs.
WIDTHS = (1, 3, 8, 15, 16, 17, 31, 33, 48, 50, 64, 100)
LENGTHS = (0, 1, 2, 7, 8, 9, 15, 16, 17, 0, 31, 32, 33, 47, 48, 49, 63, 64, 65, 99, 100, 255, 257)


def problem(d: int, weighted: bool, items: int = 60) -> tuple[Jagged, Tensor, Tensor, Tensor]:
    """Rows of all lengths, a table, ridges, and weights or ones."""
    generator = torch.Generator().manual_seed(d)
    offsets = torch.tensor([0, *LENGTHS]).cumsum(0)
    values = torch.randint(items, (int(offsets[-1]),), generator=generator)
    table = torch.randn(items, d, generator=generator) / 2
    ridge = torch.rand(len(LENGTHS), generator=generator) + 0.1
    weights = torch.rand(len(values), generator=generator) * 3 + 0.1
    return Jagged(values, offsets), table, ridge, weights if weighted else torch.ones_like(weights)


def held(table: Tensor, gram: Tensor) -> Rotated:
    """A table with a Gram matrix that need not be its own."""
    return Rotated(table, gram, torch.eye(table.shape[1]))


def solved(rows: Jagged, table: Tensor, gram: Tensor, ridge: Tensor, weights: Tensor) -> Tensor:
    """The normal equations of each row, in double precision."""
    found = []
    for row in range(len(rows.lengths)):
        place = slice(int(rows.offsets[row]), int(rows.offsets[row + 1]))
        vectors, by = table[rows.values[place]].double(), weights[place].double()
        normal = vectors.T @ (by.unsqueeze(1) * vectors)
        normal += torch.diag(gram.double() + ridge[row].double())
        found.append(torch.linalg.solve(normal, vectors.T @ by))
    return torch.stack(found)


@pytest.mark.parametrize("path", ["native", "torch"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("d", WIDTHS)
def test_a_row_solves_its_normal_equations(d: int, weighted: bool, path: str) -> None:
    rows, table, ridge, weights = problem(d, weighted)
    gram = torch.linspace(0, 3, d)
    with on_path(path):
        found = regress(rows, held(table, gram), ridge, weights if weighted else None)
    assert found.dtype == torch.float32
    expected = solved(rows, table, gram, ridge, weights)
    error = (found - expected).norm(dim=1) / expected.norm(dim=1).clamp(min=1e-6)
    assert float(error.max()) < 2e-4
    assert not found[rows.lengths == 0].any()


@pytest.mark.parametrize("path", ["native", "torch"])
@pytest.mark.parametrize(("rows", "d"), [(0, 3), (1, 1), (5, 16), (700, 17), (8200, 40)])
def test_a_rotated_table_has_a_diagonal_gram_matrix(rows: int, d: int, path: str) -> None:
    table = torch.randn(rows, d, generator=torch.Generator().manual_seed(rows))
    if rows > 300:
        table = table @ torch.diag(torch.logspace(0, -3, d))
    with on_path(path):
        rotated, gram, by = diagonalise(table.clone())
    torch.testing.assert_close(table @ by, rotated, atol=1e-5, rtol=1e-5)
    size = float(table.norm()) ** 2 + 1e-9
    product = rotated.double().T @ rotated.double()
    torch.testing.assert_close(product / size, torch.diag(gram).double() / size, atol=3e-6, rtol=0)
    some = slice(0, 50)
    torch.testing.assert_close(
        rotated[some] @ rotated[some].T, table[some] @ table[some].T, atol=1e-4, rtol=1e-4
    )


def stepped(vectors: Tensor, by: Tensor, diagonal: Tensor, x: Tensor, width: int) -> Tensor:
    """One regression after one step in blocks of columns, in double precision."""
    vectors, by, diagonal, x = (each.double() for each in (vectors, by, diagonal, x.clone()))
    for start in range(0, len(x), width):
        block = slice(start, start + width)
        mine = vectors[:, block]
        slope = mine.T @ (by * (1 - vectors @ x)) - diagonal[block] * x[block]
        normal = mine.T @ (by.unsqueeze(1) * mine) + torch.diag(diagonal[block])
        x[block] += torch.linalg.solve(normal, slope)
    return x


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("d", "width"), [(64, 64), (65, 48), (96, 48), (97, 64), (130, 48)])
def test_a_long_row_takes_a_step_from_its_start(d: int, width: int, weighted: bool) -> None:
    """Rows of up to 96 pairs, and all rows of up to 64 columns, are solved; so is all in torch."""
    rows, table, ridge, weights = problem(d, weighted)
    generator = torch.Generator().manual_seed(1)
    gram, turn = torch.linspace(0, 3, d), torch.linalg.qr(torch.randn(d, d, generator=generator)).Q
    start = torch.randn(len(ridge), d, generator=generator)
    exact = solved(rows, table, gram, ridge, weights)
    expected = exact.clone()
    for row in ((rows.lengths > 96) & (d > 64)).nonzero().squeeze(1).tolist():
        place = slice(int(rows.offsets[row]), int(rows.offsets[row + 1]))
        of_row = table[rows.values[place]], weights[place], gram + ridge[row]
        expected[row] = stepped(*of_row, start[row] @ turn, width)
    others, mine = Rotated(table, gram, turn), weights if weighted else None
    for path, wanted in (("native", expected), ("torch", exact)):
        with on_path(path):
            found = regress(rows, others, ridge, mine, start.clone())
        error = (found - wanted).norm(dim=1) / wanted.norm(dim=1).clamp(min=1e-6)
        assert float(error.max()) < 3e-4


@pytest.mark.parametrize("d", [5, 16, 80])
def test_threads_do_not_change_a_bit(d: int) -> None:
    rows, table, ridge, weights = problem(d, weighted=True, items=9000)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            others = diagonalise(table.clone())
            start = [None, torch.ones(len(ridge), d)]
            solved = [regress(rows, others, ridge, weights, each) for each in start]
            found.append((*others, *solved))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


@pytest.mark.parametrize("path", ["native", "torch"])
def test_nothing_to_solve(path: str) -> None:
    nothing = torch.zeros(1, dtype=torch.int64)
    empty = Jagged(nothing[:0], nothing)
    with on_path(path):
        found = regress(empty, held(torch.ones(2, 3), torch.ones(3)), torch.empty(0))
        none = held(torch.empty(0, 3), torch.ones(3))
        alone = regress(Jagged(nothing[:0], nothing.repeat(3)), none, torch.ones(2))
    assert found.shape == (0, 3)
    assert alone.tolist() == [[0, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize("path", ["native", "torch"])
@pytest.mark.parametrize("copies", [5, 40])
def test_the_same_vector_many_times_and_hardly_a_ridge(copies: int, path: str) -> None:
    """As singular as it gets: the answer is finite and fits the target."""
    table = torch.full((1, 20), 3.0)
    rows = Jagged(torch.zeros(copies, dtype=torch.int64), torch.tensor([0, copies]))
    with on_path(path):
        found = regress(rows, held(table, torch.zeros(20)), torch.tensor([1e-3]))
    assert float((found @ table.T).squeeze()) == pytest.approx(1, abs=1e-3)


class TestRefusals:
    """What a kernel does not accept, by argument."""

    pytestmark = kernels_only

    def arguments(self) -> dict[str, object]:
        return {
            "offsets": torch.tensor([0, 1, 3]), "ids": torch.tensor([0, 1, 2]),
            "weights": torch.ones(3), "rows": 2, "table": torch.ones(3, 4), "items": 3, "d": 4,
            "gram": torch.ones(4), "ridge": torch.ones(2), "rotation": torch.eye(4),
            "out": torch.zeros(2, 4), "threads": 1,
        }  # fmt: skip

    @pytest.mark.parametrize(
        ("change", "error", "match"),
        [
            ({"offsets": torch.tensor([0, 2, 1])}, ValueError, "offsets must rise"),
            ({"offsets": torch.tensor([0, 1, 4])}, ValueError, "offsets must rise"),
            ({"ids": torch.tensor([0, 3, 1])}, IndexError, "ids must be between 0 and 2.* got 3"),
            ({"weights": torch.ones(2)}, ValueError, "weights must be .* at least 3"),
            ({"weights": torch.tensor([1, 0, 1.0])}, ValueError, "weights must be finite and abov"),
            ({"ridge": torch.tensor([0, 1.0])}, ValueError, "ridge must be finite and above 0"),
            ({"gram": torch.tensor([0, 1, -1.0, 1])}, ValueError, "gram .* at least 0"),
            ({"gram": torch.full((4,), torch.inf)}, ValueError, "gram must be finite"),
            ({"table": torch.ones(3, 4).double()}, TypeError, "table must be .* float32"),
            ({"out": torch.empty(2, 3)}, ValueError, "out must be .* at least 8"),
            ({"rotation": torch.eye(3)}, ValueError, "rotation must be .* at least 16"),
            ({"d": 0}, ValueError, "d must be at least 1"),
            ({"d": 4097}, ValueError, "at most 4096 columns, got 4097"),
        ],
    )
    def test_regress(self, change: dict[str, object], error: type, match: str) -> None:
        with pytest.raises(error, match=match):
            _native.kernels.regress(*(self.arguments() | change).values())  # type: ignore[union-attr]
        _native.kernels.regress(*self.arguments().values())  # type: ignore[union-attr]
