"""Loader of MNIST and Fashion-MNIST."""

import gzip
import struct
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from experiments.datasets import DATA

_STEM = {"train": "train", "test": "t10k"}


def images(name: str, part: str) -> tuple[Tensor, Tensor]:
    """Return the images, uint8 (n, 28, 28), and their labels, int64 (n,).

    Args:
        name: the folder, ``mnist`` or ``fashion-mnist``.
        part: ``train`` or ``test``.
    """
    if part not in _STEM:
        raise ValueError(f"part must be one of {', '.join(_STEM)}, got {part!r}")
    stem = DATA / name / _STEM[part]
    if not stem.parent.is_dir():
        raise FileNotFoundError(
            f"there is no {name} in {DATA}; set FEWFOLD_DATA to the folder that has it"
        )
    shown = read_idx(stem.with_name(f"{stem.name}-images-idx3-ubyte.gz"))
    labels = read_idx(stem.with_name(f"{stem.name}-labels-idx1-ubyte.gz"))
    if len(shown) != len(labels):
        raise ValueError(
            f"{name} must have a label for each of {len(shown)} images, got {len(labels)}"
        )
    return shown, labels.long()


def read_idx(path: Path) -> Tensor:
    """Read a gzipped idx file as uint8, in the shape of its header."""
    content = gzip.decompress(path.read_bytes())
    kind, dims = content[2], content[3]  # behind two zeros
    if content[:2] != b"\0\0" or kind != 8:
        raise ValueError(f"{path} must be an idx file of bytes, got the header {content[:4]!r}")
    first = 4 + 4 * dims
    shape = struct.unpack(f">{dims}I", content[4:first])
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=first).copy()).view(shape)
