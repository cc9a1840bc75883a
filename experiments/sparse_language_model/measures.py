"""Metrics of the distributions of the next word, and of text drawn from them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from experiments.language_model.run import LanguageModel
from experiments.record import Row
from experiments.sparse_language_model.decoders import Decoder
from experiments.sparse_language_model.training import Settings, positions
from fewfold.losses import jensen_shannon, optimal_epsilon, sparsemax_score

LENGTHS = (16, 32, 128, 512)


@dataclass(frozen=True)
class Measured:
    """What a decoder says of every position of a text, in the order of `batches`.

    Attributes:
        chosen: probability of the next word.
        score: sparsemax score.
        words: number of words with a probability.
        drawn: a word drawn from the distribution.
        after: the next word.
    """

    chosen: Tensor
    score: Tensor
    words: Tensor
    drawn: Tensor
    after: Tensor

    @property
    def divergence(self) -> float:
        """Mean Jensen-Shannon divergence to the next word."""
        two = torch.stack([self.chosen, 1 - self.chosen], -1)
        return float(jensen_shannon(two, torch.zeros(len(two), dtype=torch.long)))


def measure_all(
    model: LanguageModel, tokens: Tensor, decoders: Sequence[Decoder], settings: Settings, seed: int
) -> list[Measured]:
    """Return what each of the decoders says of a text."""
    generator = torch.Generator().manual_seed(seed)
    found: list[list[tuple[Tensor, ...]]] = [[] for _ in decoders]

    for scores, after in positions(model, tokens, settings):
        for decoder, own in zip(decoders, found, strict=True):
            probs = decoder.probs(scores)
            chosen = probs.gather(-1, after.unsqueeze(-1)).squeeze(-1).double()
            score = sparsemax_score(probs, after, reduction="none").double()
            drawn = torch.multinomial(probs, 1, generator=generator).squeeze(-1)
            own.append((chosen.clamp(max=1), score, (probs > 0).sum(-1), drawn, after))
    return [Measured(*(torch.cat(part) for part in zip(*own, strict=True))) for own in found]


def epsilon_perplexity(chosen: Tensor, words: int, epsilon: float) -> float:
    """Return the perplexity of smoothed probabilities, from those of the next words alone."""
    uniform = 1.0 if epsilon == float("inf") else epsilon * words / (1 + epsilon * words)
    return float((-((1 - uniform) * chosen + uniform / words).log().mean()).exp())


def repetition(tokens: Tensor, found: Measured, batch: int) -> tuple[float, float]:
    """Return REP and WREP, means over `LENGTHS`.

    REP is the share of drawn words that are among the last l words of the text, and WREP that of
    those that are also not the next word.

    Reference: Welleck et al. (2020); Martins, Marinho, Martins (2020).
    """
    columns = tokens[: len(tokens) // batch * batch].view(batch, -1).T
    drawn, after = (each.view(-1, batch) for each in (found.drawn, found.after))
    context = columns[: len(drawn)]
    since = torch.full_like(drawn, LENGTHS[-1] + 1)  # words since the drawn one occurred
    for back in range(min(LENGTHS[-1], len(drawn)), 0, -1):
        same = drawn[back - 1 :] == context[: len(context) - back + 1]
        since[back - 1 :][same] = back
    shares = [(since <= length).double() for length in LENGTHS]
    wrong = (drawn != after).double()
    rep = sum(float(share.mean()) for share in shares) / len(shares)
    wrep = sum(float((share * wrong).mean()) for share in shares) / len(shares)
    return rep, wrep


@torch.no_grad()
def generate(
    model: LanguageModel, prompts: Tensor, decoder: Decoder, length: int, seed: int
) -> Tensor:
    """Return words (length, n) drawn one after the other behind prompts (words, n)."""
    generator = torch.Generator().manual_seed(seed)
    queries, state = model(prompts, None)
    queries, lines = queries[-prompts.shape[1] :], []
    for _ in range(length):
        probs = decoder.probs(queries @ model.table.T)
        lines.append(torch.multinomial(probs, 1, generator=generator).T)
        queries, state = model(lines[-1], state)
    return torch.cat(lines)


def diversity(texts: Tensor) -> Row:
    """Return the share of 4-grams that repeat an earlier one of their text, and distinct n-grams.

    Args:
        texts: (length, n).
    """
    lines = texts.T.tolist()
    grams = {
        n: [[tuple(line[i : i + n]) for i in range(len(line) - n + 1)] for line in lines]
        for n in (1, 2, 4)
    }
    repeated = [1 - len(set(line)) / len(line) for line in grams[4]]
    row = {"repeated 4-grams": round(sum(repeated) / len(repeated), 4)}
    for n in (1, 2):
        every = [gram for line in grams[n] for gram in line]
        row[f"distinct-{n}"] = round(len(set(every)) / len(every), 4)
    return row


def report(
    model: LanguageModel, valid: Tensor, test: Tensor, grids: dict[str, list[Decoder]],
    settings: Settings, prompts: tuple[int, int, int], seed: int,
) -> Row:  # fmt: skip
    """Choose each decoder on the validation text, and return its metrics on the test text.

    Args:
        prompts: number of prompts, of words of each, and of words to draw behind them.
    """
    words, flat = len(model.table), [one for grid in grids.values() for one in grid]
    found = dict(zip(flat, measure_all(model, valid, flat, settings, seed), strict=True))
    best = {name: min(grid, key=lambda one: found[one].divergence) for name, grid in grids.items()}
    tested = measure_all(model, test, list(best.values()), settings, seed)
    many, context, length = prompts
    columns = test[: len(test) // many * many].view(many, -1).T
    begin = columns[:context]
    row: Row = {"text itself": diversity(columns[context : context + length])}
    for (name, decoder), own in zip(best.items(), tested, strict=True):
        epsilon = optimal_epsilon(found[decoder].chosen, words)
        rep, wrep = repetition(test, own, settings.batch)
        row[name] = {
            "decoder": str(decoder),
            "epsilon": float(f"{epsilon:.3g}"),
            "epsilon-perplexity": round(epsilon_perplexity(own.chosen, words, epsilon), 2),
            "next word without probability": round(float((own.chosen == 0).double().mean()), 4),
            "sparsemax score": round(float(own.score.mean()), 4),
            "Jensen-Shannon": round(own.divergence, 4),
            "words": round(float(own.words.double().mean()), 1),
            "REP": round(rep, 4),
            "WREP": round(wrep, 4),
            **diversity(generate(model, begin, decoder, length, seed)),
        }
    return row
