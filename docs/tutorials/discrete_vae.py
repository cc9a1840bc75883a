# %% [markdown]
# # A discrete VAE
#
# The latent variable of this autoencoder is one of 16 categories. The training loss is an
# expectation of the reconstruction error over the category, and {func}`fewfold.expect` computes it:
# exactly over all categories, exactly over a *sparse* distribution, from a sample, or with a
# relaxation. The model does not change; the estimator is an argument.
#
# The data are 5 x 5 pictures of one bar, horizontal or vertical, with noise: ten kinds.

# %%
import torch
from torch import nn

import fewfold as ff

torch.manual_seed(0)
bars = torch.zeros(10, 5, 5)
for i in range(5):
    bars[i, i, :] = 1
    bars[5 + i, :, i] = 1


def batch(count):
    kind = torch.randint(10, (count,))
    return (bars[kind] + 0.2 * torch.randn(count, 5, 5)).flatten(1), kind


# %% [markdown]
# ## The model
#
# The encoder scores categories, the decoder has one mean picture for each. The cost function gets
# pairs of a category (`atoms`) and a row of the batch (`row`), and returns a number for each pair.
# Estimators ask for different pairs, and {func}`fewfold.expectation.embed_atoms` looks up
# categories and relaxed one-hot vectors alike.

# %%
codes = 16


class DiscreteVAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(25, 32), nn.Tanh(), nn.Linear(32, codes))
        self.pictures = nn.Parameter(0.5 + 0.1 * torch.randn(codes, 25))

    def loss(self, x, estimator):
        def cost(atoms, row):
            mean = ff.expectation.embed_atoms(atoms, self.pictures)
            return (x[row] - mean).square().sum(1) / (2 * 0.2**2) / 25

        out = ff.expect(cost, self.encoder(x), estimator)
        return out.loss + 0.1 * out.kl().mean(), out


# %% [markdown]
# ## Four estimators
#
# `calls` counts how often the decoder runs per row. It is 16 for the dense sum. The sparse
# distribution starts with as many categories as it needs, and fewer as the encoder becomes certain.
# The last column is the error of the most probable category on new pictures, whose noise alone is
# 1/2. These are figures of one seed and 120 steps, not a ranking.

# %%
estimators = {
    "Dense()": ff.Dense(),
    "SparseMarginal()": ff.SparseMarginal(),
    "ScoreFunction()": ff.ScoreFunction(baseline=ff.expectation.RunningMean()),
    "Gumbel(0.5)": ff.Gumbel(0.5),
}
history, trained = {}, {}
for name, estimator in estimators.items():
    torch.manual_seed(1)
    model = trained[name] = DiscreteVAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    history[name] = []
    for _ in range(120):
        loss, out = model.loss(batch(64)[0], estimator)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history[name].append(out.calls.float().mean().item())
    with torch.no_grad():
        x, _ = batch(2000)
        best = model.pictures[model.encoder(x).argmax(1)]
        error = (x - best).square().mean() / (2 * 0.2**2)
    calls = sum(history[name]) / len(history[name])
    print(f"{name:18} {calls:5.1f} calls per row and step, error {error:.3f}")

# %%
import matplotlib.pyplot as plt

figure, axes = plt.subplots(figsize=(5.5, 2.4), num="Calls of the decoder per row, by step")
for name, calls in history.items():
    axes.plot(calls, label=name)
axes.set(xlabel="step", ylabel="calls per row", ylim=0)
axes.legend()
plt.show()

# %% [markdown]
# ## What the categories mean
#
# The pictures of the decoder that was trained with the sparse distribution, and how many of 2000
# new pictures each explains:

# %%
model = trained["SparseMarginal()"]
used = model.encoder(batch(2000)[0]).argmax(1).bincount(minlength=codes)
figure, panels = plt.subplots(2, 8, figsize=(6.5, 2.1), num="The picture of each category")
for axes, picture, count in zip(panels.flat, model.pictures.detach(), used.tolist(), strict=True):
    axes.imshow(picture.view(5, 5), vmin=0, vmax=1)
    axes.set_title(count, fontsize=7)
    axes.set(xticks=[], yticks=[])
plt.show()

# %% [markdown]
# Next: [all estimators, baselines and bit vectors](../expectation.md), and what their gradients
# cost [in the gallery](../gallery.md#what-a-gradient-costs).
