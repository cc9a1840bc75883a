"""Basins of attraction in the plane of a memory of five patterns, for five maps."""

import sys

import torch
import torch.nn.functional as F
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

import fewfold as ff

torch.manual_seed(0)
memory = F.normalize(torch.randn(5, 2), dim=1)
line = torch.linspace(-1.6, 1.6, 100)
grid = torch.stack(torch.meshgrid(line, line, indexing="xy"), -1).view(-1, 2)
colours = torch.tensor([to_rgb(f"C{i}") for i in range(5)])

figure = Figure(figsize=(11, 2.55), dpi=130, layout="constrained")
for axes, (name, omega) in zip(
    figure.subplots(1, 5),
    {
        "softmax": ff.Shannon(),
        "1.5-entmax": ff.Tsallis(1.5),
        "sparsemax": ff.Gini(),
        "normmax(5)": ff.Norm(5.0),
        "2-subsets": ff.Subset(2),
    }.items(),
    strict=True,
):
    energy = ff.FenchelYoung(omega, beta=5.0)
    found = ff.hopfield_retrieve(grid, memory, energy, max_steps=50)
    weights = energy.probs(found.state, memory)
    near = (found.state.unsqueeze(1) - memory).norm(dim=2).amin(1)
    print(
        f"{name:11} {(near < 1e-3).float().mean():5.1%} end in one pattern, "
        f"{(near == 0).float().mean():5.1%} exactly; {found.steps.float().mean():4.1f} steps"
    )
    shade = weights / weights.sum(1, keepdim=True) @ colours
    extent = (line[0], line[-1], line[0], line[-1])
    axes.imshow(shade.view(100, 100, 3), origin="lower", extent=extent, interpolation="nearest")
    axes.scatter(*memory.T, c=colours, edgecolors="black", s=45)
    axes.set(title=name, xticks=[], yticks=[])
figure.savefig(sys.argv[1])
