"""Write the figures of the plane, and the figure and table of results.json.

``python -m experiments.hopfield_landscapes.table``
"""

from pathlib import Path

import matplotlib
import torch
import torch.nn.functional as F
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from torch import Tensor

import fewfold as ff
from experiments import readme
from experiments.hopfield_landscapes.run import BETAS, LARGEST, MAPS, RECORD
from experiments.record import Row

HERE = Path(__file__).parent
README = HERE / "README.md"
PLANE = ("softmax", "1.5-entmax", "sparsemax", "normmax 2", "normmax 5", "2-subsets")
COLOURS = torch.tensor([to_rgb(f"C{i}") for i in range(5)])
NEAR = 1e-3  # to 0 or 1 are all weights where a query counts as led to a pattern, or a set of them
_REACH = 1.25  # of the pictures, around a circle of radius 1


def memories() -> list[Tensor]:
    """Return memories: three patterns at corners, and three random sets of five on the circle."""
    generator = torch.Generator().manual_seed(42)
    corners = torch.tensor([[-1.0, -1.0], [-1.0, 1.0], [1.0, -1.0]])
    drawn = torch.randn(3, 5, 2, generator=generator)
    return [F.normalize(memory, dim=1).double() for memory in (corners, *drawn)]


def grid(points: int, reach: float = _REACH) -> Tensor:
    """Return points (points^2, 2) of the plane around the circle."""
    line = torch.linspace(-reach, reach, points, dtype=torch.float64)
    return torch.stack(torch.meshgrid(line, line, indexing="xy"), -1).view(-1, 2)


def basins(points: int = 100) -> Figure:
    """Plot the retrieved state of each query: colours of patterns, mixed between several."""
    every = memories()
    figure, panels = _panels(len(every))
    for row, memory in zip(panels, every, strict=True):
        for axes, name in zip(row, PLANE, strict=True):
            energy = ff.FenchelYoung(MAPS[name], beta=10.0)
            found = ff.hopfield_retrieve(grid(points), memory, energy, max_steps=50)
            probs = energy.probs(found.state, memory)
            shade = (probs / probs.sum(1, keepdim=True)).float() @ COLOURS[: len(memory)]
            alone = torch.minimum(probs, 1 - probs).amax(1) < NEAR
            shade = torch.where(alone[:, None], shade, 0.45 * shade + 0.55)
            _show(axes, memory)
            box = (-_REACH, _REACH, -_REACH, _REACH)
            image = shade.view(points, points, 3)
            axes.imshow(image.numpy(), origin="lower", extent=box, interpolation="nearest")
    legend = "full: led to one pattern, or one set of two; pale: to a mix"
    figure.supxlabel(legend, fontsize="medium")
    return figure


def contours(points: int = 60) -> Figure:
    """Plot the energy, and the trajectory of one query."""
    every = memories()
    figure, panels = _panels(len(every))
    for row, memory in zip(panels, every, strict=True):
        for axes, name in zip(row, PLANE, strict=True):
            energy = ff.FenchelYoung(MAPS[name], beta=1.0)
            reach = 2 * _REACH if name == "2-subsets" else _REACH  # sums of two are further out
            places = grid(points, reach)
            height = energy.value(places, memory).view(points, points)
            x, y = places.view(points, points, 2).permute(2, 0, 1).numpy()
            axes.contourf(x, y, height.numpy(), levels=14, cmap="viridis")
            way = [torch.tensor([[0.1, 0.9]], dtype=torch.float64)]
            for _ in range(40):
                way.append(energy.step(way[-1], memory))
            axes.plot(*torch.cat(way).T.numpy(), "-o", color="white", ms=2.5, lw=1)
            _show(axes, memory)
            axes.set(xlim=(-reach, reach), ylim=(-reach, reach))
    return figure


def states(rows: list[Row]) -> Figure:
    """Plot the distribution of support sizes."""
    figure, panels = pyplot.subplots(
        len(BETAS), len(MAPS), figsize=(13, 4.2), sharex=True, sharey=True, layout="constrained"
    )
    for line, beta in zip(panels, BETAS, strict=True):
        line[0].set_ylabel(f"beta {beta:g}\nper cent")
        for axes, name in zip(line, MAPS, strict=True):
            for row in _rows(rows, name, beta):
                axes.bar(range(LARGEST + 2), row["per cent"], color="#0072B2")
            axes.spines[["top", "right"]].set_visible(False)
            axes.set_xticks([1, 4, 8, LARGEST + 1], ["1", "4", "8", f">{LARGEST}"])
    for axes, name in zip(panels[0], MAPS, strict=True):
        axes.set_title(name, fontsize="medium")
    figure.supxlabel("memories that a query ends between", fontsize="medium")
    return figure


def table(rows: list[Row]) -> str:
    """Return a Markdown table: percentage of queries by support size."""
    sizes = [*map(str, range(LARGEST + 1)), f"more than {LARGEST}"]
    lines = [["beta", "map", "queries", *sizes, "median"], ["---"] * (4 + len(sizes))]
    for beta in BETAS:
        for name in MAPS:
            for row in _rows(rows, name, beta):
                shares = (f"{share:.1f}" if share else "" for share in row["per cent"])
                queries = f"{row['queries']:,}"
                lines.append([f"{beta:g}", name, queries, *shares, str(row["median"])])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _rows(rows: list[Row], name: str, beta: float) -> list[Row]:
    """Return the rows of a cell, the one with the most queries last."""
    own = [row for row in rows if (row["map"], row["beta"]) == (name, beta)]
    return sorted(own, key=lambda row: row["queries"])[-1:]


def _panels(lines: int) -> tuple[Figure, list[list[Axes]]]:
    figure, panels = pyplot.subplots(
        lines, len(PLANE), figsize=(2 * len(PLANE), 2 * lines), layout="constrained"
    )
    for axes, name in zip(panels[0], PLANE, strict=True):
        axes.set_title(name, fontsize="medium")
    return figure, panels.tolist()


def _show(axes: Axes, memory: Tensor) -> None:
    axes.scatter(
        memory[:, 0], memory[:, 1], c=COLOURS[: len(memory)], edgecolors="black", s=30, zorder=3
    )
    axes.set(xticks=[], yticks=[], aspect="equal")


def main() -> None:
    """Rewrite the README and the figures."""
    matplotlib.use("Agg")
    rows = RECORD.rows()
    readme.update(README, table(rows))
    readme.keep(basins(), HERE / "basins.png")
    readme.keep(contours(), HERE / "contours.png")
    readme.keep(states(rows), HERE / "states.png")


if __name__ == "__main__":
    main()
