"""A memory of fixed size compresses an unbounded stream and keeps what was attended to."""

import sys

import torch
from matplotlib.figure import Figure
from torch import Tensor

import fewfold as ff

torch.manual_seed(0)
updates, length, dim = 24, 32, 48
vectors = torch.nn.functional.normalize(torch.randn(updates, dim), dim=1)  # one vector per update
basis = ff.continuous.GaussianBasis.grid(96, [0.01, 0.03])
line = torch.linspace(0, 1, 600)
attended_update = 12  # the update that is attended to repeatedly


def looking_at(signal: Tensor) -> ff.continuous.LineDensity:
    """Return a mixture: a tenth where the memory resembles the marked vector, the rest uniform."""
    scores = torch.relu(signal @ vectors[attended_update]) ** 4
    narrow = ff.continuous.LineDensity.from_attention(scores / scores.sum(), line)
    mean = torch.stack([narrow.mu, torch.tensor(0.5)])
    variance = torch.stack([narrow.variance, torch.tensor(1 / 12)])
    return ff.continuous.LineDensity.from_moments(mean, variance, weights=torch.tensor([0.1, 0.9]))


figure = Figure(figsize=(10.5, 3.4), dpi=130, layout="constrained")
panels = figure.subplots(1, 3, width_ratios=[1.2, 1.2, 1])
for axes, (name, sticky) in zip(
    panels, {"even": None, "sticky": ff.continuous.Sticky()}.items(), strict=False
):
    memory = ff.ContinuousMemory(basis, samples=256, ridge=0.1, sticky=sticky)
    generator, attended, history = torch.Generator().manual_seed(0), None, []
    for step in range(updates):
        memory.update(vectors[step].expand(length, dim), attended, generator=generator)
        signal = torch.nn.functional.normalize(memory.signal(line), dim=1)
        history.append(signal @ vectors.T)
        attended = looking_at(signal) if step >= attended_update else None
    shown = torch.stack(history)[-1].T.clamp(0, 1)
    axes.imshow(shown, aspect="auto", extent=(0, 1, updates, 0), cmap="Blues")
    axes.axhline(attended_update + 0.5, color="0.3", linewidth=0.5, linestyle=":")
    axes.text(0.98, attended_update + 0.2, "attended to", color="0.2", ha="right", fontsize=8)
    axes.set(title=f"{name} samples", xlabel="position in the memory", ylabel="update")
    best = torch.stack(history)[-1].amax(0)
    panels[2].plot(range(updates - 1, -1, -1), best, label=name)
    width = float((shown[attended_update] > 0.5).float().mean())
    mu = (memory.interval(0)[0] + 1) / 2
    newest = ff.continuous_attention(memory.signal, torch.tensor([mu]), torch.tensor([1e-4]))
    print(
        f"{name:7} {tuple(memory.signal.coefficients.shape)} after {updates * length} vectors; "
        f"newest {float(newest[0] @ vectors[-1]):.2f}, 5 ago {float(best[-6]):.2f}, "
        f"20 ago {float(best[-21]):.2f}; update {attended_update} takes {width:.1%} of the line"
    )
panels[2].axvline(updates - 1 - attended_update, color="0.6", linewidth=0.7, linestyle=":")
panels[2].text(
    updates - 1.2 - attended_update, 0.02, "attended to", rotation=90, ha="right", fontsize=8
)
panels[2].set(title="retention", xlabel="age in updates", ylabel="best match", ylim=(0, 1.05))
panels[2].legend(title="samples", fontsize=8, loc="lower left")
figure.savefig(sys.argv[1])
