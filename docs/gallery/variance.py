"""Variance of the gradient of each estimator against the number of cost evaluations."""

import sys
from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

import fewfold as ff

torch.manual_seed(0)
problems, copies = 8, 3000  # the gradients of eight problems, each estimated so many times
temperatures = {2.0: "2", 1.0: "1", 0.5: "½", 0.25: "T = ¼"}
nought = 0.005  # where no variance is drawn


@dataclass
class Toy:
    """Problems with one target point each, matched by one table row or by a sum of rows."""

    title: str
    over: ff.structures.Structure | None
    scores: Tensor  # (problems, n)
    table: Tensor  # (n, 4)
    points: Tensor  # (problems, 4)

    def cost(self, atoms: Tensor, row: Tensor) -> Tensor:
        met = ff.expectation.embed_atoms(atoms, self.table)  # atoms: ids, bits or relaxed vectors
        return (self.points[row % problems] - met).square().sum(1)

    def expect(
        self, estimator: ff.expectation.Estimator, copies: int
    ) -> tuple[ff.expectation.Expectation, Tensor]:
        """Return the expectation and its gradients, (copies, problems, n)."""
        scores = self.scores.repeat(copies, 1, 1).requires_grad_()
        context = self.points.expand(copies, -1, -1)
        out = ff.expect(self.cost, scores, estimator, self.over, context=context)
        (gradients,) = torch.autograd.grad(out.surrogate.sum(), scores, retain_graph=True)
        return out, gradients

    def measure(self, series: list[ff.expectation.Estimator]) -> Tensor:
        """Return calls per row, variance and bias of normalised gradients, (3, estimators)."""
        _, (true,) = self.expect(ff.Dense(), 1)
        rows = []
        for estimator in series:
            out, found = self.expect(estimator, copies)
            variance = found.var(0).sum() / true.square().sum()
            error = (found.mean(0) - true).square().sum() / true.square().sum()
            bias = (error - variance / copies).clamp(min=0).sqrt()
            rows.append(torch.stack([out.calls.float().mean(), variance, bias]))
        return torch.stack(rows, 1)


def baselines(toy: Toy) -> tuple[ff.expectation.RunningMean, ff.expectation.Learned]:
    """Return both baselines after some updates."""
    mean = ff.expectation.RunningMean()
    toy.expect(ff.ScoreFunction(baseline=mean), copies)
    learned = ff.expectation.Learned(nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 1)))
    optimiser = torch.optim.Adam(learned.parameters(), lr=0.02)
    for _ in range(300):
        out, _ = toy.expect(ff.ScoreFunction(baseline=learned), 16)
        optimiser.zero_grad()
        out.loss.backward()
        optimiser.step()
    return mean.eval(), learned


def relaxed(toy: Toy) -> ff.expectation.RELAX:
    """Return RELAX with a trained network."""
    width = toy.scores.shape[1] + toy.points.shape[1]
    network = nn.Sequential(nn.Linear(width, 32), nn.Tanh(), nn.Linear(32, 1))
    estimator = ff.expectation.RELAX(network)
    optimiser = torch.optim.Adam(network.parameters(), lr=0.02)
    for _ in range(200):
        out, _ = toy.expect(estimator, 16)
        optimiser.zero_grad()
        out.error.mean().backward()
        optimiser.step()
    return estimator


def unbiased(toy: Toy) -> dict[str, list[ff.expectation.Estimator]]:
    """Return each kind of estimator with increasing numbers of samples."""
    mean, learned = baselines(toy)
    many = (1, 2, 4, 8, 16)
    found: dict[str, list[ff.expectation.Estimator]] = {
        "score function": [ff.ScoreFunction(samples) for samples in many],
        "running mean": [ff.ScoreFunction(samples, mean) for samples in many],
        "learned": [ff.ScoreFunction(samples, learned) for samples in many],
        "leave one out": [
            ff.ScoreFunction(samples, ff.expectation.LeaveOneOut()) for samples in many[1:]
        ],
        "self-critic": [ff.ScoreFunction(1, ff.expectation.SelfCritic())],
        "sum and sample": [ff.SumAndSample(k, learned) for k in (1, 2, 4, 8)],
        "unordered set": [ff.expectation.UnorderedSet(samples) for samples in many[1:4]],
        "MuProp": [ff.expectation.MuProp(samples) for samples in (1, 3, 7, 15)],
        "REBAR": [ff.expectation.REBAR(0.5)],
        "RELAX": [relaxed(toy)],
    }
    return found if toy.over is None else {**found, "DisARM": [ff.expectation.DisARM()]}


toys = [
    Toy(
        "one of 16 categories", None,
        1.5 * torch.randn(problems, 16), torch.randn(16, 4), torch.randn(problems, 4),
    ),
    Toy(
        "8 bits", ff.structures.Bits(),
        torch.randn(problems, 8), torch.randn(8, 4) / 8**0.5, torch.randn(problems, 4),
    ),
]  # fmt: skip
colours = {
    "score function": "#222222", "running mean": "#E69F00", "learned": "#0072B2",
    "leave one out": "#009E73", "self-critic": "#D55E00", "sum and sample": "#CC79A7",
    "REBAR": "#3B9BD0", "DisARM": "#8C510A", "Gumbel": "#5E3C99", "straight-through": "#B2182B",
    "unordered set": "#66A61E", "MuProp": "#A6761D", "RELAX": "#1F3F77", "plain ST": "#E7298A",
    "dense": "#222222", "sparse": "#222222",
}  # fmt: skip
# Where each name is written, in points from the last of its marks, in both pictures.
places = {
    "score function": [(7, 0), (7, 0)], "running mean": [(7, 0), (7, 0)],
    "learned": [(7, -19), (7, -5)], "leave one out": [(7, -8), (7, 6)],
    "self-critic": [(26, 34), (30, 66)], "sum and sample": [(7, 0), (7, 0)],
    "unordered set": [(7, 0), (7, 0)], "MuProp": [(7, 9), (7, 0)],
    "RELAX": [(-50, -36), (22, 17)],
    "REBAR": [(28, 24), (-8, -34)], "DisARM": [(0, 0), (-30, -42)],
}  # fmt: skip


def line(axes: Axes, name: str, x: Tensor, y: Tensor, **options: Any) -> None:
    print(f"  {name:18}" + "  ".join(f"{a:.3g}: {b:.3g}" for a, b in zip(x, y, strict=True)))
    axes.plot(x, y, color=colours[name], marker="o", markersize=5, **options)


def write(axes: Axes, text: str, x: float, y: float, offset: tuple[int, int], name: str) -> None:
    leader = {"arrowstyle": "-", "linewidth": 0.6, "color": colours[name], "shrinkA": 0}
    axes.annotate(
        text, (x, y), offset, textcoords="offset points", va="center",
        fontsize=9, color=colours[name], arrowprops=leader if abs(offset[1]) > 9 else None,
    )  # fmt: skip


def exact(axes: Axes, toy: Toy) -> None:
    """Plot the estimators without sampling in a band below the others."""
    for name, estimator in {"dense": ff.Dense(), "sparse": ff.SparseMarginal()}.items():
        calls = toy.expect(estimator, 1)[0].calls.float().mean().item()
        print(f"  {name:18}{calls:.3g}: 0")
        mark, text = ("D", name) if calls < 32 else (">", f"{name}: {calls:.0f}")
        place = min(calls, 20.0)  # further to the right there is no room
        axes.plot(place, nought, color=colours[name], marker=mark, markersize=5)
        write(axes, text, place, nought, (7, 0), name)


def dress(soft: Axes, main: Axes) -> None:
    for axes in (soft, main):
        axes.axhspan(0, 0.009, color="0.93", zorder=0)
        axes.grid(color="0.9", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    main.set(xscale="log", yscale="log", xlim=(0.85, 75), ylim=(0.003, 300))
    main.set(xlabel="calls of the cost for a row", title="unbiased")
    main.set_xticks(ticks := [1, 2, 4, 8, 16, 32], [str(tick) for tick in ticks])
    main.set_xticks([], minor=True)
    soft.set(xlabel="bias", title="one call, biased", xlim=(0, 1))
    soft.set_xticks([0, 0.5, 1], ["0", "50 %", "100 %"])
    soft.set_yticks([nought, 0.01, 0.1, 1, 10, 100], ["0", "0.01", "0.1", "1", "10", "100"])
    soft.set_yticks([], minor=True)
    soft.text(0.5, nought, "exact", ha="center", va="center", fontsize=9, color="0.4")


figure = Figure(figsize=(10, 5.2), dpi=130, layout="constrained")
figure.supylabel("variance of the gradient / its squared length", fontsize=10)
for i, (toy, part) in enumerate(zip(toys, figure.subfigures(1, 2, squeeze=False)[0], strict=True)):
    part.suptitle(toy.title, fontweight="bold")
    soft, main = part.subplots(1, 2, sharey=True, width_ratios=[1, 2.6])
    print(f"{toy.title}\n  calls: variance")
    for name, series in unbiased(toy).items():
        calls, variance, _ = toy.measure(series)
        line(main, name, calls, variance)
        write(main, name, calls[-1].item(), variance[-1].item(), places[name][i], name)
    exact(main, toy)
    print("  bias: variance")
    for high, (name, through) in enumerate({"Gumbel": False, "straight-through": True}.items()):
        series = [ff.Gumbel(temperature, through) for temperature in temperatures]
        _, variance, bias = toy.measure(series)
        line(soft, name, bias, variance, markerfacecolor="white")
        soft.text(0.06, 0.9 + 0.05 * high, name, transform=soft.transAxes, fontsize=9,
                  color=colours[name])  # fmt: skip
    _, spread, bias_alone = toy.measure([ff.expectation.StraightThrough()])
    line(soft, "plain ST", bias_alone, spread)
    soft.text(0.06, 0.85, "plain ST", transform=soft.transAxes, fontsize=9,
              color=colours["plain ST"])  # fmt: skip
    for label, x, y in zip(temperatures.values(), bias.tolist(), variance.tolist(), strict=True):
        write(soft, label, x, y, (6, 4), "straight-through")
    dress(soft, main)
figure.savefig(sys.argv[1])
