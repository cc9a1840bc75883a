"""Valid argument lists for every binding, of random sizes."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from fewfold import _native
from tests.fuzz.spoil import Rng

__all__ = ["RECIPES"]

Recipe = Callable[[Rng], tuple[Callable[..., object], list[object]]]
RECIPES: dict[str, Recipe] = {}
F64, I32, I64 = torch.float64, torch.int32, torch.int64


def size(rng: Rng, most: int = 9, least: int = 0) -> int:
    """A small size."""
    return int(rng.integers(least, most + 1))


def whole(rng: Rng, high: int, *shape: int, dtype: torch.dtype = I64) -> Tensor:
    """Whole numbers below `high`."""
    return torch.from_numpy(rng.integers(0, max(high, 1), shape)).to(dtype)


def real(rng: Rng, *shape: int, dtype: torch.dtype = F64) -> Tensor:
    """Normal numbers."""
    return torch.from_numpy(rng.standard_normal(shape)).to(dtype)


def offsets(rng: Rng, rows: int, most: int = 4) -> Tensor:
    """(rows + 1,) where lists begin."""
    return torch.nn.functional.pad(whole(rng, most, rows).cumsum(0), (1, 0))


def _empty(*shape: int, dtype: torch.dtype = F64) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


def recipe(*names: str) -> Callable[[Callable[..., list[object]]], Callable[..., list[object]]]:
    """Register what makes the arguments of bindings, of which a method is `Class.method`."""

    def keep(make: Callable[..., list[object]]) -> Callable[..., list[object]]:
        for name in names:
            RECIPES[name] = lambda rng, name=name: (  # type: ignore[misc]
                getattr(_native.kernels, name), make(rng, name),
            )  # fmt: skip
        return make

    return keep


def both(*stems: str) -> list[str]:
    """The names of kernels for both kinds of numbers."""
    return [f"{stem}_{suffix}" for stem in stems for suffix in ("f32", "f64")]


def kind(name: str) -> torch.dtype:
    """The dtype a kernel of this name works on."""
    return torch.float32 if name.endswith("f32") else F64


def _threads(rng: Rng) -> int:
    return size(rng, 3, 1)


# ---- maps ---------------------------------------------------------------------------------------


def _length(rng: Rng) -> int:
    return int(rng.choice([0, 1, 2, 7, 8, 17, 64, 65, 130, 2049, 4100]))


@recipe(*both("forward", "backward"))
def _map(rng: Rng, name: str) -> list[object]:
    rows, k, dtype = size(rng, 5), _length(rng), kind(name)
    each = real(rng, rows).sigmoid() / 2 + 1.4 if rng.random() < 0.3 else None
    room = 65 if rng.random() < 0.5 else 0
    places = torch.full((rows, room), -1, dtype=I32) if room else None
    parts = [real(rng, rows, k, dtype=dtype) for _ in range(3 if name[0] == "b" else 2)]
    member = [1.5, each, bool(rng.integers(2)), places, room, _threads(rng)]
    return [*parts, rows, k, *member]


@recipe("map_directly")
def _map_directly(rng: Rng, name: str) -> list[object]:
    dtype = torch.float32 if rng.random() < 0.5 else F64
    alpha = float(rng.choice([1.1, 1.5, 2.0]))
    scores = real(rng, size(rng, 5), _length(rng), dtype=dtype)
    return [scores, alpha, bool(rng.integers(2)), _threads(rng), None]


@recipe("map_known")
def _map_known(rng: Rng, name: str) -> list[object]:
    return _map_directly(rng, name)[:-1]


@recipe("pull_directly")
def _pull_directly(rng: Rng, name: str) -> list[object]:
    scores, *rest, _ = _map_directly(rng, name)
    return [scores, scores, *rest]


@recipe(*both("support"))
def _support(rng: Rng, name: str) -> list[object]:
    rows, k = size(rng, 5), _length(rng)
    return [real(rng, rows, k, dtype=kind(name)), rows, k, 1.5, None, False, _threads(rng)]


@recipe(*both("budget"))
def _budget(rng: Rng, name: str) -> list[object]:
    rows, k, dtype = size(rng, 5), _length(rng), kind(name)
    each = torch.ones(rows, dtype=F64) if rng.random() < 0.3 else None
    x = real(rng, rows, k, dtype=dtype)
    return [x, torch.empty_like(x), rows, k, 1.0, each, _threads(rng)]


@recipe(*both("budget_backward"))
def _budget_backward(rng: Rng, name: str) -> list[object]:
    rows, k = size(rng, 5), _length(rng)
    parts = [real(rng, rows, k, dtype=kind(name)) for _ in range(3)]
    return [*parts, rows, k, _threads(rng)]


@recipe(*both("tv_groups", "oscar_groups"))
def _groups(rng: Rng, name: str) -> list[object]:
    rows, k, dtype = size(rng, 5), _length(rng), kind(name)
    x, group = real(rng, rows, k, dtype=dtype), _empty(rows, k, dtype=I64)
    strength = real(rng, rows, dtype=dtype).abs()
    return [x, group, torch.empty_like(x), rows, k, strength, _threads(rng)]


@recipe(*both("scatter"))
def _scatter(rng: Rng, name: str) -> list[object]:
    rows, k, first = size(rng), size(rng, 9, 1), None
    first = offsets(rng, rows)
    n, dtype = int(first[-1]), kind(name)
    values = real(rng, n, dtype=dtype)
    return [whole(rng, k, n), values, first, _empty(rows, k, dtype=dtype), rows, k, _threads(rng)]


def _pushed(name: str) -> Recipe:
    def make(rng: Rng) -> tuple[Callable[..., object], list[object]]:
        rows, k = size(rng, 4), _length(rng)
        x = real(rng, rows, k, dtype=kind(name))

        def run(rows: int, alpha: float, most: int, *push: object) -> object:
            made = getattr(_native.kernels, name)(rows, alpha, most)
            made.push(*push)
            made.push(*push)
            return made.take()

        return run, [rows, 1.5, 50, x, k, k, size(rng, 3) * k, _threads(rng)]

    return make


for _name in both("Streams"):
    RECIPES[_name] = _pushed(_name)


# ---- sampling and picked rows -------------------------------------------------------------------


@recipe("draw")
def _draw(rng: Rng, name: str) -> list[object]:
    cells, books, width, rows, n = (size(rng, 20, 1) for _ in range(5))
    start = torch.nn.functional.pad(whole(rng, 3, cells).add(1).cumsum(0), (1, 0))
    items = int(start[-1])
    code, item = whole(rng, width, books, cells, dtype=I32), torch.arange(items, dtype=I32)
    alias = [torch.rand(items), whole(rng, items, items, dtype=I32), torch.zeros(items)]
    if rng.random() < 0.5:
        alias = [None, None, None]  # type: ignore[list-item]
    out = [_empty(rows, n, dtype=I64), torch.empty(rows, n), _empty(rows)]
    scores = real(rng, rows, width, dtype=torch.float32)
    index = [code, torch.zeros(cells), start, item, *alias]
    return [cells, books, *index, scores, width, rows, n, 7, 0, *out, _threads(rng)]


@recipe("mixture")
def _mixture(rng: Rng, name: str) -> list[object]:
    cells, books, width, rows = (size(rng, 20, 1) for _ in range(4))
    code = whole(rng, width, books, cells, dtype=I32)
    scores = real(rng, rows, width, dtype=torch.float32)
    index = [cells, books, code, torch.zeros(cells)]
    return [*index, scores, width, rows, torch.empty(cells), _threads(rng)]


@recipe("log_prob")
def _log_prob(rng: Rng, name: str) -> list[object]:
    cells, books, width, rows, items, n = (size(rng, 20, 1) for _ in range(6))
    code, cell_of = whole(rng, width, books, cells, dtype=I32), whole(rng, cells, items, dtype=I32)
    scores, mass = real(rng, rows, width, dtype=torch.float32), torch.zeros(items)
    asked = [_empty(rows), whole(rng, items, n), whole(rng, rows, n), n, torch.empty(n)]
    index = [cells, books, code, cell_of, items, mass]
    return [*index, scores, width, rows, *asked, _threads(rng)]


@recipe("nearest")
def _nearest(rng: Rng, name: str) -> list[object]:
    n, d, k = size(rng), size(rng, 9, 1), 16 * size(rng, 3, 1)
    points = real(rng, n, d + 2, dtype=torch.float32)[:, :d]
    centres, half = real(rng, d, k, dtype=torch.float32), torch.zeros(k)
    return [points, d + 2, n, d, centres, half, k, _empty(n, dtype=I64), _threads(rng)]


@recipe("thin")
def _thin(rng: Rng, name: str) -> list[object]:
    rows = size(rng)
    at = offsets(rng, rows)
    n = int(at[-1])
    return [whole(rng, 9, n), at, rows, 0.5, 3, _empty(n + 1, dtype=I64), torch.empty_like(at)]


@recipe("by_owner")
def _by_owner(rng: Rng, name: str) -> list[object]:
    rows, each, world = size(rng), size(rng), size(rng, 5, 1)
    at = offsets(rng, rows)
    n = int(at[-1])
    total = rows * each + n
    out = [_empty(total, dtype=I64), _empty(total, dtype=I64), _empty(world, rows, dtype=I64)]
    return [whole(rng, 9, rows, each), each, whole(rng, 9, n), at, rows, world, *out]


@recipe("alias_tables")
def _alias(rng: Rng, name: str) -> list[object]:
    cells = size(rng)
    at = offsets(rng, cells)
    n = int(at[-1])
    return [real(rng, n).abs(), at, cells, torch.empty(n), _empty(n, dtype=I32)]


@recipe(*both("picked_dots", "picked_pulls"))
def _picked(rng: Rng, name: str) -> list[object]:
    items, d, rows, each, dtype = size(rng, 9, 1), size(rng, 20), size(rng), size(rng), kind(name)
    at = offsets(rng, rows)
    n = int(at[-1])
    queries, table = real(rng, rows, d, dtype=dtype), real(rng, items, d, dtype=dtype)
    ids = [whole(rng, items, rows, each), each, whole(rng, items, n), at]
    by = [real(rng, rows, each, dtype=dtype), real(rng, n, dtype=dtype)]
    if "dots" in name:
        return [queries, table, items, d, rows, *ids, *by, _threads(rng)]
    out = [torch.zeros_like(queries), _empty(rows * each + n, d, dtype=dtype)]
    scale = real(rng, rows, dtype=dtype)
    return [queries, table, items, d, rows, *ids, by[0], scale, by[1], *out, _threads(rng)]


@recipe(*both("soften"))
def _soften(rng: Rng, name: str) -> list[object]:
    rows, n, dtype = size(rng), size(rng, 20), kind(name)
    stride = n if rng.random() < 0.5 else 0
    shift = real(rng, rows if stride else 1, n, dtype=dtype)
    scores = real(rng, rows, n, dtype=dtype)
    return [scores, rows, n, shift, stride, _empty(rows, dtype=dtype), _threads(rng)]


@recipe(*both("bags", "unbags"))
def _bags(rng: Rng, name: str) -> list[object]:
    items, d, rows, dtype = size(rng, 9, 1), size(rng, 20), size(rng), kind(name)
    at = offsets(rng, rows)
    n, by, dense = int(at[-1]), real(rng, rows, dtype=dtype), real(rng, rows, d, dtype=dtype)
    if "un" in name:
        return [dense, d, at, rows, by, _empty(n, d, dtype=dtype), _threads(rng)]
    table = real(rng, items, d, dtype=dtype)
    return [table, items, d, whole(rng, items, n), at, rows, by, dense, _threads(rng)]


# ---- the k best ---------------------------------------------------------------------------------


@recipe(*both("best_of"))
def _best_of(rng: Rng, name: str) -> list[object]:
    rows, n, base, k, dtype = size(rng), size(rng, 20), size(rng), size(rng, 5, 1), kind(name)
    at = offsets(rng, rows)
    heaps = [_empty(rows, k, dtype=dtype), _empty(rows, k, dtype=I64), _empty(rows, dtype=I64)]
    excluded, allowed = whole(rng, n + base, int(at[-1])), torch.ones(base + n, dtype=torch.bool)
    scores = real(rng, rows, n, dtype=dtype)
    return [scores, rows, n, base, k, *heaps, excluded, at, allowed, _threads(rng)]


@recipe(*both("best_sorted"))
def _best_sorted(rng: Rng, name: str) -> list[object]:
    rows, k, dtype = size(rng), size(rng, 9), kind(name)
    heaps = [real(rng, rows, k, dtype=dtype), whole(rng, 99, rows, k), whole(rng, k + 1, rows)]
    return [rows, k, *heaps, _threads(rng)]


def _catalogue(rng: Rng) -> tuple[Callable[..., object], list[object]]:
    items, d, k, rows = size(rng, 20, 1), size(rng, 9, 1), size(rng, 5, 1), size(rng, 5)
    vectors = real(rng, items, d, dtype=torch.float32)
    code, at = whole(rng, 100, items, 32, dtype=torch.int8), offsets(rng, rows)
    asked = [real(rng, rows, d, dtype=torch.float32), rows, k, whole(rng, items, int(at[-1])), at]
    asked += [torch.ones(items, dtype=torch.bool)]
    asked += [_empty(rows, k, dtype=torch.float32), _empty(rows, k, dtype=I64)]

    def run(*arguments: object) -> object:
        made = _native.kernels.Catalogue(*arguments[:9])  # type: ignore[union-attr]
        return made.best(*arguments[9:])

    step, slack, reach = (torch.rand(items) for _ in range(3))
    made = [vectors, items, d, code, 32, step, slack, torch.ones(d), reach]
    return run, [*made, *asked, _threads(rng)]


RECIPES["Catalogue"] = _catalogue


def _sessions(rng: Rng) -> tuple[Callable[..., object], list[object]]:
    sessions, items, longest, n = size(rng, 9), size(rng, 9, 1), size(rng, 5, 1), size(rng, 5, 1)
    at, starts, rows = offsets(rng, sessions, longest + 1), offsets(rng, items), size(rng)
    if sessions == 0:  # there is no session that an entry could name
        starts = torch.zeros_like(starts)
    entries, asked, gone = int(starts[-1]), offsets(rng, rows), offsets(rng, rows)
    index = [whole(rng, high, entries, dtype=I32) for high in (sessions, longest)]
    made = [at, whole(rng, items, int(at[-1]), dtype=I32), starts, *index]
    query = [asked, whole(rng, items, int(asked[-1])), real(rng, int(asked[-1])).exp()]
    near, allowed = torch.rand(2 * longest - 1), torch.ones(items, dtype=torch.bool)
    excluded = [whole(rng, items, int(gone[-1])), gone]
    answer = [_empty(rows, n, dtype=I64), _empty(rows, n, dtype=torch.float32)]

    def run(*arguments: object) -> object:
        made = _native.kernels.Sessions(*arguments[:8])  # type: ignore[union-attr]
        return made.rank(*arguments[8:])

    wanted = [rows, *query, near, size(rng, 5, 1), *excluded, allowed, n, *answer, _threads(rng)]
    return run, [sessions, items, longest, *made, *wanted]


RECIPES["Sessions"] = _sessions


# ---- sparse item-to-item models -----------------------------------------------------------------


@recipe("rank_rows_i32", "rank_rows_i64")
def _rank_rows(rng: Rng, name: str) -> list[object]:
    items, users, k = size(rng, 9, 1), size(rng), size(rng, 5, 1)
    start, history, gone = offsets(rng, items), offsets(rng, users), offsets(rng, users)
    ids = whole(rng, items, int(start[-1]), dtype=I32 if name.endswith("i32") else I64)
    rows = [start, ids, real(rng, len(ids), dtype=torch.float32), items]
    allowed = torch.ones(items, dtype=torch.bool) if rng.random() < 0.5 else None
    queries = [whole(rng, items, int(history[-1])), history]
    excluded = [whole(rng, items, int(gone[-1])), gone]
    answer = [_empty(users, k, dtype=I64), _empty(users, k, dtype=torch.float32)]
    done = _empty(users, dtype=torch.bool)
    return [*rows, *queries, *excluded, allowed, k, *answer, done, _threads(rng)]


def _log(rng: Rng) -> tuple[Tensor, list[object]]:
    """A random (users, items) mask, and its pairs by user and by item as the kernels take them."""
    mask = torch.from_numpy(rng.random((size(rng, 9, 1), size(rng, 9, 1))) < 0.4)
    by_user, by_item = (torch.nn.functional.pad(mask.sum(d).cumsum(0), (1, 0)) for d in (1, 0))
    pairs = [by_user, mask.nonzero()[:, 1].clone(), by_item, mask.T.nonzero()[:, 1].to(I32)]
    return mask, pairs


@recipe("count_shared_users")
def _count_shared_users(rng: Rng, name: str) -> list[object]:
    mask, pairs = _log(rng)
    items = mask.shape[1]
    first = size(rng, items)
    sizes = [_empty(items + 1, dtype=I64), _empty(items + 1, dtype=I64)]
    return [*pairs, first, size(rng, items, first), *sizes, _threads(rng)]


@recipe("shared_users_u8", "shared_users_i16")
def _shared_users(rng: Rng, name: str) -> list[object]:
    mask, pairs = _log(rng)
    start, steps = _steps(mask, pairs, name)
    return [*pairs, 0, mask.shape[1], start, steps, _threads(rng)]


def _steps(mask: Tensor, pairs: list[object], name: str) -> tuple[Tensor, Tensor]:
    """Offsets of the steps of each item, and space for them."""
    items = mask.shape[1]
    sizes = {"u8": _empty(items + 1, dtype=I64), "i16": _empty(items + 1, dtype=I64)}
    _native.kernels.count_shared_users(*pairs, 0, items, *sizes.values(), 1)  # type: ignore[union-attr]
    suffix = name.rpartition("_")[2]
    start = sizes[suffix].cumsum(0)
    dtype = torch.uint8 if suffix == "u8" else torch.int16
    return start, torch.zeros(int(start[-1]), 2, dtype=dtype)


def _sparse_ridge(name: str) -> Recipe:
    def make(rng: Rng) -> tuple[Callable[..., object], list[object]]:
        mask, pairs = _log(rng)
        start, steps = _steps(mask, pairs, name)
        write = getattr(_native.kernels, name.replace("SparseRidge", "shared_users"))
        write(*pairs, 0, mask.shape[1], start, steps, 1)
        items, width = mask.shape[1], size(rng, 5, 1)
        made = [
            start,
            steps,
            mask.sum(0).float(),
            *pairs[2:],
            len(mask),
            0.5,
            width,
            size(rng, 4, 1),
        ]
        ids, weights = _empty(items, width, dtype=I32), _empty(items, width, dtype=torch.float32)

        def run(*arguments: object) -> object:
            return getattr(_native.kernels, name)(*arguments[:9]).solve(*arguments[9:])

        return run, [*made, 0, items, ids, weights, _empty(items, dtype=I64), _threads(rng)]

    return make


for _name in ("SparseRidge_u8", "SparseRidge_i16"):
    RECIPES[_name] = _sparse_ridge(_name)


# ---- factorization ------------------------------------------------------------------------------


@recipe("regress")
def _regress(rng: Rng, name: str) -> list[object]:
    rows, items, d = size(rng), size(rng, 9, 1), size(rng, 100, 1)
    at, f32 = offsets(rng, rows, 150), torch.float32
    pairs = int(at[-1])
    weights = real(rng, pairs, dtype=f32).abs() + 0.1 if rng.random() < 0.5 else None
    table, gram = real(rng, items, d, dtype=f32), real(rng, d, dtype=f32).abs()
    ridge = real(rng, rows, dtype=f32).abs() + 0.1
    rotation = torch.eye(d) if rng.random() < 0.5 else None
    found = [table, items, d, gram, ridge, rotation, torch.zeros(rows, d)]
    return [at, whole(rng, items, pairs), weights, rows, *found, _threads(rng)]


@recipe("gram")
def _gram(rng: Rng, name: str) -> list[object]:
    rows, d = size(rng, 300), size(rng, 40, 1)
    return [real(rng, rows, d, dtype=torch.float32), rows, d, _empty(d, d), _threads(rng)]


@recipe("multiply_rows")
def _multiply_rows(rng: Rng, name: str) -> list[object]:
    rows, d = size(rng, 30), size(rng, 40, 1)
    table, by = (real(rng, n, d, dtype=torch.float32) for n in (rows, d))
    return [table, rows, d, by, _threads(rng)]


# ---- anchors ------------------------------------------------------------------------------------


def _table(rng: Rng, dtype: torch.dtype) -> tuple[int, int, int, Tensor, Tensor]:
    """Anchors, rows and terms of each, weights and slots."""
    k, rows, s = size(rng, 9, 1), size(rng, 20, 1), size(rng, 4, 1)
    stored = (torch.uint8, torch.int16, I32)[size(rng, 2)]
    return k, rows, s, real(rng, rows, s, dtype=dtype), whole(rng, k, rows, s, dtype=stored)


@recipe(*both("mix"))
def _mix(rng: Rng, name: str) -> list[object]:
    dtype, d = kind(name), size(rng, 20)
    k, rows, s, weight, slots = _table(rng, dtype)
    bags, at, by = size(rng), None, None
    n = bags
    if rng.random() < 0.5:
        at, by = offsets(rng, bags), real(rng, bags, dtype=dtype)
        n = int(at[-1])
    out = [_empty(n, s, dtype=dtype), _empty(n, s, dtype=I32), _empty(bags, d, dtype=dtype)]
    table = [real(rng, k, d, dtype=dtype), k, d, weight, slots, rows, s]
    return [*table, whole(rng, rows, n), n, at, by, bags, *out, _threads(rng)]


@recipe(*both("unmix", "blend"))
def _unmix(rng: Rng, name: str) -> list[object]:
    dtype, d, k, bags = kind(name), size(rng, 20, 1), size(rng, 9, 1), size(rng)
    at, s = offsets(rng, bags), 1 if "blend" in name else size(rng, 3, 1)
    n, anchors = int(at[-1]), real(rng, k, d, dtype=dtype)
    terms, slot = real(rng, n, s, dtype=dtype), whole(rng, k, n, s, dtype=I32)
    dense = real(rng, bags, d, dtype=dtype)
    if "blend" in name:
        return [anchors, d, terms, slot, at, bags, dense, _threads(rng)]
    out = [torch.empty_like(terms), torch.zeros_like(anchors)]
    return [anchors, d, terms, slot, s, at, None, bags, dense, *out, _threads(rng)]


@recipe(*both("tied", "untied", "untied_pull"))
def _tied(rng: Rng, name: str) -> list[object]:
    dtype, width = kind(name), 16 * size(rng, 2, 1)
    k, rows, s, weight, slots = _table(rng, dtype)
    queries = size(rng, 40)
    turned = real(rng, -(-queries // width), k, width, dtype=dtype)
    dense, marks = real(rng, queries, rows, dtype=dtype), _empty(rows, dtype=torch.uint8)
    shape = [queries, width, k]
    if name.startswith("tied"):
        return [turned, *shape, weight, slots, rows, s, dense, _threads(rng)]
    if "pull" in name:
        marks = marks + 1
        tail = [dense, 0.0, marks, torch.zeros_like(turned)]
        return [*shape, weight, slots, rows, s, *tail, _threads(rng)]
    found = [_empty(rows, dtype=I64), _empty(rows, s, dtype=dtype)]
    return [turned, *shape, slots, rows, s, dense, 0.0, marks, *found, _threads(rng)]


@recipe(*both("mixed_dots", "mixed_pulls"))
def _mixed(rng: Rng, name: str) -> list[object]:
    dtype, queries, each = kind(name), size(rng), size(rng, 4)
    k, rows, s, weight, slots = _table(rng, dtype)
    at = offsets(rng, queries)
    n = queries * each + int(at[-1])
    terms, slot = _empty(n, s, dtype=dtype), whole(rng, k, n, s, dtype=I32)
    scores = [real(rng, queries, each, dtype=dtype), real(rng, int(at[-1]), dtype=dtype)]
    projected = real(rng, queries, k, dtype=dtype)
    if "dots" in name:
        ids = whole(rng, rows, n)
        table = [projected, k, queries, weight, slots, rows, s, ids, each, n, at]
        return [*table, terms, slot, *scores, _threads(rng)]
    scale, out = real(rng, queries, dtype=dtype), [torch.zeros_like(projected), terms.clone()]
    head = [projected, k, queries, s, each, at, terms, slot]
    return [*head, scores[0], scale, scores[1], *out, _threads(rng)]


# ---- optimisers and densities -------------------------------------------------------------------

_RULES = ("sgd", "momentum", "adagrad", "adam", "adam_by_row", "scale_by_row", "yogi")


@recipe(*both(*(f"{what}_{rule}" for what in ("touch", "pay") for rule in _RULES)))
def _touch(rng: Rng, name: str) -> list[object]:
    rows, width, n, dtype = size(rng, 9, 1), size(rng, 20), size(rng), kind(name)
    pays, all_rows = name.startswith("pay"), rng.random() < 0.2
    n = rows if all_rows else n
    index = None if all_rows else whole(rng, rows, n)
    if pays and index is not None:
        index = index.unique()
        n = len(index)
    given = real(rng, n, dtype=dtype) if pays else real(rng, n, width, dtype=dtype)
    state = [real(rng, rows, width, dtype=dtype), torch.rand(rows, 2, width).to(dtype)]
    state += [whole(rng, 5, rows, dtype=I32) + 1, torch.rand(rows).to(dtype)]
    plain = rng.random() < 0.5
    update = _native.kernels.Update(  # type: ignore[union-attr]
        lr=0.1, beta1=0.5, beta2=0.5, l1=0.1, eps=1e-3, adam_eps=not plain
    )
    return [index, given, n, rows, width, *state, update, _threads(rng)]


@recipe(*both("expected_products"))
def _expected(rng: Rng, name: str) -> list[object]:
    rows, n, dtype = size(rng, 4), size(rng, 20), kind(name)
    shift, slope = real(rng, rows, n, dtype=dtype), real(rng, rows, n, dtype=dtype)
    return [shift, slope, rows, n, _empty(rows, dtype=dtype), _threads(rng)]


@recipe(*both("log_densities"))
def _densities(rng: Rng, name: str) -> list[object]:
    rows, n, dtype = size(rng, 4), size(rng, 9, 1), kind(name)
    y = real(rng, rows, n, dtype=dtype).softmax(1)
    loc, scale = real(rng, 1, n, dtype=dtype), real(rng, rows, n, dtype=dtype).abs() + 0.1
    return [y, n, loc, 0, scale, n, rows, n, _empty(rows, dtype=dtype), _threads(rng)]


@recipe(*both("bernoulli_costs", "bernoulli_pulls"))
def _bernoulli(rng: Rng, name: str) -> list[object]:
    pairs, rows, n, dtype = size(rng, 6), size(rng, 4, 1), size(rng, 20), kind(name)
    given = [real(rng, pairs, n, dtype=dtype), real(rng, rows, n, dtype=dtype).sigmoid()]
    given += [whole(rng, rows, pairs)]
    one, many = _empty(pairs, dtype=dtype), _empty(pairs, n, dtype=dtype)
    outputs = [one, many if rng.random() < 0.5 else None]
    if "pulls" in name:
        outputs = [real(rng, pairs, dtype=dtype), many]
    return [*given, pairs, rows, n, *outputs, _threads(rng)]


@recipe("count_byte", "leading_zeros")
def _text(rng: Rng, name: str) -> list[object]:
    return [rng.integers(44, 58, size(rng, 300), dtype=np.uint8).tobytes(), 44]


@recipe("large_pages")
def _pages(rng: Rng, name: str) -> list[object]:
    return [torch.empty(size(rng) * 2**18)]
