# %% [markdown]
# # A softmax over a million
#
# The loss of a classifier over a million classes sums a million exponentials for each example, and
# its gradient touches every row of the table. {func}`fewfold.sampled_softmax_loss` estimates the
# sum from a few hundred classes, drawn from a *proposal*: a distribution that is easy to sample and
# close to the softmax. This tutorial compares two proposals and trains with one.

# %%
import torch
import torch.nn.functional as F

import fewfold as ff

generator = torch.Generator().manual_seed(0)
count, dim = 1_000_000, 16
centres = torch.randn(500, dim, generator=generator)
items = centres[torch.randint(500, (count,), generator=generator)]
items += 0.3 * torch.randn(count, dim, generator=generator)
positives = torch.randint(count, (16,), generator=generator)
queries = items[positives] + 0.3 * torch.randn(16, dim, generator=generator)

exact = F.cross_entropy(queries @ items.T, positives)
print(f"the loss of 16 queries over {count:,} items: {exact:.4f}")

# %% [markdown]
# ## Proposals
#
# `Uniform` ignores the query. `MultiIndex` quantises every item to a pair of codewords; items with
# the same pair form a cell. It scores the cells instead of the items, draws a cell and then an item
# of it. {func}`fewfold.sampling.kl_divergence` compares a proposal with the softmax.

# %%
proposals = {"Uniform": ff.Uniform(), "MultiIndex": ff.MultiIndex(codewords=32)}
for name, proposal in proposals.items():
    proposal.fit(items)
    divergence = ff.sampling.kl_divergence(proposal, queries, items).mean()
    print(f"{name:10} KL divergence from the softmax: {divergence:.2f} nats")

# %% [markdown]
# ## The estimate
#
# Every proposal gives the right value with enough samples. The closer it is to the softmax, the
# fewer are needed.

# %%
import matplotlib.pyplot as plt

table = torch.nn.Parameter(items)
figure, axes = plt.subplots(figsize=(5, 2.8), num="Estimates of the loss by number of samples")
samples = [10, 30, 100, 300, 1000]
for place, (name, proposal) in enumerate(proposals.items()):
    losses = torch.tensor([
        [
            ff.sampled_softmax_loss(
                queries, table, positives, proposal, samples=number, generator=generator
            ).item()
            for _ in range(5)
        ]
        for number in samples
    ])  # fmt: skip
    axes.plot(samples, losses.mean(1), "o-", color=f"C{place}", label=name)
    axes.fill_between(samples, losses.amin(1), losses.amax(1), color=f"C{place}", alpha=0.2, lw=0)
axes.axhline(exact, color="0.4", lw=1, ls="--", label="exact")
axes.set(xscale="log", xlabel="samples per query", ylabel="loss")
axes.legend()
plt.show()

# %% [markdown]
# ## A step
#
# The gradient of the table is sparse: the rows of the positives and of the samples. With a
# [row-wise optimiser](../optim.md) a step reads and writes those rows alone, whatever the size of
# the table.

# %%
optimizer = ff.optim.Adam([table], lr=0.01)
for step in range(3):
    loss = ff.sampled_softmax_loss(
        queries, table, positives, proposals["MultiIndex"], samples=100, generator=generator
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    touched = table.grad.coalesce().indices().shape[1]
    print(f"step {step}: loss {loss:.3f}, {touched:,} of {count:,} rows")

# %% [markdown]
# The item vectors move during training, and the proposal ages: `refresh(table)` updates it, once
# per epoch.
#
# Next: [other proposals, and how to write one](../sampling.md). The FastVAE of [the
# recommender](../recommender.md) is trained in this way.
