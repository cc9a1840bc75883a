"""Samples on the simplex from distributions with and without mass on the faces; and q-Gaussians."""

import sys

import torch
from matplotlib.figure import Figure

import fewfold as ff

draw = torch.Generator().manual_seed(0)
loc, scale = torch.tensor([0.4, 0.2, 0.0]), torch.full((3,), 0.6)
corners = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.5, 0.866]])
dists = {
    "logistic-normal": ff.distributions.LogisticNormal(loc, scale),
    "Gaussian-sparsemax": ff.GaussianSparsemax(loc, scale),
    "hard concrete": ff.HardConcrete(loc, 0.7, 1.5),
    "maximum entropy": ff.distributions.MaxEntropyMixed(3),
}
figure = Figure(figsize=(12, 3.2), dpi=130, layout="constrained")
panels = figure.subplots(1, 5)
for axes, (name, dist) in zip(panels[:4], dists.items(), strict=True):
    y = dist.sample((1500,), generator=draw)
    dimension = ff.distributions.face_dimension(ff.distributions.face_of(y))
    share = [float((dimension == d).float().mean()) for d in range(3)]
    print(f"{name:18} corners {share[0]:4.0%}, edges {share[1]:4.0%}, inside {share[2]:4.0%}")
    axes.fill(*corners.T.numpy(), facecolor="none", edgecolor="0.7")
    for d, colour in enumerate(("#D55E00", "#0072B2", "0.45")):
        x = y[dimension == d] @ corners
        size, opaque = (60 * share[0] * 9 if d == 0 else 3), (0.02 if d == 0 else 0.35)
        axes.scatter(*x.T.numpy(), s=size, color=colour, alpha=opaque, linewidths=0)
    axes.set(title=name, xlim=(-0.15, 1.15), ylim=(-0.15, 1.0), aspect="equal")
    axes.axis("off")
line = torch.linspace(-4, 4, 400)
for alpha in (0.5, 1.0, 4 / 3, 1.5, 2.0):
    dist = ff.distributions.QGaussian(torch.zeros(1), torch.eye(1), alpha=alpha)
    panels[4].plot(line, dist.log_prob(line.unsqueeze(1)).exp(), label=f"alpha {alpha:.3g}", lw=1.2)
panels[4].set(title="q-Gaussians", yticks=[])
panels[4].legend(fontsize=7)
figure.savefig(sys.argv[1])
