"""Several processes that train and rank together, on `torch.distributed`.

The only module that calls collectives: everything else takes a `Group`.
"""

from fewfold.distributed.group import Group
from fewfold.distributed.row_shards import RowShards
from fewfold.distributed.traffic import Traffic

__all__ = ["Group", "RowShards", "Traffic"]
