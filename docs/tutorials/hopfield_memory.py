# %% [markdown]
# # A Hopfield memory
#
# A Hopfield network stores patterns, and moves a damaged query to the pattern that it came from.
# Each step is attention over the patterns. With softmax the result is a mixture that is near a
# pattern at best; with a sparse map it is the pattern itself, to the last bit.
#
# The patterns are the letters A to Z, drawn by matplotlib.

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch

import fewfold as ff


def draw(letter, size=20):
    figure = plt.figure(figsize=(1, 1), dpi=size, layout="none")
    figure.text(0.5, 0.46, letter, ha="center", va="center", fontsize=62, weight="bold")
    figure.canvas.draw()
    ink = 1 - np.asarray(figure.canvas.buffer_rgba())[..., 0] / 255
    plt.close(figure)
    return torch.tensor(ink, dtype=torch.float32)


letters = [chr(ord("A") + i) for i in range(26)]
patterns = torch.stack([draw(letter) for letter in letters]).flatten(1)
memory = torch.nn.functional.normalize(patterns - patterns.mean(0), dim=1)
print(f"{len(memory)} patterns of {memory.shape[1]} numbers")

# %% [markdown]
# ## Damage
#
# The lower half of four letters is lost, and there is noise on the rest. Patterns are stored
# without their mean, so what is lost looks like the mean of all letters below.

# %%
generator = torch.Generator().manual_seed(0)
chosen = torch.tensor([letters.index(letter) for letter in "GHKS"])
queries = memory[chosen] + 0.03 * torch.randn(4, 400, generator=generator)
queries.view(4, 20, 20)[:, 11:] = 0

# %% [markdown]
# ## Retrieval
#
# `beta` is the inverse temperature, and the regulariser decides the map. `steps` counts updates
# until nothing moves.

# %%
energies = {
    "softmax": ff.FenchelYoung(ff.Shannon(), beta=16.0),
    "sparsemax": ff.FenchelYoung(ff.Gini(), beta=16.0),
}
retrieved = {}
for name, energy in energies.items():
    found = ff.hopfield_retrieve(queries, memory, energy)
    retrieved[name] = found.state
    used = (energy.probs(found.state, memory) > 0).sum(1).tolist()
    nearest = (found.state @ memory.T).argmax(1)
    names = "".join(letters[i] for i in nearest)
    exact = (found.state == memory[nearest]).all(1).tolist()
    print(f"{name:9} {names}, steps {found.steps.tolist()}, of {used} patterns, exact {exact}")

# %%
rows = {"query": queries, **retrieved, "stored": memory[chosen]}
length = (patterns - patterns.mean(0)).norm(dim=1).mean()
figure, panels = plt.subplots(4, 4, figsize=(4.4, 4.4), num="Queries, states and stored letters")
for line, (name, states) in zip(panels, rows.items(), strict=True):
    for axes, state in zip(line, states, strict=True):
        ink = length * state + patterns.mean(0)
        axes.imshow(ink.view(20, 20), vmin=0, vmax=1)
        axes.set(xticks=[], yticks=[])
    line[0].set_ylabel(name)
plt.show()

# %% [markdown]
# ## What the memory holds
#
# A pattern is retrieved exactly if its score leads by the margin of the map. That can be computed
# before any query is asked:

# %%
for beta in (2.0, 4.0, 8.0, 16.0):
    stored = ff.hopfield.is_stored(memory, ff.FenchelYoung(ff.Gini(), beta=beta))
    missing = "".join(letters[i] for i in (~stored).nonzero())
    print(
        f"beta {beta:2.0f}: {int(stored.sum())} of 26 are stored"
        + f", not {missing}" * bool(missing)
    )

# %% [markdown]
# Letters that look alike need a larger beta. A larger beta also makes every query choose sooner, so
# a badly damaged one may end in the wrong letter.
#
# Next: [energies, associations of several patterns, and layers](../attention.md#hopfield-networks).
