"""Penalties to be added to a loss."""

from torch import Tensor

from fewfold._check import check_scores

__all__ = ["orthogonality"]


def orthogonality(anchors: Tensor) -> Tensor:
    r"""How far anchors are from being orthogonal, :math:`\sum_{i \ne j} |a_i \cdot a_j|`.

    Anchors that overlap say the same thing twice. The sum grows with the square of their number and
    of their length, and so does the weight to give it.

    Args:
        anchors: (K, d), such as `table.anchors`.

    Returns:
        A scalar with gradient.

    Example:
        >>> import torch
        >>> orthogonality(torch.tensor([[1.0, 0.0], [-3.0, 1.0], [0.0, 0.0]]))
        tensor(6.)

    Reference: Liang, Zaheer, Wang and Ahmed, Anchor & Transform (2021), appendix.
    """
    check_scores(anchors, "anchors")
    if anchors.dim() != 2:
        raise ValueError(f"anchors must be (K, d), got shape {tuple(anchors.shape)}")
    size = (anchors @ anchors.T).abs()
    return size.sum() - size.diagonal().sum()
