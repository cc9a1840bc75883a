"""Support of a row of two million scores, and the gradient through it."""

import torch

import fewfold as ff

torch.manual_seed(0)
scores = torch.randn(1, 2_000_000, requires_grad=True)
values = torch.randn(2_000_000)

support = ff.map_support(scores, ff.Tsallis(1.5))
total = support.weights.sum()
print(f"{support.counts.item()} of {scores.numel():,} scores are kept, summing to {total:.6f}")

mean = support.reduce(values[support.atoms])
mean.sum().backward()
print(f"the mean is {mean.item():.4f}; {int((scores.grad != 0).sum())} scores got a gradient")
