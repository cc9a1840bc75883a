"""Sparse coding of a dense table and dictionary learning (k-SVD)."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fewfold._check import check_scores, whole_number
from fewfold._progress import over
from fewfold._random import randperm
from fewfold.embeddings.coding.matching_pursuit import precise, pursue
from fewfold.embeddings.coding.spread_rows import spread_rows

__all__ = ["Coding", "learn_dictionary", "nearest_code", "sparse_code"]

_BLOCK_SIZE = 2**22  # maximum number of elements per temporary array


@dataclass(frozen=True, eq=False)
class Coding:
    """Sparse code of a table: row v is `weights[v] @ anchors[slots[v]]`.

    Attributes:
        anchors: of unit length, (anchors, d).
        weights: (rows, width); zero where a row needs fewer.
        slots: which anchors, distinct and rising along a row, int64 (rows, width).
        error: relative error `|table - weights anchors| / |table|`, Frobenius.
    """

    anchors: Tensor
    weights: Tensor
    slots: Tensor
    error: float


def sparse_code(
    table: Tensor, dictionary: Tensor, width: int, *, signed: bool = False
) -> tuple[Tensor, Tensor]:
    r"""Code every row by at most `width` rows of a dictionary.

    Orthogonal matching pursuit for :math:`\min_t |e - t A|^2` with at most `width` non-zeros in
    `t`, and `t >= 0` unless `signed`: the anchor that fits the rest best joins, then all weights
    are fitted again. Without signs that fit is the active-set method of Lawson and Hanson: an
    anchor whose weight would turn negative leaves and makes room for another.

    Args:
        table: (rows, d).
        dictionary: (anchors, d), of any length; a zero anchor gets no weight.
        width: maximum number of anchors per row.
        signed: whether weights may be negative.

    Returns:
        Weights (rows, width) in the dtype of the table and slots, int64 (rows, width), distinct and
        rising along a row. A row that needs fewer anchors has zero weights.

    Example:
        >>> rows = torch.tensor([[0.0, 2.0, -5.0]])
        >>> sparse_code(rows, torch.eye(3), 2)
        (tensor([[0., 2.]]), tensor([[0, 1]]))
        >>> sparse_code(rows, torch.eye(3), 2, signed=True)
        (tensor([[ 2., -5.]]), tensor([[1, 2]]))

    Reference: Pati, Rezaiifar and Krishnaprasad (1993); Bruckstein, Elad and Zibulevsky (2008).
    """
    _check(table, dictionary, width)
    parts = [
        pursue(rows, dictionary.detach(), width, signed)
        for rows in _blocks(table, len(dictionary), width)
    ]
    return _joined(parts, table)


def nearest_code(
    table: Tensor, anchors: Tensor, width: int, *, signed: bool = True
) -> tuple[Tensor, Tensor]:
    """Code every row by its `width` nearest anchors, weighted by least squares.

    A simple compression of a trained table, known as post-sparse hash: Euclidean distances select
    the anchors and only their weights are fitted. `sparse_code` selects by the residual, and
    `learn_dictionary` also fits the anchors.

    Args:
        table: (rows, d).
        anchors: (anchors, d).
        width: number of anchors per row.
        signed: whether weights may be negative.

    Returns:
        Weights and slots as of `sparse_code`.

    Example:
        >>> nearest_code(torch.tensor([[2.0, 1.0]]), torch.tensor([[1.0, 0], [0, 1], [9, 9]]), 2)
        (tensor([[2., 1.]]), tensor([[0, 1]]))
    """
    _check(table, anchors, width)
    anchors = anchors.detach().to(precise(table))
    half = anchors.square().sum(1) / 2
    parts = []
    for rows in _blocks(table, len(anchors), width):
        near = (half - rows.to(half.dtype) @ anchors.T).topk(width, largest=False).indices
        allowed = torch.zeros(len(rows), len(anchors), dtype=torch.bool, device=table.device)
        parts.append(pursue(rows, anchors, width, signed, allowed.scatter_(1, near, True)))
    return _joined(parts, table)


def learn_dictionary(
    table: Tensor,
    anchors: int,
    width: int,
    *,
    signed: bool = False,
    rounds: int = 10,
    sample: int = 2**16,
    generator: torch.Generator | None = None,
) -> Coding:
    r"""Learn anchors such that every row of a table is close to a combination of `width` of them.

    Alternates two steps: each row gets a new sparse code if its error is smaller, then each anchor
    and its weights are fitted to the residual of the others. The latter is k-SVD with one step of
    the power method per anchor, its weights clipped at zero unless `signed`. Anchors are
    initialised as by k-means++, and unused ones are replaced by the rows with the largest error.
    The error never increases.

    Args:
        table: (rows, d).
        anchors: number of anchors, at most the number of rows.
        width: at most so many anchors per row.
        signed: whether weights may be negative; then this is k-SVD proper.
        rounds: number of alternations.
        sample: maximum number of random rows to learn anchors from; all rows are coded.
        generator: for the initial anchors and the sample.

    Returns:
        A `Coding`.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> table = torch.randn(200, 6, generator=generator)
        >>> coding = learn_dictionary(table, 12, 3, generator=generator)
        >>> coding.anchors.shape, coding.slots.shape, coding.error < 0.4
        (torch.Size([12, 6]), torch.Size([200, 3]), True)

    Reference: Aharon, Elad and Bruckstein, K-SVD (2006); Rubinstein, Zibulevsky and Elad (2008).
    """
    _check(table, table[: whole_number(anchors, "anchors")], width)
    if anchors > len(table):
        raise ValueError(f"anchors must be at most the number of rows {len(table)}, got {anchors}")
    dtype, table = table.dtype, table.detach().to(precise(table))
    scale = _scale(table)  # squares of very small or large entries would underflow or overflow
    table = table / scale
    rows = table
    if len(table) > whole_number(sample, "sample", anchors):
        rows = table[randperm(len(table), table.device, generator=generator)[:sample]]
    found = _unit(rows[spread_rows(rows, anchors, generator)])
    weights, slots = sparse_code(rows, found, width, signed=signed)
    rest = rows - _combine(weights, slots, found)
    for _ in over("learning anchors", range(whole_number(rounds, "rounds", 0))):
        for _ in range(2):  # a sweep is cheap next to coding
            _move_anchors(found, weights, slots, rest, signed)
        _replace_idle(found, weights, slots, rows, rest)
        _recode(rows, found, weights, slots, rest, signed)
    if rows is not table:
        weights, slots = sparse_code(table, found, width, signed=signed)
        rest = table - _combine(weights, slots, found)
    error = float(rest.norm() / table.norm().clamp(min=torch.finfo(table.dtype).tiny))
    return Coding(found.to(dtype), (weights * scale).to(dtype), slots, error)


def _check(table: Tensor, dictionary: Tensor, width: int) -> None:
    for name, given in (("table", table), ("anchors", dictionary)):
        check_scores(given, name)
        if given.dim() != 2 or given.shape[1] != table.shape[1]:
            raise ValueError(
                f"table and anchors must be (rows, d) and (anchors, d), got {tuple(table.shape)} "
                f"and {tuple(dictionary.shape)}"
            )
        if not given.isfinite().all():
            raise ValueError(f"{name} must be finite, got infinities or NaN")
    if whole_number(width, "width") > len(dictionary):
        raise ValueError(f"width must be at most the {len(dictionary)} anchors, got {width}")


def _blocks(table: Tensor, anchors: int, width: int) -> Iterator[Tensor]:
    per_row = max(anchors, width * max(table.shape[1], width))
    yield from over("coding rows", table.detach().split(max(_BLOCK_SIZE // per_row, 1)))


def _joined(parts: list[tuple[Tensor, Tensor]], table: Tensor) -> tuple[Tensor, Tensor]:
    weights, slots = (torch.cat(part) for part in zip(*parts, strict=True))
    return weights.to(table.dtype), slots


def _combine(weights: Tensor, slots: Tensor, anchors: Tensor) -> Tensor:
    """`weights[v] @ anchors[slots[v]]` without an array of shape (rows, width, d)."""
    out = weights.new_zeros(len(weights), anchors.shape[1])
    for j in range(weights.shape[1]):
        out.addcmul_(weights[:, j, None], anchors[slots[:, j]])
    return out


def _scale(table: Tensor) -> Tensor:
    """Return the largest power of two below the largest entry: dividing by it is exact."""
    exponent = torch.frexp(table.abs().max()).exponent - 1
    return torch.ldexp(torch.ones((), dtype=table.dtype, device=table.device), exponent)


def _unit(rows: Tensor) -> Tensor:
    length = rows.norm(dim=-1, keepdim=True)
    return torch.div(rows, length.clamp(min=torch.finfo(rows.dtype).tiny))


def _recode(
    rows: Tensor, anchors: Tensor, weights: Tensor, slots: Tensor, rest: Tensor, signed: bool
) -> None:
    """Code rows again; keep the new code where its error is smaller."""
    new_weights, new_slots = sparse_code(rows, anchors, slots.shape[1], signed=signed)
    new_rest = rows - _combine(new_weights, new_slots, anchors)
    gains = new_rest.norm(dim=1) < rest.norm(dim=1)
    for old, new in ((weights, new_weights), (slots, new_slots), (rest, new_rest)):
        old[gains] = new[gains]


def _move_anchors(
    anchors: Tensor, weights: Tensor, slots: Tensor, rest: Tensor, signed: bool
) -> None:
    """Fit each anchor and its weights to the residual of the others, one after the other."""
    used = (weights.flatten() != 0).nonzero()[:, 0]
    used = used[slots.flatten()[used].argsort(stable=True)]
    counts = torch.bincount(slots.flatten()[used], minlength=len(anchors))
    flat = weights.view(-1)
    for k, places in enumerate(used.split(counts.tolist())):
        if not len(places):
            continue
        row = places // slots.shape[1]
        target = rest[row] + flat[places, None] * anchors[k]
        anchors[k] = _unit(flat[places] @ target)
        along = target @ anchors[k]
        flat[places] = along if signed else along.clamp(min=0)
        rest[row] = target - flat[places, None] * anchors[k]


def _replace_idle(
    anchors: Tensor, weights: Tensor, slots: Tensor, rows: Tensor, rest: Tensor
) -> None:
    """Replace unused anchors by the rows with the largest residual."""
    idle = torch.ones(len(anchors), dtype=torch.bool, device=rows.device)
    idle[slots[weights != 0]] = False
    worst = rest.norm(dim=1).topk(int(idle.sum())).indices
    anchors[idle] = _unit(rows[worst])
