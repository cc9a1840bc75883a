"""Tag the names of a sentence, at most two of them, with a chain and a budget on the same bits."""

import sys

import torch
from matplotlib.figure import Figure

import fewfold as ff

words = [
    "Ada",
    "Lovelace",
    "wrote",
    "to",
    "Charles",
    "Babbage",
    "from",
    "Ashley",
    "Combe",
    "in",
    "July",
]
tags = ["outside", "begins", "goes on"]
capital = torch.tensor([word[0].isupper() for word in words])
after = torch.tensor([False, *capital[:-1].tolist()])
scores = torch.zeros(len(words), 3)
scores[:, 0] = 1.5 - 1.2 * capital
scores[:, 1] = 1.6 * capital - 1.2 * (capital & after)  # a name begins with a capital,
scores[:, 2] = 1.6 * (capital & after)  # and may go on with another
scores[words.index("July"), 1] -= 0.7
transitions = torch.tensor([[0.0, 0.0, -torch.inf], [0.0, -0.3, 0.4], [0.0, -0.3, 0.0]])
start = torch.tensor([0.0, 0.0, -torch.inf])  # nothing goes on at the first word


def tagged(names: int | None) -> torch.Tensor:
    """Return marginals (words, tags) with at most this many names."""
    graph = ff.FactorGraph()
    bits = graph.variable(scores)
    graph.add(ff.structures.Sequence(transitions, start=start), bits)
    if names is not None:
        graph.add(ff.structures.Budget(names), bits[:, 1])
    return graph.solve()[bits]


figure = Figure(figsize=(8, 3.4), dpi=120, layout="constrained")
for place, names in enumerate((None, 2)):
    found = tagged(names)
    title = "a chain" if names is None else "a chain, and at most two names"
    used = int((found > 0).sum())
    print(f"{title}: {found[:, 1].sum():.2f} names, {used} of {found.numel()} bits in use")
    axes = figure.add_subplot(2, 1, place + 1)
    axes.imshow(found.T, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axes.set_yticks(range(3), tags)
    axes.set_xticks(range(len(words)), words if place else [""] * len(words))
    axes.set_title(title, fontsize=10)
    for i, tag in found.nonzero().tolist():
        shade = "white" if found[i, tag] > 0.5 else "black"
        axes.text(i, tag, f"{found[i, tag]:.2f}", ha="center", va="center", color=shade, fontsize=8)
figure.savefig(sys.argv[1])
