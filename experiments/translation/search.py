"""Greedy, beam and exact search for the most probable translation."""

import heapq
import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from experiments.translation.corpus import BEGIN, END
from experiments.translation.model import Memory, State, Translator

LIMIT = 60  # words, more than any reference has
_TOGETHER = 16  # prefixes that the exact search extends in one step


@dataclass(frozen=True)
class Found:
    """A translation without its end, and its log-probability.

    Attributes:
        exact: whether it is proven that no translation of at most `LIMIT` words is more probable.
        steps: number of prefixes that were extended.
    """

    words: list[int]
    log_prob: float
    exact: bool = False
    steps: int = 0


@torch.no_grad()
def greedy(model: Translator, source: Tensor) -> list[list[int]]:
    """Return the ids of translations of padded sources (n, S), each word the most probable one."""
    memory, state = model.encode(source)
    words = source.new_full((len(source),), BEGIN)
    lines, done = [], torch.zeros(len(source), dtype=torch.bool)
    for _ in range(LIMIT):
        log_probs, state = model.step(words, state, memory)
        words = log_probs.argmax(-1).masked_fill(done, END)
        lines.append(words)
        done |= words == END
        if bool(done.all()):
            break
    return [[w for w in line if w != END] for line in torch.stack(lines, 1).tolist()]


@torch.no_grad()
def beam(model: Translator, memory: Memory, state: State, width: int = 5) -> Found:
    """Return the most probable translation of one sentence that a beam of prefixes finds.

    Stops as soon as no prefix in the beam is more probable than the best translation.
    """
    prefixes: list[list[int]] = [[]]
    scores, words = torch.zeros(1), torch.tensor([BEGIN])
    best, steps = Found([], -math.inf), 0
    for _ in range(LIMIT + 1):
        log_probs, state = model.step(words, state, memory.repeat(len(words)))
        steps += len(words)
        every = scores.unsqueeze(1) + log_probs
        top = every.flatten().topk(min(width, every.numel()))
        rows, words = top.indices // every.shape[1], top.indices % every.shape[1]
        ends = words == END
        for row, score in zip(rows[ends].tolist(), top.values[ends].tolist(), strict=True):
            if score > best.log_prob:
                best = Found(prefixes[row], score)
        alive = ~ends & (top.values > best.log_prob)
        if not bool(alive.any()):
            break
        rows, words, scores = rows[alive], words[alive], top.values[alive]
        pairs = zip(rows.tolist(), words.tolist(), strict=True)
        prefixes = [[*prefixes[row], word] for row, word in pairs]
        state = state[0][:, rows], state[1][:, rows]
    return Found(best.words, best.log_prob, steps=steps)


@dataclass(order=True)
class _Prefix:
    """A prefix in the queue, the most probable first, with the state before its last word."""

    cost: float
    words: list[int] = field(compare=False)
    state: State = field(compare=False)


@torch.no_grad()
def mode(model: Translator, memory: Memory, state: State, begin: Found, steps: int = 1000) -> Found:
    """Return the most probable translation of one sentence, by best-first search.

    A prefix is at least as probable as each of its continuations, so that prefixes no more probable
    than the best translation are dropped. Where words have probability 0, few prefixes remain.

    Args:
        begin: a translation to begin with, that of `beam`.
        steps: number of prefixes to extend at most; without a proof until then, `exact` is False.
    """
    best, used = begin, 0
    queue, cut = [_Prefix(0.0, [], state)], -math.inf
    while queue and used < steps:
        front = [heapq.heappop(queue) for _ in range(min(_TOGETHER, len(queue), steps - used))]
        front = [prefix for prefix in front if -prefix.cost > best.log_prob]
        if not front:
            break  # the queue is in order: nothing behind them is better
        used += len(front)
        words = torch.tensor([p.words[-1] if p.words else BEGIN for p in front])
        before = tuple(torch.cat([p.state[i] for p in front], 1) for i in range(2))
        log_probs, (one, two) = model.step(words, (before[0], before[1]), memory.repeat(len(front)))
        total = log_probs - torch.tensor([p.cost for p in front]).unsqueeze(1)
        for row, prefix in enumerate(front):
            if (score := float(total[row, END])) > best.log_prob:
                best = Found(prefix.words, score)
        total[:, END] = -math.inf
        rows, next_words = (total > best.log_prob).nonzero(as_tuple=True)
        values = total[rows, next_words].tolist()
        for row, word, score in zip(rows.tolist(), next_words.tolist(), values, strict=True):
            if len(front[row].words) == LIMIT:
                cut = max(cut, score)
                continue
            after = one[:, row : row + 1], two[:, row : row + 1]
            heapq.heappush(queue, _Prefix(-score, [*front[row].words, word], after))
    left = max(cut, -queue[0].cost if queue else -math.inf)
    return Found(best.words, best.log_prob, left <= best.log_prob, used)
