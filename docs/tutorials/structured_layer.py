# %% [markdown]
# # A structured layer
#
# A layer need not output independent numbers. `ff.sparsemap` maps scores of parts to the marginals
# of a few *structures*, here one-to-one matchings, and is differentiable in the scores. This
# tutorial learns which words of two languages correspond, from pairs of sentences whose word orders
# are unrelated. Nobody says which word belongs to which.

# %%
import torch
import torch.nn.functional as F

import fewfold as ff

torch.manual_seed(1)
english = [
    "one", "two", "three", "four", "five", "six",
    "seven", "eight", "nine", "ten", "eleven", "twelve",
]  # fmt: skip
german = [
    "eins", "zwei", "drei", "vier", "fünf", "sechs",
    "sieben", "acht", "neun", "zehn", "elf", "zwölf",
]  # fmt: skip
words, length = len(english), 6


def pairs(count):
    """Sentences of different words, and the translated words in another order."""
    source = torch.rand(count, words).argsort(1)[:, :length]
    return source, source.gather(1, torch.rand(count, length).argsort(1))


source, target = pairs(1)
print(*(english[i] for i in source[0]), "/", *(german[i] for i in target[0]))

# %% [markdown]
# ## The layer
#
# Scores are products of vectors of an English and a German word. `Assignment()` is the set of all
# matchings of rows with columns: 720 for six words. The marginals are a mixture of few of them, and
# most pairs get exactly zero.

# %%
left = torch.nn.Parameter(0.3 * torch.randn(words, 16))
right = torch.nn.Parameter(0.3 * torch.randn(words, 16))


def match(source, target):
    scores = left[source] @ right[target].transpose(1, 2)
    return ff.sparsemap(scores, ff.structures.Assignment())


support = ff.sparsemap_support(left[source] @ right[target].mT, ff.structures.Assignment())
print(f"{support.counts.item()} matchings, weights", support.weights.detach().round(decimals=2))

# %% [markdown]
# ## The model
#
# Each German word is predicted from the English words that it is matched with, through a table of
# translations. The gradient of the loss reaches the vectors through the matching.

# %%
translations = torch.nn.Parameter(torch.zeros(words, words))
optimizer = torch.optim.Adam([left, right, translations], lr=0.05)
for step in range(301):
    source, target = pairs(64)
    matched = match(source, target)
    guess = matched.transpose(1, 2) @ translations[source]
    loss = F.cross_entropy(guess.flatten(0, 1), target.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        true = source.unsqueeze(2) == target.unsqueeze(1)
        right_ones = (matched * true).sum((1, 2)).mean() / length
        used = (matched > 0).sum((1, 2)).float().mean()
        print(
            f"step {step:3}: loss {loss:.3f}, {right_ones:.0%} of the weight on true pairs, "
            f"{used:.1f} of {length * length} pairs in use"
        )

# %%
import matplotlib.pyplot as plt

source, target = pairs(1)
weights = match(source, target)[0].detach()
figure, axes = plt.subplots(figsize=(4, 3.4), num="A matching of six English and six German words")
axes.imshow(weights, vmin=0, vmax=1)
axes.set_xticks(range(length), [german[i] for i in target[0]], rotation=30)
axes.set_yticks(range(length), [english[i] for i in source[0]])
for i, j in weights.nonzero().tolist():
    shade = "white" if weights[i, j] > 0.5 else "black"
    axes.text(j, i, f"{weights[i, j]:.2f}", ha="center", va="center", color=shade)
plt.show()

# %% [markdown]
# At the start the layer hedges between matchings, and gradients flow to all of them. At the end it
# is certain, and costs little.
#
# Next: [other structures and factor graphs](../structured.md); [an expectation over
# structures](../expectation.md) where the model needs whole structures and not marginals.
