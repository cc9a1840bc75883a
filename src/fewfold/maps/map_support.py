"""Support of a map: the indices and weights of its non-zero entries."""

from torch import Tensor

from fewfold.maps.entropies import Gini
from fewfold.maps.omega import Omega
from fewfold.maps.rows import to_rows
from fewfold.support import Support

__all__ = ["map_support"]


def map_support(
    scores: Tensor,
    omega: Omega | None = None,
    dim: int = -1,
    *,
    mask: Tensor | None = None,
) -> Support:
    """Return the non-zero entries of a map as indices and weights.

    Equal to `Support.from_dense(omega.argmax(scores, dim), dim)`, but long rows are first reduced
    to the entries that can be in the support, and the dense rows of probabilities are never
    allocated. For eager mode only, since the number of atoms depends on the data.

    Args:
        scores: (..., n, ...) with n entries along `dim`.
        omega: the regulariser of the map; `Gini()`, which is sparsemax, by default.
        dim: the mapped dimension; the others are flattened to rows, in order.
        mask: boolean, True = keep. A fully masked row has no atoms.

    Returns:
        `Support` whose weights are differentiable with respect to the scores and the parameters
        of omega.

    Example:
        >>> import torch, fewfold as ff
        >>> support = ff.map_support(torch.tensor([[-2.0, 0.0, 0.5], [9.0, 0.0, 0.0]]))
        >>> support.atoms.tolist(), support.row.tolist(), support.weights.tolist()
        ([1, 2, 0], [0, 0, 1], [0.25, 0.75, 1.0])
    """
    omega = Gini() if omega is None else omega
    rows = to_rows(scores, dim, mask)
    narrowed = omega.candidates(rows, scores, dim)
    # The result of a row with NaN is NaN in every entry, which needs the dense path.
    if narrowed is None or bool(narrowed[0].top.isnan().any()):
        return Support.from_dense(omega.argmax(scores, dim, mask=mask), dim)
    candidates, omega = narrowed
    probs = omega.argmax(candidates.rows)
    row, slot = probs.detach().nonzero().unbind(-1)
    weights = probs[row, slot].to(scores.dtype)
    return Support(weights, candidates.index[row, slot], row, probs.shape[0])
