"""Learn anchors for Debian packages from their build dependencies, and inspect them."""

import sys

import polars as pl
import torch

import fewfold as ff

torch.manual_seed(0)
log = ff.read_log(ff.recommender.bundled())
made = log.interactions
user = torch.arange(made.users).repeat_interleave(made.jagged.lengths)
pairs, ones = torch.stack([made.ids, user]), torch.ones(len(user))
uses = torch.sparse_coo_tensor(pairs, ones, (made.items, made.users), check_invariants=False)
left, size, _ = torch.svd_lowrank(uses, 64, niter=4)

table = ff.AnchorEmbedding.from_pretrained(left * size.sqrt(), anchors=32, width=4)
names = [str(name) for name in log.items.values]
sections = dict(pl.read_parquet(ff.recommender.bundled_items()).iter_rows())
found = ff.embeddings.inspect_anchors(
    table, names=names, labels=[sections.get(name) for name in names]
)
print(found)
found.plot(sys.argv[1])
