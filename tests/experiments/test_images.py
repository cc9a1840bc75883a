"""The reader of MNIST files."""

import gzip
from pathlib import Path

import pytest
import torch

pytest.importorskip("scipy")
from experiments import images
from experiments.datasets import has


def write(path: Path, shape: tuple[int, ...], content: bytes, kind: int = 8) -> None:
    header = bytes([0, 0, kind, len(shape)]) + b"".join(n.to_bytes(4, "big") for n in shape)
    path.write_bytes(gzip.compress(header + content))


def test_bytes_come_back_in_their_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "DATA", tmp_path)
    (tmp_path / "small").mkdir()
    write(tmp_path / "small" / "t10k-images-idx3-ubyte.gz", (2, 2, 3), bytes(range(244, 256)))
    write(tmp_path / "small" / "t10k-labels-idx1-ubyte.gz", (2,), bytes([7, 0]))
    shown, labels = images.images("small", "test")
    assert torch.equal(shown, torch.arange(244, 256, dtype=torch.uint8).view(2, 2, 3))
    assert (labels.dtype, labels.tolist()) == (torch.int64, [7, 0])
    write(tmp_path / "small" / "t10k-labels-idx1-ubyte.gz", (1,), bytes([7]))
    with pytest.raises(ValueError, match="2 images, got 1"):
        images.images("small", "test")


def test_other_files_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "floats.gz", (1,), bytes(4), kind=13)
    with pytest.raises(ValueError, match="idx file of bytes"):
        images.read_idx(tmp_path / "floats.gz")
    with pytest.raises(ValueError, match="train, test, got 'valid'"):
        images.images("mnist", "valid")


@pytest.mark.parametrize(("name", "mean"), [("mnist", 0.1307), ("fashion-mnist", 0.2860)])
def test_the_published_images(name: str, mean: float) -> None:
    if not has(name):
        pytest.skip(f"{name} is not here")
    shown, labels = images.images(name, "train")
    assert (shown.shape, shown.dtype) == ((60_000, 28, 28), torch.uint8)
    assert shown.float().mean().item() / 255 == pytest.approx(mean, abs=1e-4)
    assert labels.bincount().min() > 5_000
    assert images.images(name, "test")[0].shape == (10_000, 28, 28)
