"""Four heads learn the alpha that generated the attention weights they are trained on."""

import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch

import fewfold as ff

torch.manual_seed(0)
true = torch.tensor([1.1, 1.3, 1.6, 1.9])[:, None, None]
scores = torch.randn(4, 64, 32)
target = ff.entmax(scores, true)

heads = ff.AdaptiveEntmax((4, 1, 1))
optimiser = torch.optim.Adam(heads.parameters(), lr=0.1)
history = []
for _ in range(200):
    loss = (heads(scores) - target).square().sum(-1).mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    history.append(heads.alpha.detach().flatten())

print("true   ", [f"{alpha:.3f}" for alpha in true.flatten()])
print("learnt ", [f"{alpha:.3f}" for alpha in history[-1]])
print("support of 32", [f"{size:.1f}" for size in (heads(scores) > 0).sum(-1).float().mean(-1)])

figure, axes = plt.subplots(figsize=(8, 3.5), dpi=150, layout="constrained")
for head, path in enumerate(torch.stack(history).T):
    (line,) = axes.plot(path, linewidth=2)
    axes.axhline(true[head].item(), color=line.get_color(), linestyle=":", linewidth=1)
axes.set(xlabel="step", ylabel="alpha", xlim=(0, len(history)), ylim=(1, 2))
axes.spines[["top", "right"]].set_visible(False)
figure.savefig(sys.argv[1])
