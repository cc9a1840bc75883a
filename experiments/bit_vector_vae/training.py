"""One training run: epochs, evaluation after each, and checkpoints."""

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import fewfold as ff
from experiments import checkpoint
from experiments.bit_vector_vae.model import BitVAE, Method, testing
from fewfold import _progress

Row = dict[str, Any]
DRAWS = 16


@dataclass(frozen=True)
class Data:
    """Images, uint8 `(n, pixels)`."""

    train: Tensor
    valid: Tensor
    test: Tensor


class Run:
    """A model in training, reproducible from its seed even if interrupted and resumed."""

    def __init__(self, method: Method, bits: int, seed: int) -> None:
        self.method, self.bits, self.over = method, bits, method.over(bits)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.model = BitVAE(bits)
            self.estimator = method.estimator(bits)
        self.generator = torch.Generator().manual_seed(seed)
        learned = [part for part in vars(self.estimator).values() if isinstance(part, nn.Module)]
        self.parts = nn.ModuleList([self.model, *learned])
        self.optimizer = torch.optim.Adam(self.parts.parameters(), method.lr[bits], fused=True)
        self.steps, self.curve = 0, list[Row]()

    def scores(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scores of the bits, and the images as network inputs."""
        seen = images.float() / 255
        return self.method.scores(self.model.encoder(seen), self.bits), seen

    def step(self, images: Tensor) -> ff.expectation.Expectation:
        """Take a gradient step on the negative ELBO, whose KL is a constant minus the entropy."""
        estimator = self.method.at(self.estimator, self.steps, self.bits)
        scores, seen = self.scores(images)
        out = ff.expect(
            self.model.cost(images), scores, estimator, self.over,
            context=seen, generator=self.generator,
        )  # fmt: skip
        self.optimizer.zero_grad()
        (out.loss - out.entropy.mean()).backward()
        self.optimizer.step()
        self.steps += 1
        return out

    def epoch(self, data: Data, *, samples: int, likely: int) -> None:
        """Train on all images once, and append to the learning curve."""
        wall, processor = time.perf_counter(), time.process_time()
        order = torch.randperm(len(data.train), generator=self.generator)
        batches = order.split(int(self.method.batch.get(self.bits, 64)))
        costs, entropies, calls = [], [], []
        for done, batch in enumerate(batches):
            out = self.step(data.train[batch])
            costs.append(out.value)
            entropies.append(out.entropy.detach())
            calls.append(out.calls)
            if done % 50 == 0:
                mean = float(out.calls.float().mean())
                _progress.line(f"{done / len(batches):.0%}, {mean:.1f} calls per image")
        seconds = time.perf_counter() - wall, time.process_time() - processor
        distortion, entropy = float(torch.cat(costs).mean()), float(torch.cat(entropies).mean())
        valid = self.measure(data.valid, samples=samples, likely=likely)
        self.curve.append(
            {
                "train": {"distortion": round(distortion, 2), "entropy": round(entropy, 3)},
                "calls": spread(torch.cat(calls)),
                "valid": valid,
                "seconds": round(seconds[0], 1),
                "processor seconds": round(seconds[1], 1),
            }
        )

    @torch.no_grad()
    def measure(self, images: Tensor, *, samples: int, likely: int, batch: int = 100) -> Row:
        """Return the ELBO of all images, and the estimated likelihood of `likely` of them.

        Both in nats for an image. The likelihood is the mean of the negative ELBO of all images,
        less the mean of what that is too large by for the first `likely`: this varies much less
        from image to image than a likelihood does.
        """
        generator = torch.Generator().manual_seed(0)  # beside that of the training
        now = self.method.at(self.estimator, self.steps, self.bits)
        costs, rates, calls, tighter = [], [], [], []
        for first in range(0, len(images), batch):
            some = images[first : first + batch]
            scores, _ = self.scores(some)
            cost = self.model.cost(some)
            out = ff.expect(cost, scores, testing(now, 1), self.over, generator=generator)
            value, rate = out.value, out.kl()
            count = min(len(some), max(0, likely - first))
            if count:  # their ELBO with more samples, if it is sampled
                likelihood = ff.expectation.log_likelihood(
                    cost, scores[:count], now, self.over,
                    samples=samples, generator=generator, pairs=1024,
                )  # fmt: skip
                often = testing(now, DRAWS)
                near = ff.expect(cost, scores[:count], often, self.over, generator=generator)
                tighter.append(-likelihood - near.value - rate[:count])
                value = torch.cat([near.value, value[count:]])
            costs.append(value)
            rates.append(rate)
            calls.append(out.calls)
        distortion, mean_rate, gap = (float(torch.cat(x).mean()) for x in (costs, rates, tighter))
        error = float(torch.cat(tighter).std()) / math.sqrt(len(torch.cat(tighter)))
        return {
            "distortion": round(distortion, 2),
            "rate": round(mean_rate, 3),
            "nll": round(distortion + mean_rate + gap, 2),
            "nll error": round(error, 3),
            "calls": spread(torch.cat(calls)),
        }

    def save(self, path: Path) -> None:
        """Save the training state."""
        record = {"steps": self.steps, "curve": self.curve}
        checkpoint.save(path, self.parts, self.optimizer, self.generator, record)

    def load(self, path: Path) -> None:
        """Restore a state written by `save`."""
        record = checkpoint.load(path, self.parts, self.optimizer, self.generator)
        self.steps, self.curve = record["steps"], record["curve"]


def spread(calls: Tensor) -> Row:
    """Return mean, standard deviation, median and quartiles."""
    found = calls.double()
    quarters = found.quantile(torch.tensor([0.25, 0.5, 0.75], dtype=found.dtype)).tolist()
    return {
        "mean": round(float(found.mean()), 3),
        "deviation": round(float(found.std()), 3),
        "quartiles": quarters,
        "most": int(calls.max()),
    }
