"""Pictures of the page about the idea of the library: python one_idea.py FOLDER."""

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

import fewfold as ff

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "0.55"
CORNERS = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.5, 0.866]])
MAPS = {"softmax": ff.Shannon(), "1.5-entmax": ff.Tsallis(1.5), "sparsemax": ff.Gini()}
COLOURS = dict(zip(MAPS, (GREY, BLUE, ORANGE), strict=True))


def triangle(axes: Axes, title: str) -> None:
    """Draw the simplex of three probabilities."""
    axes.fill(*CORNERS.T, facecolor="none", edgecolor="0.4", lw=1.2)
    for name, (x, y), (dx, dy) in zip(
        ("1, 0, 0", "0, 1, 0", "0, 0, 1"),
        CORNERS.tolist(),
        ((0, -0.09), (0, -0.09), (0, 0.04)),
        strict=True,
    ):
        axes.text(x + dx, y + dy, f"({name})", ha="center", fontsize=8)
    axes.set(xlim=(-0.2, 1.2), ylim=(-0.16, 1.0), aspect="equal", title=title)
    axes.axis("off")


def simplex() -> Figure:
    """Paths of three maps as scores grow, and the supports of all scores."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(6.6, 2.9))
    triangle(left, "growing scores t · (1, 0.6, 0)")
    scores = torch.linspace(0, 12, 400).unsqueeze(1) * torch.tensor([1.0, 0.6, 0.0])
    for name, omega in MAPS.items():
        left.plot(*(omega.argmax(scores) @ CORNERS).T, color=COLOURS[name], label=name, lw=2)
    left.legend(loc="upper left", bbox_to_anchor=(-0.08, 0.95))

    line = torch.linspace(-1.3, 2.3, 181)
    grid = torch.stack(torch.meshgrid(line, line, indexing="xy"), -1).view(-1, 2)
    centre, span = CORNERS.mean(0), CORNERS - CORNERS.mean(0)
    scores = (grid - centre) @ torch.linalg.pinv(span)  # sum to 0: a plane of scores
    probs = ff.sparsemax(scores)
    shades = torch.tensor([[0.80, 0.87, 0.94], [0.98, 0.86, 0.78], [0.90, 0.90, 0.90]])
    inside = shades[(probs > 0).sum(1) - 1].view(181, 181, 3)
    right.imshow(inside, origin="lower", extent=(-1.3, 2.3, -1.3, 2.3), interpolation="nearest")
    triangle(right, "sparsemax: the nearest point")
    right.set(xlim=(-0.7, 1.7), ylim=(-0.6, 1.4))
    for start in ((1.25, 0.75), (0.25, -0.4), (1.45, -0.15)):
        start = torch.tensor(start)
        end = ff.sparsemax((start - centre) @ torch.linalg.pinv(span)) @ CORNERS
        right.annotate(
            "", end.tolist(), start.tolist(), arrowprops={"arrowstyle": "->", "color": "black"}
        )
        right.plot(*start, "o", color="black", ms=4)
    for (x, y), text in {(0.62, -0.35): "2", (1.35, -0.45): "1", (0.5, 0.25): "3"}.items():
        right.text(x, y, f"{text} non-zero", ha="center", fontsize=8)
    return figure


def threshold() -> Figure:
    """How a threshold turns scores into probabilities."""
    scores = torch.tensor([1.9, 1.6, 1.35, 0.9, 0.5, 0.1, -0.3, -0.6])
    probs = ff.sparsemax(scores)
    tau = float(scores[0] - probs[0])
    figure, (left, right) = plt.subplots(1, 2, figsize=(6.6, 2.4))
    place = range(len(scores))
    left.bar(place, scores, color="0.82")
    left.bar(
        place, probs, bottom=scores - probs, color=ORANGE, width=[0.8 * float(p > 0) for p in probs]
    )
    left.axhline(tau, color="black", lw=1)
    left.text(len(scores) - 0.5, tau + 0.05, "threshold τ", ha="right", fontsize=8)
    left.set(title="what exceeds the threshold", xlabel="entry", ylabel="score")
    for name, omega in MAPS.items():
        right.plot(place, omega.argmax(scores), "o-", color=COLOURS[name], label=name, ms=4)
    right.set(title="probabilities", xlabel="entry", ylim=(-0.02, None))
    right.legend()
    return figure


def support() -> Figure:
    """Rows of probabilities, and the same rows as a list of weighted atoms."""
    generator = torch.Generator().manual_seed(3)
    scores = 1.3 * torch.randn(6, 40, generator=generator)
    figure, panels = plt.subplots(2, 1, figsize=(6.6, 2.7))
    for axes, (name, omega) in zip(
        panels, {"softmax": ff.Shannon(), "sparsemax": ff.Gini()}.items(), strict=True
    ):
        probs = omega.argmax(scores)
        image = torch.where(probs > 0, probs.clamp(min=0.03).sqrt(), torch.nan)
        axes.pcolormesh(image, cmap="Blues", vmin=-0.1, vmax=1, edgecolors="0.85", lw=0.3)
        count = int((probs > 0).sum())
        axes.set(title=f"{name}: {count} of {probs.numel()} entries", xticks=[], ylabel="row")
        axes.set_yticks([])
        axes.invert_yaxis()
    panels[1].set_xlabel("atoms; empty cells are exactly zero, and no work is done for them")
    return figure


def loss() -> Figure:
    """Losses of three maps against the lead of the true class."""
    lead = torch.linspace(-3, 4, 300)
    scores = torch.stack([lead, torch.zeros_like(lead)], 1)
    target = torch.zeros(len(lead), dtype=torch.long)
    figure, axes = plt.subplots(figsize=(5, 2.5))
    for name, omega in MAPS.items():
        values = ff.fenchel_young_loss(scores, target, omega, reduction="none")
        axes.plot(lead, values, color=COLOURS[name], label=name)
    for margin, name in ((1, "sparsemax"), (2, "1.5-entmax")):
        axes.plot(margin, 0, "o", color=COLOURS[name], ms=5)
    axes.set(xlabel="lead of the true class over the other", ylabel="loss", ylim=(-0.1, 3))
    axes.legend()
    return figure


def cells() -> Figure:
    """Cells of a multi-index, and the probability of each for a query."""
    generator = torch.Generator().manual_seed(1)
    centres = 1.5 * torch.randn(9, 2, generator=generator)
    items = centres[torch.randint(9, (600,), generator=generator)]
    items += 0.35 * torch.randn(600, 2, generator=generator)
    proposal = ff.MultiIndex(codewords=6).fit(items)
    query = torch.tensor([[1.1, 0.7]])
    share = proposal.log_prob(query, torch.arange(600).unsqueeze(0)).exp()[0]
    books = [axis.unique() for axis in proposal.quantised().T]
    edges = [
        torch.cat([book[:1] - 1.2, (book[1:] + book[:-1]) / 2, book[-1:] + 1.2]) for book in books
    ]
    mass = torch.zeros(len(books[1]), len(books[0]))
    place = [
        torch.bucketize(axis, edge) - 1
        for axis, edge in zip(items.T.contiguous(), edges, strict=True)
    ]
    place = [one.clamp(0, len(book) - 1) for one, book in zip(place, books, strict=True)]
    mass.index_put_((place[1], place[0]), share, accumulate=True)

    figure, panels = plt.subplots(1, 2, figsize=(6.6, 3.0), sharey=True)
    for axes in panels:
        for x in edges[0][1:-1]:
            axes.axvline(x, color="0.8", lw=0.8)
        for y in edges[1][1:-1]:
            axes.axhline(y, color="0.8", lw=0.8)
        axes.scatter(*items.T, s=3, color="0.35", linewidths=0, zorder=3)
        axes.set(
            xticks=[], yticks=[], xlim=(edges[0][0], edges[0][-1]), ylim=(edges[1][0], edges[1][-1])
        )
    x, y = torch.meshgrid(*books, indexing="xy")
    panels[0].plot(x.flatten(), y.flatten(), "+", color=BLUE, ms=7)
    panels[0].set_title("600 items, 6 + 6 codewords")
    mesh = panels[1].pcolormesh(
        *edges, torch.where(mass > 0, mass, torch.nan), cmap="Oranges", vmin=0
    )
    panels[1].annotate(
        "", query[0].tolist(), (0, 0), arrowprops={"arrowstyle": "->", "lw": 1.6}, zorder=4
    )
    panels[1].set_title("probability of a cell for a query")
    figure.colorbar(mesh, ax=panels[1], shrink=0.8)
    return figure


def anchors() -> Figure:
    """A table as the product of sparse weights and few anchors."""
    generator = torch.Generator().manual_seed(0)
    groups, row = torch.randn(5, 16, generator=generator), torch.arange(30)
    weights = torch.zeros(30, 5)
    weights[row, row % 5] = 0.5 + torch.rand(30, generator=generator)
    weights[row, (row + 1 + row % 3) % 5] = torch.rand(30, generator=generator)
    table: Tensor = weights @ groups + 0.1 * torch.randn(30, 16, generator=generator)
    torch.manual_seed(0)
    small = ff.AnchorEmbedding.from_pretrained(table, anchors=5, width=2)
    error = (small.weight - table).norm() / table.norm()
    transform = torch.zeros(30, 5).scatter_add_(1, small.slots.long(), small.transform.detach())
    figure, panels = plt.subplots(
        1, 3, figsize=(6.6, 2.7), width_ratios=(16, 5, 16), height_ratios=(1,)
    )
    shown = (
        (table, f"a table: {table.numel()} numbers", "PuOr_r", -1.0),
        (torch.where(transform > 0, transform, torch.nan), "≈  T, 2 per row", "Blues", 0.0),
        (small.anchors.detach(), "×  A, 5 anchors", "PuOr_r", -1.0),
    )
    for axes, (matrix, title, colours, low) in zip(panels, shown, strict=True):
        high = float(matrix.nan_to_num().abs().max())
        axes.imshow(
            matrix,
            cmap=colours,
            vmin=low * high,
            vmax=high,
            aspect="auto" if len(matrix) > 5 else "equal",
        )
        axes.set(title=title, xticks=[], yticks=[])
        for side in axes.spines.values():
            side.set(visible=True, color="0.6")
    panels[2].set_xlabel(f"{small.size()} numbers; relative error {error:.2f}")
    return figure


def main(folder: Path) -> None:
    """Write all pictures of the page."""
    with plt.style.context(Path(__file__).parents[1] / "house.mplstyle"):
        for draw in (simplex, threshold, support, loss, cells, anchors):
            figure = draw()
            figure.savefig(folder / f"one_idea_{draw.__name__}.png")
            plt.close(figure)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
