"""Data-parallel training of models with anchor tables, on top of torch's."""

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
    """`DistributedDataParallel` for models with anchor tables, also with sparse gradients.

    Torch's own class looks for sparse gradients in `nn.Embedding` and `nn.EmbeddingBag` alone, and
    fails in the backward pass of any other module that has them. This one also expects them of
    every `AnchorEmbedding(sparse=True)`. Each process has the whole model and its part of the
    batch. Gradients are averaged: of a transform only the rows that any process used travel.

    The `slots` of a table are sent from the first process once, at the start, and not before every
    forward pass; some of their dtypes torch could not send at all. With `Regrow` the processes
    exchange the gradients it looks at, so that all take the same anchors.

    Give every process the same optimiser, schedule and number of steps. What rows owe to a penalty
    is collected when they are read, which happens at different steps in different processes: the
    copies of a transform then differ by rounding.

    Tables follow the wrapper for as long as it is alive. `detach` ends that at once, in all
    processes alike, and returns the model to train or use alone.

    Args:
        module: the model; wrap it after `narrow`. Tables may not have a `max_norm`, by which each
            process would scale other rows.
        args, options: as in `DistributedDataParallel`.
    """

    knows_sparse_tables = True  # what a table asks of the module it runs in

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
            if table.slots is not None:  # as bytes: gloo does not send int16
                dist.broadcast(table.slots.view(torch.uint8), first, group=self.process_group)
            table.attached.gather_with(self._gather)

    def detach(self) -> nn.Module:
        """Take everything off the model that its gradients are exchanged by, and return the model.

        The wrapper cannot be used any more.
        """
        if not self._detached:
            self._detached = True
            self._remove_autograd_hooks()
            for table in self.module.modules():
                if isinstance(table, AnchorEmbedding):
                    table.attached.gather_without(self._gather)
        model: nn.Module = self.module
        return model

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """What the model answers."""
        if self._detached:
            raise RuntimeError(
                "this DataParallel has been detached from its model; call the model itself, or "
                "wrap it again"
            )
        return super().forward(*inputs, **options)

    def _build_params_for_reducer(self) -> tuple[list[Tensor], list[bool]]:
        """The parameters, and of which the gradient is sparse."""
        parameters, sparse = super()._build_params_for_reducer()
        rows = {
            id(each.transform)
            for each in self.module.modules()
            if isinstance(each, AnchorEmbedding) and each.sparse
        }
        return parameters, [a or id(p) in rows for p, a in zip(parameters, sparse, strict=True)]

    def _gather(self, rows: Tensor, gradients: Tensor) -> tuple[Tensor, Tensor]:
        """Rows (n,) and the gradients of their vectors (n, d) of all processes, averaged."""
        count = torch.tensor([len(rows)], device=rows.device)
        world = dist.get_world_size(self.process_group)
        counts = [torch.empty_like(count) for _ in range(world)]
        dist.all_gather(counts, count, group=self.process_group)
        sizes = [int(size) for size in counts]
        found = []
        for part in (rows, gradients / world):
            mine = part.new_zeros(max(sizes), *part.shape[1:])
            mine[: len(part)] = part
            theirs = [torch.empty_like(mine) for _ in range(world)]
            dist.all_gather(theirs, mine, group=self.process_group)
            found.append(torch.cat([one[:n] for one, n in zip(theirs, sizes, strict=True)]))
        return found[0], found[1]


@contextlib.contextmanager
def _ignoring(module: nn.Module, names: set[str]) -> Iterator[None]:
    """Let torch's class leave these parameters and buffers out, while it is made."""
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
