"""Orthogonality penalty on anchors, as a loss term."""

from torch import Tensor

from fewfold._check import check_scores

__all__ = ["orthogonality"]


def orthogonality(anchors: Tensor) -> Tensor:
    r"""Return :math:`\sum_{i \ne j} |a_i \cdot a_j|`, zero for orthogonal anchors.

    Penalises redundant anchors. The sum grows with the square of their number and of their norm;
    scale its weight accordingly.

    Args:
        anchors: (K, d), such as `table.anchors`.

    Returns:
        Differentiable scalar.

    Example:
        >>> import torch
        >>> orthogonality(torch.tensor([[1.0, 0.0], [-3.0, 1.0], [0.0, 0.0]]))
        tensor(6.)

    Reference: Liang, Zaheer, Wang and Ahmed, Anchor & Transform (2021), appendix.
    """
    check_scores(anchors, "anchors")
    if anchors.dim() != 2:
        raise ValueError(f"anchors must be (K, d), got shape {tuple(anchors.shape)}")
    overlap = (anchors @ anchors.T).abs()
    return overlap.sum() - overlap.diagonal().sum()
