# %% [markdown]
# # Compress it
#
# Two tables of item vectors are nearly all of a FastVAE. Here they are replaced by a few *anchor*
# vectors and, for each item, a short list of weights. The [page on anchors](../anchors.md) has the
# theory; `fewfold fit --anchors 64` does all of this for a log of yours.
#
# First an ordinary model of [the log of the first tutorial](first_recommender.py), with a fifth of
# the interactions hidden.

# %%
import fewfold as ff

r = ff.recommender
log = r.read_log(r.bundled(), core=12)
split = r.random_split(log.interactions, test=0.2, seed=0)
dense = r.FastVAE(items=log.interactions.items, hidden=96, latent=31)
r.train(
    dense, split.train, epochs=12, batch=100, lr=0.02, objective=r.FullSoftmax(), progress=False
)


def ndcg(model):
    top = model.recommend(split.fold_in, 10)
    return r.evaluate(top, split.test, [r.NDCG(10)]).scores[0]


def kilobytes(model):
    return sum(part.numel() * part.element_size() for part in model.tables.saved().values()) / 1e3


whole = ndcg(dense)
interval = f"{whole.low:.3f} to {whole.high:.3f}"
print(f"dense: {kilobytes(dense):.0f} kB, NDCG@10 {whole.mean:.3f} ({interval})")

# %% [markdown]
# ## Anchors
#
# `from_dense` chooses anchors and weights so that the *scores* change least. There is no further
# training. Weights are stored in a few bits.

# %%
sizes, scores = [], []
for count in (2, 4, 8, 16, 32):
    small = r.AnchorVAE.from_dense(dense, r.Anchors(count=count, bits=6), split.train)
    small.finalize()  # round the weights as they are stored
    sizes.append(kilobytes(small))
    scores.append(ndcg(small))
    print(f"{count:2} anchors: {sizes[-1]:4.1f} kB, NDCG@10 {scores[-1].mean:.3f}")

# %%
import matplotlib.pyplot as plt

figure, axes = plt.subplots(figsize=(5, 2.8), num="NDCG@10 against the size of the tables")
axes.axhspan(whole.low, whole.high, color="0.88", lw=0)
axes.plot(kilobytes(dense), whole.mean, "o", color="0.3")
axes.annotate("dense", (kilobytes(dense), whole.mean), (0, 6), textcoords="offset points")
low = [score.mean - score.low for score in scores]
high = [score.high - score.mean for score in scores]
means = [score.mean for score in scores]
axes.errorbar(sizes, means, [low, high], fmt="o-", label="anchors")
axes.set(xlabel="kB", ylabel="NDCG@10", xscale="log")
axes.legend(loc="lower right")
plt.show()

# %% [markdown]
# The grey band is the interval of the dense model. Where the curve enters it, the small tables
# recommend as well as the large ones on these users.
#
# ## What an anchor is
#
# An item is a mix of anchors, so the anchors group the items. `inspect_anchors` says which items
# mix which anchor. Here a table of vectors of its own is compressed, with the sections of the
# Debian archive as labels.

# %%
import polars as pl
import torch

section = dict(pl.read_parquet(r.bundled_items()).select("name", "section").iter_rows())
names = log.items.tolist()
table = ff.AnchorEmbedding.from_pretrained(
    dense.tables.output_vectors().detach(), anchors=8, width=2
)
torch.manual_seed(0)
print(ff.embeddings.inspect_anchors(table, names=names, labels=[section.get(n) for n in names]))

# %% [markdown]
# Next: [anchors](../anchors.md) in models of your own, in place of `nn.Embedding`.
