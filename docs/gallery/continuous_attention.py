"""Continuous attention: four densities over a sequence, and their expectations over an image."""

import sys

import torch
from matplotlib.figure import Figure
from torch import Tensor

import fewfold as ff

torch.manual_seed(0)
kinds = {"Gaussian": 1.0, "triweight": 4 / 3, "biweight": 3 / 2, "truncated parabola": 2.0}

# A sequence of 60 numbers, and two queries: a sharp one, and one with two places in mind.
places = (torch.arange(60) + 0.5) / 60
sequence = torch.sin(9 * places) + places + 0.25 * torch.randn(60)
signal = ff.continuous.Signal.fit(
    sequence.unsqueeze(-1),
    ff.continuous.GaussianBasis.grid(24, [0.04, 0.1]),
    ridge=ff.continuous.Ridge(0.1),
)
line = torch.linspace(-0.1, 1.1, 1200)


def dense(kind: float) -> tuple[ff.continuous.LineDensity, ff.continuous.LineDensity]:
    """Return a density and a mixture of two, whose moments do not depend on `kind`."""
    one = ff.continuous.LineDensity.from_moments(torch.tensor([0.35]), torch.tensor([0.006]), kind)
    two = ff.continuous.LineDensity.from_moments(
        torch.tensor([[0.2, 0.75]]),
        torch.tensor([[0.002, 0.004]]),
        kind,
        torch.tensor([[0.4, 0.6]]),
    )
    return one, two


figure = Figure(figsize=(11, 5.6), dpi=130, layout="constrained")
top, bottom = figure.subfigures(2, 1, height_ratios=[1.5, 1])
left, right = top.subplots(1, 2)
for axes, title in ((left, "one place"), (right, "a mixture of two")):
    axes.plot(places, sequence, ".", color="0.6", markersize=4, label="values")
    axes.plot(line, signal(line), color="0.3", linewidth=1, label="signal")
    axes.set(title=f"a sequence, {title}", xlim=(-0.1, 1.1), xlabel="place")
for number, (name, alpha) in enumerate(kinds.items()):
    found = []
    for axes, density in zip((left, right), dense(alpha), strict=True):
        height = density.pdf(line) / 5
        # drawn only where it is not zero, so that its end can be seen
        shown = height.where(height > 0, torch.nan)
        axes.plot(line, shown, color=f"C{number}", linewidth=1.4, label=f"{name} / 5")
        found.append(float(signal.expect(density)))
    seen = float((dense(alpha)[0].pdf(places) > 0).float().mean())
    print(f"{name:18} reads {found[0]:+.3f}, mixed {found[1]:+.3f}; sees {seen:4.0%} of the values")
top.legend(*left.get_legend_handles_labels(), fontsize=8, loc="outside lower center", ncols=6)

# An image of 14 by 14 cells: a bright ring and a spot.
cell = (torch.arange(14) + 0.5) / 14
rows, columns = torch.meshgrid(cell, cell, indexing="ij")


def bump(row: float, column: float, size: float) -> Tensor:
    return torch.exp(-((rows - row) ** 2 + (columns - column) ** 2) / (2 * size**2))


ring = torch.exp(-((((rows - 0.62) ** 2 + (columns - 0.6) ** 2).sqrt() - 0.24) ** 2) / 0.003)
image = ring + bump(0.2, 0.2, 0.07)
basis = ff.continuous.GaussianBasis.grid(10, [0.08], dim=2)
picture = ff.continuous.Signal.fit(image.unsqueeze(-1), basis, ridge=0.01)
fine = torch.linspace(0, 1, 112)
grid = torch.stack(torch.meshgrid(fine, fine, indexing="ij"), -1)
covariance = torch.tensor([[0.012, 0.006], [0.006, 0.014]])
bottom.suptitle("an image, and what densities of one mean and covariance see of it")
panels = bottom.subplots(1, 6)
for axes, (title, shown) in zip(
    panels, {"14 x 14 cells": image, "signal": picture(grid.view(-1, 2)).view(112, 112)}.items(),
    strict=False,
):  # fmt: skip
    axes.imshow(shown, extent=(0, 1, 1, 0), cmap="Greys")
    axes.set(title=title, xticks=[], yticks=[])
for axes, (name, alpha) in zip(panels[2:], kinds.items(), strict=True):
    density = ff.continuous.PlaneDensity.from_moments(torch.tensor([0.75, 0.45]), covariance, alpha)
    found = float(picture.expect(density))
    axes.imshow(image, extent=(0, 1, 1, 0), cmap="Greys")
    weight = density.pdf(grid)
    axes.imshow(weight.where(weight > 0, torch.nan), extent=(0, 1, 1, 0), alpha=0.6)
    axes.set(title=name, xticks=[], yticks=[])
    share = float((density.pdf(torch.stack([rows, columns], -1)) > 0).float().mean())
    print(f"{name:18} sees {found:.3f} of the image, in {share:4.0%} of its cells")
figure.savefig(sys.argv[1])
