"""The support of a map: its weighted indices, without the dense row."""

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
    """The non-zero entries of a map, as weighted indices.

    The same as `Support.from_dense(omega.argmax(scores, dim), dim)`, but long rows are first cut
    down to the few entries that can be in the support, so the dense row of probabilities is never
    written. Meant for eager use: how many atoms there are depends on the data.

    Args:
        scores: (..., n, ...) with n entries along `dim`.
        omega: the regulariser whose map is wanted; `Gini()`, which is sparsemax, unless given.
        dim: the dimension to map along; the others become the rows, in order.
        mask: boolean, True = keep. A row with nothing kept has no atoms.

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
    # A NaN row is NaN everywhere, which only the dense answer can say.
    if narrowed is None or bool(narrowed[0].top.isnan().any()):
        return Support.from_dense(omega.argmax(scores, dim, mask=mask), dim)
    few, omega = narrowed
    probs = omega.argmax(few.rows)
    row, slot = probs.detach().nonzero().unbind(-1)
    weights = probs[row, slot].to(scores.dtype)
    return Support(weights, few.index[row, slot], row, probs.shape[0])
