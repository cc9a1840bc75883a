"""Tensors of several processes in one folder, written by PyTorch's distributed checkpoints.

Row i of a sharded table is on rank i % world. The folder has it as one tensor, with the rows of
rank 0 first, then those of rank 1, and so on, so that each rank writes one block. A planner takes
the rows of a process from the blocks of however many wrote them.

Importing this takes a second, because it imports all of `torch.distributed.checkpoint`.
"""

import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import (
    DefaultLoadPlanner,
    DefaultSavePlanner,
    create_default_local_load_plan,
    create_default_local_save_plan,
)
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    ReadItem,
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)

from fewfold._tensors import Found
from fewfold.distributed.group import Group

__all__ = ["load", "save", "stored"]

_BLOCK = 1 << 22  # numbers of a table that are read at once


def save(
    folder: Path, tensors: Mapping[str, Tensor], rows: Mapping[str, int], group: Group
) -> None:
    """Write tensors as safetensors files, one of each process; all processes call this.

    Args:
        folder: on a file system that all processes share.
        tensors: of which those not in `rows` are the same in all processes; they are written once.
        rows: number of rows in all processes of each sharded table.
        group: the processes.

    Raises:
        OSError: in all processes, if any could not write its file.
    """
    writer = _storage("Writer")(str(folder), save_distributed=True)
    whole = {name: value.detach().contiguous() for name, value in tensors.items()}
    try:
        # Plans are exchanged as pickled objects, which travel between processes only.
        dcp.save(whole, storage_writer=writer, planner=_SavePlanner(rows, group))
    except CheckpointException as found:
        failures = {rank: failure[0] for rank, failure in sorted(found.failures.items())}
        rank, first = next(iter(failures.items()))
        if all(isinstance(each, OSError) for each in failures.values()):
            assert isinstance(first, OSError)
            text = f"{first.strerror or first} (rank {rank})"
            raise OSError(first.errno, text, first.filename) from None
        raise RuntimeError(f"rank {rank} could not write a checkpoint: {first!r}") from first


def stored(folder: Path) -> Found:
    """Return dtype and shape of each tensor of a folder; sharded tables have all rows."""
    kinds: dict[str, Any] = _storage("Reader")(str(folder)).read_metadata().state_dict_metadata
    return {name: (it.properties.dtype, tuple(it.size)) for name, it in kinds.items()}


def load(folder: Path, rows: Mapping[str, int], written_by: int, group: Group) -> dict[str, Tensor]:
    """Return the tensors of a folder: the rows of this process of sharded tables, others whole.

    Args:
        folder: that `save` wrote.
        rows: number of rows in all processes of each sharded table.
        written_by: number of processes that wrote it.
        group: of any number of processes; nothing is exchanged.
    """
    tensors = {}
    for name, (dtype, shape) in stored(folder).items():
        size = (group.owned(shape[0]), *shape[1:]) if name in rows else shape
        tensors[name] = torch.empty(size, dtype=dtype)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        dcp.load(
            tensors, storage_reader=_storage("Reader")(str(folder)),
            planner=_LoadPlanner(rows, written_by, group), no_dist=True,
        )  # fmt: skip
    return tensors


def _storage(kind: str) -> Any:
    """Return the class that writes or reads safetensors; ImportError if torch has none."""
    found = getattr(dcp, f"HuggingFaceStorage{kind}", None)
    if found is None:
        raise ImportError(
            f"checkpoints of several processes need torch 2.9 or later, this is "
            f"{torch.__version__}; update torch, or train without a checkpoint"
        )
    return found


def _block(rank: int, world: int, shape: torch.Size | tuple[int, ...]) -> ChunkStorageMetadata:
    """Return the place of the rows of a rank, in a stored table of this shape."""
    counts = [len(range(each, shape[0], world)) for each in range(rank + 1)]
    rest = shape[1:]
    return ChunkStorageMetadata(
        torch.Size((sum(counts[:-1]), *(0 for _ in rest))), torch.Size((counts[-1], *rest))
    )


class _SavePlanner(DefaultSavePlanner):
    """Writes the rows of this process of sharded tables, and each other tensor once."""

    def __init__(self, rows: Mapping[str, int], group: Group) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._rows, self._group = rows, group

    def create_local_plan(self) -> SavePlan:
        """Return what this process could write; what others write, too, is divided later."""
        whole = {n: value for n, value in self.state_dict.items() if n not in self._rows}
        plan = create_default_local_save_plan(whole, self.is_coordinator)
        self.plan = replace(plan, items=[*plan.items, *map(self._item, self._rows)])
        return self.plan

    def _item(self, name: str) -> WriteItem:
        local = self.state_dict[name]
        size = torch.Size((self._rows[name], *local.shape[1:]))
        place = _block(self._group.rank, self._group.world, size)
        properties = TensorProperties.create_from_tensor(local)
        return WriteItem(
            MetadataIndex(name, place.offsets), WriteItemType.SHARD,
            tensor_data=TensorWriteData(place, properties, size),
        )  # fmt: skip

    def lookup_object(self, index: MetadataIndex) -> Any:
        """Return the tensor to write; of a sharded table the rows of this process."""
        return self.state_dict[index.fqn]


class _LoadPlanner(DefaultLoadPlanner):
    """Reads whole tensors, and of sharded tables the rows of this process.

    Row j of the block of rank s of W is row s + j W of the table. Those among them that this
    process r of V has are every (V / g)-th of the block, and every (W / g)-th of its own rows, with
    g = gcd(V, W). They are read as contiguous pieces, of which every (V / g)-th row is taken.
    """

    def __init__(self, rows: Mapping[str, int], written_by: int, group: Group) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._rows, self._written_by, self._group = rows, written_by, group
        common = math.gcd(written_by, group.world)
        self._stride, self._own_stride = group.world // common, written_by // common

    def create_local_plan(self) -> LoadPlan:
        """Return what to read."""
        assert self.metadata is not None
        whole = {n: value for n, value in self.state_dict.items() if n not in self._rows}
        plan = create_default_local_load_plan(whole, self.metadata)
        stored = self.metadata.state_dict_metadata
        pieces = [item for name in self._rows for item in self._pieces(name, stored[name])]
        return replace(plan, items=[*plan.items, *pieces])

    def _pieces(self, name: str, table: Any) -> Iterator[ReadItem]:
        assert isinstance(table, TensorStorageMetadata)
        world, (rank, own) = self._written_by, (self._group.rank, self._group.world)
        step = max(1, _BLOCK // max(1, table.size[1:].numel() * self._stride)) * self._stride
        for source in range(world):
            place = _block(source, world, table.size)
            shared = [j for j in range(self._stride) if (source + j * world) % own == rank]
            for first in range(shared[0], place.sizes[0], step) if shared else ():
                zeros = (0,) * (len(table.size) - 1)
                length = min(step, place.sizes[0] - first)
                yield ReadItem(
                    LoadItemType.TENSOR, MetadataIndex(name),
                    torch.Size(((source + first * world) // own, *zeros)),
                    MetadataIndex(name, place.offsets), torch.Size((first, *zeros)),
                    torch.Size((length, *table.size[1:])),
                )  # fmt: skip

    def resolve_tensor(self, read_item: ReadItem) -> Tensor:
        """Return the tensor to read into."""
        name = read_item.dest_index.fqn
        if name not in self._rows:
            found: Tensor = super().resolve_tensor(read_item)
            return found
        return torch.empty(read_item.lengths, dtype=self.state_dict[name].dtype)

    def commit_tensor(self, read_item: ReadItem, tensor: Tensor) -> None:
        """Take the rows of this process out of a piece of a table."""
        name = read_item.dest_index.fqn
        if name in self._rows:
            taken = tensor[:: self._stride]
            own = self.state_dict[name][read_item.dest_offsets[0] :: self._own_stride]
            own[: len(taken)] = taken
