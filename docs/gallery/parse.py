"""Parse a sentence from noisy scores, without and with a limit of two dependents per word."""

import sys

import torch
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

import fewfold as ff

words = ["the", "old", "dog", "chased", "a", "cat", "across", "the", "wet", "garden"]
kinds = ["DET", "ADJ", "NOUN", "VERB", "DET", "NOUN", "ADP", "DET", "ADJ", "NOUN"]
affinity = {  # rough scores of (head, dependent)
    ("NOUN", "DET"): 2.0, ("NOUN", "ADJ"): 2.0, ("VERB", "NOUN"): 1.6, ("VERB", "ADP"): 1.3,
    ("ADP", "NOUN"): 1.5, ("NOUN", "ADP"): 1.1,
}  # fmt: skip
size = len(words)
scores = torch.tensor([
    [
        affinity.get((kinds[head], kinds[word]), 0.0) - 0.15 * abs(head - word)
        for word in range(size)
    ]
    for head in range(size)
])  # fmt: skip
scores[range(size), range(size)] = torch.tensor([1.5 if kind == "VERB" else -0.5 for kind in kinds])


def parsed(dependents: int | None) -> torch.Tensor:
    """Return marginals [head, word]; the diagonal holds those of the root."""
    graph = ff.FactorGraph()
    arc = graph.variable(scores)
    graph.add(ff.structures.DependencyTree(projective=True), arc)
    if dependents is not None:
        for head in range(size):
            others = [word for word in range(size) if word != head]
            graph.add(ff.structures.Budget(dependents), arc[head, others])
    return graph.solve()[arc]


figure = Figure(figsize=(8, 4.2), dpi=120, layout="constrained")
for place, dependents in enumerate((None, 2)):
    found = parsed(dependents)
    title = "a tree" if dependents is None else f"a tree, at most {dependents} dependents each"
    most = (found.sum(1) - found.diagonal()).max()
    used = int((found > 0).sum())
    print(f"{title}: {used} of {found.numel()} arcs, at most {most:.2f} for a head")
    axes = figure.add_subplot(2, 1, place + 1)
    for head, word in found.nonzero().tolist():
        weight = float(found[head, word])
        if head == word:
            axes.text(word, 0.35, "root", ha="center", fontsize=8, alpha=weight)
            continue
        bend = 0.35 if head < word else -0.35
        axes.add_patch(FancyArrowPatch(
            (head, 0.2), (word, 0.2), connectionstyle=f"arc3,rad={-bend}", arrowstyle="-|>",
            mutation_scale=9, alpha=0.15 + 0.85 * weight, lw=0.5 + 1.5 * weight, color="#0072B2",
        ))  # fmt: skip
        if weight > 0.1:
            height = 0.22 + 0.155 * abs(head - word)  # of the middle of the arc
            both = found[word, head] > 0.1  # each label is nearer to its word
            middle = (head + word) / 2 + (0.2 if word > head else -0.2) * float(both)
            axes.text(middle, height, f"{weight:.2f}", ha="center", fontsize=7)
    for i, word in enumerate(words):
        axes.text(i, 0, word, ha="center", va="center")
    axes.set(xlim=(-0.5, size - 0.5), ylim=(-0.2, 1.8), title=title)
    axes.axis("off")
figure.savefig(sys.argv[1])
