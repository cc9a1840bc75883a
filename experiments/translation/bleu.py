"""BLEU of a corpus, and the tokenisation that belongs to it."""

import math
import re
from collections import Counter
from collections.abc import Sequence

_RULES = [
    (re.compile(r"([\{-\~\[-\` -\&\(-\+\:-\@\/])"), r" \1 "),
    (re.compile(r"([^0-9])([\.,])"), r"\1 \2 "),
    (re.compile(r"([\.,])([^0-9])"), r" \1 \2"),
    (re.compile(r"([0-9])(-)"), r"\1 \2 "),
]


def tokens(text: str) -> list[str]:
    """Split a line as mteval-v13a does: ASCII symbols stand alone, but for ``'`` and ``-``."""
    line = f" {text} "
    for pattern, replacement in _RULES:
        line = pattern.sub(replacement, line)
    return line.split()


def bleu(
    candidates: Sequence[Sequence[str]], references: Sequence[Sequence[str]], order: int = 4
) -> float:
    """Return BLEU in per cent, of one reference each and smoothed as sacrebleu does.

    ``100 exp(min(0, 1 - r / c)) (prod_n p_n)^(1/4)`` with the corpus lengths r of references and c
    of candidates, and the clipped precisions p_n of n-grams. The k-th precision without a match
    counts as ``1 / (2^k total)``.

    Reference: Papineni et al. (2002); Post (2018).
    """
    if len(candidates) != len(references):
        raise ValueError(
            f"every candidate needs a reference, got {len(candidates)} and {len(references)}"
        )
    long, short = (sum(map(len, lines)) for lines in (references, candidates))
    if not short:
        return 0.0
    total, smoothing = 0.0, 1.0
    for n in range(1, order + 1):
        matches = possible = 0
        for candidate, reference in zip(candidates, references, strict=True):
            found, right = _ngrams(candidate, n), _ngrams(reference, n)
            matches += (found & right).total()
            possible += found.total()
        if not possible or not (matches or n > 1):
            return 0.0
        if not matches:
            smoothing *= 2
        total += math.log(matches / possible if matches else 1 / (smoothing * possible))
    return 100 * math.exp(total / order + min(0.0, 1 - long / short))


def _ngrams(words: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
