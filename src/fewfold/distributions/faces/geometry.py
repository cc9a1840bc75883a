"""Faces of the probability simplex: the sets of nonzero coordinates.

A face is a non-empty set of coordinates, here a boolean vector. Its points are those of the simplex
that are positive exactly there. A simplex with K corners has 2^K - 1 faces.
"""

from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints

from fewfold._check import check_scores, whole_number

__all__ = [
    "MOST",
    "all_faces",
    "face_dimension",
    "face_index",
    "face_of",
    "nonempty_bits",
    "on_simplex",
    "probabilities",
]

MOST = 20  # largest number of coordinates whose faces are enumerated
_LONGEST = 62  # largest number of coordinates whose face index fits in int64


def face_of(y: Tensor) -> Tensor:
    """Return the face of a point of the simplex: the coordinates that are positive.

    Args:
        y: (..., K) probabilities with exact zeros.

    Returns:
        (..., K) boolean.

    Example:
        >>> import torch, fewfold as ff
        >>> ff.distributions.face_of(torch.tensor([0.0, 0.25, 0.75]))
        tensor([False,  True,  True])
    """
    check_scores(y, "y")
    return y.detach() > 0


def face_dimension(faces: Tensor) -> Tensor:
    """Return the dimension of faces: the number of corners minus one.

    Args:
        faces: (..., K) boolean.

    Returns:
        (...) int64; -1 for the empty set.

    Example:
        >>> import torch, fewfold as ff
        >>> ff.distributions.face_dimension(ff.distributions.all_faces(3))
        tensor([0, 0, 1, 0, 1, 1, 2])
    """
    _check_faces(faces)
    return faces.sum(-1) - 1


def all_faces(size: int, device: torch.device | None = None) -> Tensor:
    """List all faces of a simplex, in the order of `face_index`.

    Args:
        size: K, the number of corners, at most 20.
        device: device of the result.

    Returns:
        (2^K - 1, K) boolean.

    Example:
        >>> import fewfold as ff
        >>> ff.distributions.all_faces(2)
        tensor([[ True, False],
                [False,  True],
                [ True,  True]])
    """
    if whole_number(size, "size") > MOST:
        raise ValueError(
            f"size must be at most {MOST} to list all 2^size - 1 faces, got {size}; "
            "draw some instead: uniform_faces(size).sample((1000,))"
        )
    code = torch.arange(1, 2**size, device=device)
    return (code.unsqueeze(-1) >> torch.arange(size, device=device)) % 2 == 1


def face_index(faces: Tensor) -> Tensor:
    """Return the index of faces in `all_faces`: bit k of the index plus one is coordinate k.

    Args:
        faces: (..., K) boolean with K at most 62.

    Returns:
        (...) int64 between 0 and 2^K - 2.

    Example:
        >>> import torch, fewfold as ff
        >>> ff.distributions.face_index(torch.tensor([True, False, True]))
        tensor(4)
    """
    _check_faces(faces)
    size = faces.shape[-1]
    if size > _LONGEST:
        raise ValueError(
            f"faces must have at most {_LONGEST} coordinates to be numbered, got {size}; "
            "compare the boolean vectors instead"
        )
    return (faces.long() << torch.arange(size, device=faces.device)).sum(-1) - 1


def _check_faces(faces: Tensor) -> None:
    if faces.dtype != torch.bool:
        raise TypeError(f"faces must be boolean, got {faces.dtype}; for points write face_of(y)")


class _OnSimplex(constraints.Constraint):
    """Points of the closed simplex, up to rounding of their sum."""

    event_dim = 1

    def check(self, value: Any) -> Any:
        value = value if value.is_floating_point() else value.float()
        return (value >= 0).all(-1) & ((value.sum(-1) - 1).abs() <= self.slack(value))

    def slack(self, value: Tensor) -> float:
        """Tolerance of the sum."""
        return 8 * torch.finfo(value.dtype).eps * max(value.shape[-1], 8)


class _Probabilities(_OnSimplex):
    """Probabilities given as parameters: normalised in float32 or better, then rounded."""

    def slack(self, value: Tensor) -> float:
        return 8 * (torch.finfo(value.dtype).eps + torch.finfo(torch.float32).eps * value.shape[-1])


class _NonemptyBits(constraints.Constraint):
    """Boolean vectors with at least one True."""

    event_dim = 1
    is_discrete = True

    def check(self, value: Any) -> Any:
        return value.bool().any(-1) & ((value == 0) | (value == 1)).all(-1)


on_simplex = _OnSimplex()
probabilities = _Probabilities()
nonempty_bits = _NonemptyBits()
