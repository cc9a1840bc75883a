# %% [markdown]
# # A sparse transformer
#
# In a transformer every position attends to every other: softmax weights are never zero.
# {class}`fewfold.MultiheadAttention` takes the place of `torch.nn.MultiheadAttention`, with weights
# that are exactly zero where they are not needed, and each head learns how sparse to be: its alpha
# is between 1 (softmax) and 2 (sparsemax).
#
# The task: for each letter of a word, say the preceding letter and the one at the mirrored
# position.

# %%
import torch
import torch.nn.functional as F
from torch import nn

import fewfold as ff

torch.manual_seed(0)
letters, length, dim, heads = 26, 12, 32, 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = ff.MultiheadAttention(dim, heads)
        self.norms = nn.ModuleList([nn.LayerNorm(dim), nn.LayerNorm(dim)])
        self.feed = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        x = x + self.attention(self.norms[0](x))
        return x + self.feed(self.norms[1](x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.letter, self.place = nn.Embedding(letters, dim), nn.Embedding(length, dim)
        self.block = Block()
        self.guess = nn.Linear(dim, 2 * letters)

    def forward(self, words):
        x = self.letter(words) + self.place.weight
        return self.guess(self.block(x)).unflatten(-1, (2, letters))


def batch(size):
    words = torch.randint(letters, (size, length))
    return words, torch.stack([words.roll(1, 1), words.flip(1)], -1)


# %% [markdown]
# ## Training
#
# Nothing differs from any other model; alpha is a parameter like the rest.

# %%
model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(151):
    words, target = batch(32)
    loss = F.cross_entropy(model(words).flatten(0, 2), target.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 0:
        alpha = ", ".join(f"{value:.2f}" for value in model.block.attention.alpha)
        print(f"step {step:3}: loss {loss:.3f}, alpha {alpha}")

# %% [markdown]
# ## What the heads look at
#
# `watch_attention` collects the weights of every layer. Empty cells are exactly zero.

# %%
words, target = batch(256)
with torch.no_grad(), ff.attention.watch_attention() as calls:
    right = (model(words).argmax(-1) == target).float().mean()
print(f"{right:.1%} of the guesses are right, {calls[0].density:.1%} of the weights are not zero")

# %%
import matplotlib.pyplot as plt

alpha = model.block.attention.alpha
word = [chr(ord("a") + letter) for letter in words[0].tolist()]
figure, panels = plt.subplots(1, heads, figsize=(10, 3), num="Weights of four heads over a word")
for head, axes in enumerate(panels):
    ff.attention.picture_attention(calls[0].head(0, head), word, axes=axes)
    axes.set_xticks(range(length), word, rotation=0, ha="center")
    axes.set_title(f"alpha = {alpha[head]:.2f}, {axes.get_title()}", fontsize=8)
panels[0].set_ylabel("a letter ...")
figure.supxlabel("... and the letters it looks at", fontsize=9)
plt.show()

# %% [markdown]
# Heads share the two patterns between them. The lower the alpha of a head, the more cells it uses.
#
# Next: [attention](../attention.md), with causal masks, grouped heads, long sequences, and models
# of Hugging Face that are adapted in one line.
