# %% [markdown]
# # A first recommender
#
# A recommender learns from a log: rows of who touched what. This tutorial reads one, compares three
# models, looks at recommendations, and saves the best model. It needs `pip install
# '.[recommender]'` and matplotlib, and takes seconds.
#
# The log that comes with the package says which packages the source packages of Debian 12 build
# against: the users are source packages, the items are what they need. `core=12` keeps those users
# and items that have at least twelve interactions with each other.

# %%
import fewfold as ff

log = ff.read_log(ff.recommender.bundled(), core=12)
print(log.interactions)

# %% [markdown]
# ## Which model?
#
# `compare` hides a fifth of the interactions of each user, fits every model to the rest, and ranks
# all items for each user. NDCG@10 is 1 if the hidden items come first, and 0 if none is among the
# first ten.

# %%
comparison = ff.compare(log, models=("popularity", "item-knn", "ease"), progress=False)
print(comparison.verdict)

# %%
import matplotlib.pyplot as plt

figure, axes = plt.subplots(figsize=(6, 1.9), num="NDCG@10 of three models with intervals")
for place, one in enumerate(comparison.contenders):
    score = one.evaluation.overall.scores[0]
    axes.barh(place, score.mean, color="C0", height=0.6)
    axes.plot([score.low, score.high], [place, place], color="black", lw=2)
axes.set_yticks(range(len(comparison.contenders)), [one.kind for one in comparison.contenders])
axes.invert_yaxis()
axes.set_xlabel("NDCG@10, with its 95 % interval")
plt.show()

# %% [markdown]
# The intervals say how much the mean would change with other users of the same kind. [How to read
# the metrics](../metrics.md) explains the rest.
#
# ## Fit it and ask
#
# `items_table` names a table with more about the items; its columns are shown with every answer. A
# user is a list of items, so anybody can be asked for, not only users of the log.

# %%
rec = ff.Recommender(ff.recommender.EASE(l2=20.0))
rec.fit(log, items_table=ff.recommender.bundled_items(), progress=False)
print(rec.recommend_from_history(["libssl-dev", "zlib1g-dev", "libpcre2-dev"], k=6, explain=True))

# %% [markdown]
# Below each item are the parts of the history that speak for it. Items that are similar to one:

# %%
print(rec.similar_items("libpng-dev", k=4))

# %% [markdown]
# A user of the log, without what it has already, and only among libraries:

# %%
print(rec.recommend("curl", k=4, where={"section": "libdevel"}))

# %% [markdown]
# ## Keep it
#
# The model is a folder of safetensors and JSON, with the ids and without pickled code.

# %%
import tempfile
from pathlib import Path

with tempfile.TemporaryDirectory() as folder:
    rec.save(Path(folder) / "model")
    again = ff.Recommender.load(Path(folder) / "model")
    print(again.recommend_from_history(["libssl-dev"], k=3).items)

# %% [markdown]
# Next: [serve it](serve_it.py), [compress it](compress_it.py), or read [your own
# CSV](../quickstart.md).
