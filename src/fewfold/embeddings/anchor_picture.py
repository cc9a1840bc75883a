"""Plot of the objects and labels of anchors."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from fewfold._optional import optional_import

__all__ = ["draw_anchors"]

_BLUE, _ORANGE = "#0072B2", "#E69F00"  # distinguishable with colour blindness
_ANCHORS, _LABELS = 40, 16


def draw_anchors(
    path: str | os.PathLike[str],
    objects: Sequence[int],
    widths: Sequence[int],
    labels: Mapping[int, Mapping[str, float]],
) -> None:
    """Plot objects per anchor, anchors per object, and labels per anchor if there are any.

    Args:
        path: file to write; its suffix selects the format.
        objects: number of objects per anchor, descending.
        widths: number of objects with 0, 1, 2, ... anchors.
        labels: of each anchor, the shares of its members that have each label.
    """
    figure_class = _figure_class()
    tall = 3.2 + (0.17 * min(len(labels), _ANCHORS) + 1.6 if labels else 0)
    figure = figure_class(figsize=(9, tall), dpi=120, layout="constrained")
    if labels:
        grid = figure.add_gridspec(2, 2, height_ratios=[3.2, tall - 3.2])
        _labels(figure, figure.add_subplot(grid[1, :]), labels)
    else:
        grid = figure.add_gridspec(1, 2)
    left, right = figure.add_subplot(grid[0, 0]), figure.add_subplot(grid[0, 1])
    left.bar(range(len(objects)), objects, width=0.9, color=_BLUE)
    left.set(xlabel="anchors, the one most used first", ylabel="objects that mix it")
    right.bar(range(len(widths)), widths, width=0.9, color=_ORANGE)
    right.set(xlabel="anchors that an object mixes", ylabel="objects")
    right.xaxis.get_major_locator().set_params(integer=True)
    left.xaxis.get_major_locator().set_params(integer=True)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def _labels(figure: Any, axes: Any, labels: Mapping[int, Mapping[str, float]]) -> None:
    """Plot a matrix of anchors by labels, anchors grouped by main label."""
    shown = list(labels)[:_ANCHORS]
    total: Counter[str] = Counter()
    for anchor in shown:
        total.update(labels[anchor])  # a Counter adds any numbers
        total[next(iter(labels[anchor]))] += len(shown)  # main labels come first
    across = [label for label, _ in total.most_common(_LABELS)]

    def main(anchor: int) -> tuple[int, float]:
        label, share = next(iter(labels[anchor].items()))
        return (across.index(label) if label in across else len(across), -share)

    down = sorted(shown, key=main)
    image = axes.imshow(
        [[labels[anchor].get(label, 0.0) for label in across] for anchor in down],
        cmap="Blues", vmin=0, vmax=1, aspect="auto",
    )  # fmt: skip
    axes.set_xticks(range(len(across)), across, rotation=40, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(down)), [str(anchor) for anchor in down], fontsize=7)
    axes.set(xlabel="label", ylabel="anchor")
    figure.colorbar(image, ax=axes, label="share of the objects tied to it most", pad=0.01)


def _figure_class() -> Any:
    with optional_import("matplotlib", "demo", "a picture"):
        from matplotlib.figure import Figure
    return Figure
