"""Several processes that train and rank together, on `torch.distributed`.

The only module that calls collectives: everything else takes a `Group`.
"""

from fewfold.distributed.group import Group, Traffic

__all__ = ["Group", "Traffic"]
