"""The page of GPU kernels shows what `python -m benchmarks gpu` predicts."""

from pathlib import Path

from benchmarks.gpu import claims, predictions
from benchmarks.roofline import A100, H100

PAGE = Path(__file__).parents[2] / "docs" / "gpu.md"


def test_the_page_shows_the_predictions() -> None:
    assert predictions() in PAGE.read_text()


def test_a_newer_gpu_is_predicted_to_be_faster() -> None:
    for claim in claims():
        assert 0 < claim.work.seconds(H100) < claim.work.seconds(A100)
