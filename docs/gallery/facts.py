"""A memory of 16,384 slots and dense layers of the same speed learn random facts by heart."""

import sys
import time

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from torch import nn

import fewfold as ff

FACTS, DIM, ANSWERS, STEPS = 4096, 32, 128, 50
torch.manual_seed(0)
threads = torch.get_num_threads()
torch.set_num_threads(1)  # so that the time of this thread is that of a step
questions, answers = torch.randn(FACTS, DIM), torch.randint(ANSWERS, (FACTS,))

memory = ff.ProductKeyMemory(DIM, 128**2, ff.Tsallis(1.5), k=16, heads=2)
dense = nn.Sequential(nn.Linear(DIM, 2048), nn.GELU(), nn.Linear(2048, DIM))
models = {
    name: nn.Sequential(layer, nn.Linear(DIM, ANSWERS))
    for name, layer in (("memory", memory), ("dense layers", dense))
}
rest = [one for name, one in models["memory"].named_parameters() if "values" not in name]
optimisers = {
    "memory": [ff.optim.Adam(memory.values.parameters(), lr=0.1), torch.optim.Adam(rest, lr=0.01)],
    "dense layers": [torch.optim.Adam(models["dense layers"].parameters(), lr=0.02)],
}

figure, axes = plt.subplots(figsize=(8, 3.5), dpi=150, layout="constrained")
for name, model in models.items():
    recalled, seconds = [], 0.0
    for step in range(STEPS + 1):
        if step % 10 == 0:
            with torch.no_grad():
                right = model(questions[:1024]).argmax(-1) == answers[:1024]
            recalled.append(right.float().mean().item())
        start = time.thread_time()
        batch = torch.randint(FACTS, (512,))
        loss = nn.functional.cross_entropy(model(questions[batch]), answers[batch])
        model.zero_grad()
        loss.backward()
        for optimiser in optimisers[name]:
            optimiser.step()
        seconds += time.thread_time() - start
    size = sum(one.numel() for one in model[0].parameters())
    print(
        f"{name:13} {size:7,} parameters, {1000 * seconds / (STEPS + 1):4.1f} ms a step, ", end=""
    )
    print(f"recalls {recalled[-1]:.0%} of the facts")
    axes.plot(range(0, STEPS + 1, 10), recalled, linewidth=2, label=name)
torch.set_num_threads(threads)

axes.set(xlabel="step", ylabel="facts recalled", xlim=(0, STEPS), ylim=(0, 1))
axes.legend(frameon=False)
axes.spines[["top", "right"]].set_visible(False)
figure.savefig(sys.argv[1])
