"""`DistributedDataParallel` for models with anchor tables."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from fewfold.embeddings.table.embedding import AnchorEmbedding

__all__ = ["DataParallel"]


class DataParallel(DistributedDataParallel):
    """`DistributedDataParallel` that supports the sparse gradients of anchor tables.

    torch's class expects sparse gradients from `nn.Embedding` and `nn.EmbeddingBag` only, and fails
    in the backward pass of other modules that have them. This one also expects them from every
    `AnchorEmbedding(sparse=True)`. Each process holds the whole model and its part of the batch.
    Gradients are averaged; of a transform only the rows that some process used are exchanged.

    The `slots` of a table are broadcast from the first process once, on construction, not before
    every forward pass; torch cannot send some of their dtypes. With `Regrow` the processes exchange
    the gradients it uses, so that all of them select the same anchors.

    Use the same optimiser, schedule and number of steps in every process. A deferred penalty is
    applied to rows when they are read, which happens at different steps in different processes: the
    copies of a transform may differ by rounding.

    The hooks on the tables exist as long as the wrapper does. `detach` removes them at once, and
    returns the model for use without the wrapper; call it in all processes.

    Args:
        module: the model; wrap it after `narrow`. Tables must have `max_norm=None`, because each
            process would rescale different rows.
        args, options: as in `DistributedDataParallel`.
    """

    knows_sparse_tables = True  # read by AnchorEmbedding in the forward pass

    def __init__(self, module: nn.Module, *args: Any, **options: Any) -> None:
        tables = [each for each in module.modules() if isinstance(each, AnchorEmbedding)]
        for table in tables:
            if table.max_norm is not None:
                raise ValueError(
                    f"tables must have max_norm=None, got {table.max_norm}: each process scales "
                    "the rows it reads, and the copies would drift apart"
                )
        slots = {id(table.slots) for table in tables if table.slots is not None}
        ignored = {name for name, value in module.named_buffers() if id(value) in slots}
        with _ignoring(module, ignored):
            super().__init__(module, *args, **options)
        self._detached = False
        first = dist.get_global_rank(self.process_group, 0)
        for table in tables:
            if table.slots is not None:  # as bytes: gloo does not support int16
                dist.broadcast(table.slots.view(torch.uint8), first, group=self.process_group)
            table.attached.set_gather(self._gather)

    def detach(self) -> nn.Module:
        """Remove the hooks that exchange gradients and return the model.

        The wrapper cannot be used afterwards.
        """
        if not self._detached:
            self._detached = True
            self._remove_autograd_hooks()
            for table in self.module.modules():
                if isinstance(table, AnchorEmbedding):
                    table.attached.clear_gather(self._gather)
        model: nn.Module = self.module
        return model

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Return the output of the model."""
        if self._detached:
            raise RuntimeError(
                "this DataParallel has been detached from its model; call the model itself, or "
                "wrap it again"
            )
        return super().forward(*inputs, **options)

    def _build_params_for_reducer(self) -> tuple[list[Tensor], list[bool]]:
        """Return the parameters and whether the gradient of each is sparse."""
        parameters, sparse = super()._build_params_for_reducer()
        rows = {
            id(each.transform)
            for each in self.module.modules()
            if isinstance(each, AnchorEmbedding) and each.sparse
        }
        return parameters, [a or id(p) in rows for p, a in zip(parameters, sparse, strict=True)]

    def _gather(self, rows: Tensor, gradients: Tensor) -> tuple[Tensor, Tensor]:
        """Gather rows (n,) and their gradients (n, d), divided by the number of processes."""
        count = torch.tensor([len(rows)], device=rows.device)
        world = dist.get_world_size(self.process_group)
        counts = [torch.empty_like(count) for _ in range(world)]
        dist.all_gather(counts, count, group=self.process_group)
        sizes = [int(size) for size in counts]
        gathered = []
        for part in (rows, gradients / world):
            padded = part.new_zeros(max(sizes), *part.shape[1:])
            padded[: len(part)] = part
            theirs = [torch.empty_like(padded) for _ in range(world)]
            dist.all_gather(theirs, padded, group=self.process_group)
            gathered.append(torch.cat([one[:n] for one, n in zip(theirs, sizes, strict=True)]))
        return gathered[0], gathered[1]


@contextlib.contextmanager
def _ignoring(module: nn.Module, names: set[str]) -> Iterator[None]:
    """Make torch's constructor ignore the parameters and buffers of these names."""
    attribute = "_ddp_params_and_buffers_to_ignore"
    before = vars(module).get(attribute)
    setattr(module, attribute, names | set(before or ()))
    try:
        yield
    finally:
        if before is None:
            delattr(module, attribute)
        else:
            setattr(module, attribute, before)
