"""Plot of attention weights."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from fewfold._optional import optional_import
from fewfold.support import Support

__all__ = ["picture_attention"]


def picture_attention(
    weights: Tensor | Support,
    queries: Sequence[str],
    keys: Sequence[str] | None = None,
    *,
    axes: Any = None,
) -> Any:
    """Plot the attention weights of one head as a grid of cells.

    Darker cells have more weight. Cells with a weight of exactly zero are left empty, which
    distinguishes them from small weights.

    Args:
        weights: `(m, n)`, or the `attention_support` of one head.
        queries: labels of the rows.
        keys: labels of the columns; default: those of the queries.
        axes: matplotlib axes to draw on; default: a new figure.

    Returns:
        The axes.

    Example:
        >>> import torch, fewfold as ff
        >>> words = ["a", "few", "words"]
        >>> axes = ff.attention.picture_attention(ff.sparsemax(torch.eye(3)), words)
        >>> axes.get_title()
        '3 of 9 pairs'
    """
    with optional_import("matplotlib", "demo", "picture_attention"):
        from matplotlib import pyplot
        from matplotlib.patches import Rectangle
    keys = queries if keys is None else keys
    if isinstance(weights, Support) and bool((weights.atoms >= len(keys)).any()):
        raise ValueError(
            f"keys must have one word per key, got {len(keys)} for key {int(weights.atoms.max())}"
        )
    dense = weights.to_dense(len(keys)) if isinstance(weights, Support) else weights
    if dense.shape != (len(queries), len(keys)):
        raise ValueError(
            f"weights must be of one head, ({len(queries)}, {len(keys)}) as there are words, got "
            f"{tuple(dense.shape)}"
        )
    dense = dense.detach().float().cpu()
    if axes is None:
        size = (0.45 * len(keys) + 1.5, 0.35 * len(queries) + 1.2)
        axes = pyplot.subplots(figsize=size, layout="constrained")[1]
    colours = pyplot.get_cmap("viridis")
    for row, column in dense.nonzero().tolist():
        weight = float(dense[row, column])
        axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, color=colours(1 - weight)))
    axes.set(xlim=(-0.5, len(keys) - 0.5), ylim=(len(queries) - 0.5, -0.5))
    axes.set_xticks(range(len(keys)), list(keys), rotation=60, ha="right")
    axes.set_yticks(range(len(queries)), list(queries))
    axes.set_title(f"{int((dense != 0).sum())} of {dense.numel()} pairs", fontsize=9)
    axes.tick_params(length=0)
    return axes
