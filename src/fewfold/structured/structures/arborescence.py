"""Arborescences in plain torch: the best one, the log-partition function and sampling.

Scores are `(..., n, n)`: [h, m] for the arc from head h to m, [m, m] for the arc from the root.
"""

import math

import torch
from torch import Tensor

from fewfold._random import multinomial

__all__ = ["FORBIDDEN", "best_heads", "draw_heads", "log_total", "present_arcs"]

FORBIDDEN = -1e200
"""used instead of -inf, so that sums stay finite and gradients are defined"""


def best_heads(scores: list[list[float]], single: bool) -> list[int] | None:
    """Heads of the best arborescence, the word itself for the root; None if infeasible.

    Chu-Liu/Edmonds: every node takes its best head, and cycles are contracted until there are none.
    With `single`, scores are compared lexicographically with the number of arcs from the root
    first, so that there are as few of these as possible.

    Args:
        scores: by head and word; all words are present.
        single: whether exactly one word is attached to the root.
    """
    n = len(scores)
    arcs = {
        (n if h == m else h, m): ((-1.0 if single and h == m else 0.0), scores[h][m], (h, m))
        for h in range(n)
        for m in range(n)
        if scores[h][m] > -math.inf
    }
    chosen = _edmonds(arcs, list(range(n)), n)
    if chosen is None:
        return None
    heads = [0] * n
    for h, m in chosen:
        heads[m] = h
    return None if single and sum(h == m for m, h in enumerate(heads)) > 1 else heads


Arcs = dict[tuple[int, int], tuple[float, float, tuple[int, int]]]
"""by head and word: (root-arc count, score, arc of the original graph)"""


def _edmonds(arcs: Arcs, words: list[int], root: int) -> list[tuple[int, int]] | None:
    best: dict[int, int] = {}
    for (h, m), value in arcs.items():
        if m not in best or value[:2] > arcs[best[m], m][:2]:
            best[m] = h
    if any(m not in best for m in words):
        return None
    cycle = _cycle(best, words, root)
    if cycle is None:
        return [arcs[best[m], m][2] for m in words]
    node = max(*words, root) + 1
    fewer: Arcs = {}
    for (h, m), (count, score, arc) in arcs.items():
        inside, source = m in cycle, node if h in cycle else h
        if inside and h in cycle:
            continue
        if inside:
            own = arcs[best[m], m]
            count, score = count - own[0], score - own[1]
        where = source, node if inside else m
        if where not in fewer or (count, score) > fewer[where][:2]:
            fewer[where] = count, score, arc
    left = [m for m in words if m not in cycle]
    chosen = _edmonds(fewer, [*left, node], root)
    if chosen is None:
        return None
    into = {arc: m for (_, m), (_, _, arc) in arcs.items()}
    broken = {into[arc] for arc in chosen if into[arc] in cycle}
    return chosen + [arcs[best[m], m][2] for m in cycle if m not in broken]


def _cycle(best: dict[int, int], words: list[int], root: int) -> list[int] | None:
    done = {root}
    for start in words:
        path: list[int] = []
        m = start
        while m not in done and m not in path:
            path.append(m)
            m = best[m]
        if m in path:
            return path[path.index(m) :]
        done.update(path)
    return None


def present_arcs(scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Arc scores among present words, root-arc scores, and which words are absent (..., n).

    A word without possible heads is absent: it is attached to the root and heads no word.
    """
    absent = (scores == -math.inf).all(-2)
    without = (scores == -math.inf) | absent.unsqueeze(-1) | absent.unsqueeze(-2)
    arcs = scores.masked_fill(without, FORBIDDEN)
    return arcs, arcs.diagonal(dim1=-2, dim2=-1).masked_fill(absent, 0.0), absent


def _reach(arcs: Tensor) -> Tensor:
    """Whether there is a path from h to m along allowed arcs, (..., n, n) bool."""
    n = arcs.shape[-1]
    reach = (arcs.detach() > FORBIDDEN / 2) | torch.eye(n, dtype=torch.bool, device=arcs.device)
    for _ in range(max(1, n - 1).bit_length()):
        reach = (reach.float() @ reach.float()) > 0
    return reach


def log_total(scores: Tensor, single: bool) -> Tensor:
    """Log of the sum of exp(score) over arborescences; -inf where there are none.

    The determinant of the matrix-tree theorem, by a subtraction-free elimination in log space:
    word m is eliminated, and arcs h -> m -> k become arcs h -> k with weight w[h, m] w[m, k] / d,
    where the pivot d, the sum over all heads of m, is a factor of the determinant. No accuracy is
    lost for large scores. For a single root, pivots exclude the root until the last word; the last
    word is chosen to reach all others, so that no pivot is zero.
    """
    arcs, root, absent = present_arcs(scores)
    reach, root_allowed = _reach(arcs), root.detach() > FORBIDDEN / 2
    if single:
        covers = (reach | absent.unsqueeze(-2)).all(-1) & ~absent
        feasible = (covers & root_allowed).any(-1) | absent.all(-1)
        arcs, root, absent = _swap_to_front(covers.long().argmax(-1), arcs, root, absent)
    else:
        feasible = (root_allowed.unsqueeze(-1) & reach).any(-2).all(-1)
    root = torch.where(feasible.unsqueeze(-1), root, 0.0)
    arcs = torch.where(feasible[..., None, None], arcs, 0.0)
    total = torch.zeros_like(root[..., 0])
    for m in range(scores.shape[-1] - 1, 0, -1):
        heads, words = arcs[..., :m, m], arcs[..., m, :m]
        last = heads if single else torch.cat([heads, root[..., m : m + 1]], -1)
        pivot = last.logsumexp(-1)
        if single:
            pivot = torch.where(absent[..., m], 0.0, pivot)
        through = words - pivot.unsqueeze(-1)
        root = _log_add(root[..., :m], root[..., m : m + 1] + through)
        arcs = _log_add(arcs[..., :m, :m], heads.unsqueeze(-1) + through.unsqueeze(-2))
        total = total + pivot
    return torch.where(feasible, total + root[..., 0], -math.inf)


def _log_add(one: Tensor, two: Tensor) -> Tensor:
    """torch.logaddexp, whose second derivative is NaN where the two are far apart."""
    return torch.stack([one, two], -1).logsumexp(-1)


def _swap_to_front(
    which: Tensor, arcs: Tensor, root: Tensor, absent: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Swap this word with the first one."""
    n = arcs.shape[-1]
    order = torch.arange(n, device=arcs.device).expand(*which.shape, n)
    order = order.scatter(-1, which.unsqueeze(-1), 0)
    order = torch.cat([which.unsqueeze(-1), order[..., 1:]], -1)
    arcs = arcs.gather(-2, order.unsqueeze(-1).expand(arcs.shape))
    arcs = arcs.gather(-1, order.unsqueeze(-2).expand(arcs.shape))
    return arcs, root.gather(-1, order), absent.gather(-1, order)


@torch.no_grad()
def draw_heads(scores: Tensor, single: bool, generator: torch.Generator | None) -> Tensor:
    """Sample heads (rows, n) with probability proportional to exp(score) of the tree.

    The head of a root word is the word itself; all rows must be feasible. Words are sampled in
    turn: h is the head with probability proportional to exp(score) times the probability that a
    random walk from h along heads reaches the root before the word itself, given earlier heads.
    """
    arcs, root, _ = present_arcs(scores)
    rows, n = root.shape
    if single:
        root = _draw_root(scores, root, generator)
    both = torch.cat([arcs, root.unsqueeze(1)], 1)
    both[:, range(n), range(n)] = FORBIDDEN
    log_probs = both.masked_fill(both < FORBIDDEN / 2, FORBIDDEN).log_softmax(1)
    found = torch.empty(rows, n, dtype=torch.int64)
    for m in range(n):
        weights = (log_probs[:, :, m] + _log_hitting_probs(log_probs, m)).softmax(1)
        head = multinomial(weights, 1, generator=generator)
        log_probs[:, :, m] = torch.full_like(weights, FORBIDDEN).scatter_(1, head, 0.0)
        found[:, m] = torch.where(head[:, 0] == n, m, head[:, 0])
    return found


def _draw_root(scores: Tensor, root: Tensor, generator: torch.Generator | None) -> Tensor:
    """Sample the single root word of each row, and forbid the root arcs of all other words."""
    absent = (scores == -math.inf).all(-2)
    with torch.enable_grad():
        own = scores.detach().requires_grad_()
        (grad,) = torch.autograd.grad(log_total(own, single=True).sum(), own)
    log_probs = grad.diagonal(dim1=-2, dim2=-1).clamp(min=0.0)
    none = absent.all(-1, keepdim=True)
    chosen = multinomial(torch.where(none, 1.0, log_probs), 1, generator=generator)
    keep = absent.scatter(1, chosen, True)
    return root.masked_fill(~keep, FORBIDDEN)


def _log_hitting_probs(log_probs: Tensor, m: int) -> Tensor:
    """Log-probability (rows, n + 1) that a walk from each node reaches the root before word m.

    Args:
        log_probs: (rows, n + 1, n) log-probability of each node, the root last, to be the head.
        m: a word.
    """
    n = log_probs.shape[2]
    others = [h for h in range(n) if h != m]
    arcs = log_probs[:, [n, m, *others]][:, :, others]  # the walk is absorbed in the first two
    steps = []
    for j in range(n - 2, -1, -1):
        heads, words = arcs[:, : j + 2, j], arcs[:, j + 2, :j]
        heads = heads - heads.logsumexp(1, keepdim=True)
        steps.append(heads)
        arcs = torch.logaddexp(arcs[:, : j + 2, :j], heads.unsqueeze(2) + words.unsqueeze(1))
    log_hit = torch.full((len(log_probs), n + 1), FORBIDDEN, dtype=log_probs.dtype)
    log_hit[:, 0] = 0.0
    for j, heads in enumerate(reversed(steps)):
        log_hit[:, j + 2] = (heads + log_hit[:, : j + 2]).logsumexp(1)
    return torch.empty_like(log_hit).index_copy_(1, torch.tensor([n, m, *others]), log_hit)
