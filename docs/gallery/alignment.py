"""Learn which words of two languages correspond, from sentences in different word order."""

import sys

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure

import fewfold as ff

torch.manual_seed(0)
english = [
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
]
german = [
    "eins",
    "zwei",
    "drei",
    "vier",
    "fünf",
    "sechs",
    "sieben",
    "acht",
    "neun",
    "zehn",
    "elf",
    "zwölf",
]
words, length = len(english), 6
left = torch.nn.Parameter(0.3 * torch.randn(words, 16))  # a vector for each English word,
right = torch.nn.Parameter(0.3 * torch.randn(words, 16))  # for each German one,
lexicon = torch.nn.Parameter(torch.zeros(words, words))  # and what the former become
optimizer = torch.optim.Adam([left, right, lexicon], lr=0.05)


def pairs(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return sentences of different words, and the translated words in another order."""
    source = torch.rand(count, words).argsort(1)[:, :length]
    return source, source.gather(1, torch.rand(count, length).argsort(1))


def matched(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return (count, English, German) marginals of a one-to-one matching of words."""
    scores = left[source] @ right[target].transpose(1, 2)
    return ff.sparsemap(scores, ff.structures.Assignment())


for step in range(301):
    source, target = pairs(64)
    match = matched(source, target)
    guess = match.transpose(1, 2) @ lexicon[source]  # each German word from those matched with it
    loss = F.cross_entropy(guess.flatten(0, 1), target.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        true = source.unsqueeze(2) == target.unsqueeze(1)
        right_ones = (match * true).sum((1, 2)).mean() / length
        pairs_used = (match > 0).sum((1, 2)).float().mean()
        print(f"step {step:3}: loss {loss:.3f}, {right_ones:.0%} of the weight on true pairs, "
              f"{pairs_used:.1f} of {length * length} pairs in use")  # fmt: skip

source, target = pairs(1)
weights = matched(source, target)[0].detach()
figure = Figure(figsize=(4.6, 4), dpi=120, layout="constrained")
axes = figure.add_subplot()
axes.imshow(weights, cmap="Blues", vmin=0, vmax=1)
axes.set_xticks(range(length), [german[i] for i in target[0]], rotation=30)
axes.set_yticks(range(length), [english[i] for i in source[0]])
for i, j in weights.nonzero().tolist():
    shade = "white" if weights[i, j] > 0.5 else "black"
    axes.text(j, i, f"{weights[i, j]:.2f}", ha="center", va="center", color=shade)
axes.set_title("a matching nobody told it")
figure.savefig(sys.argv[1])
