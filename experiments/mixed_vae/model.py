"""The autoencoder, its training and its evaluation."""

import math
import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.images import images
from experiments.mixed_vae.latents import SIZE, Latent
from experiments.networks import perceptron

PIXELS = 784


class Autoencoder(nn.Module):
    """Encoder and decoder with two layers of 500 units and a ten-dimensional latent."""

    def __init__(self, latent: Latent, width: int = 500, pixels: int = PIXELS) -> None:
        super().__init__()
        self.latent = latent
        self.encoder = perceptron(pixels, width, width, latent.outputs)
        self.decoder = perceptron(SIZE, width, width, pixels)

    def cost(self, shown: Tensor, points: Tensor, row: Tensor) -> Tensor:
        """Return negative log-likelihoods (m,) of the images of these rows, given latents."""
        logits = self.decoder(points)
        return F.binary_cross_entropy_with_logits(logits, shown[row], reduction="none").sum(-1)


@dataclass(frozen=True)
class Split:
    """Grey images (n, pixels) in [0, 1]."""

    train: Tensor
    valid: Tensor
    test: Tensor


def load() -> Split:
    """Load MNIST: 55,000 training, 5,000 validation and 10,000 test images."""
    known, test = (images("mnist", part)[0].flatten(1).float() / 255 for part in ("train", "test"))
    return Split(known[:55_000], known[55_000:], test)


class Training:
    """State of a training run."""

    def __init__(self, latent: Latent, split: Split, seed: int, width: int = 500) -> None:
        torch.manual_seed(seed)
        self.split = split
        self.model = Autoencoder(latent, width, split.train.shape[1])
        if latent.from_mean:
            with torch.no_grad():
                mean = split.train.mean(0).clamp(0.001, 0.999)
                self.model.decoder[-1].bias.copy_(mean.logit())
        self.optimizer = torch.optim.Adam(self.model.parameters(), latent.lr, fused=True)
        self.generator = torch.Generator().manual_seed(seed)
        self.curve: list[dict[str, float]] = []

    def epoch(self, size: int = 100) -> dict[str, float]:
        """Train on all images once, binarised at random; return the validation loss."""
        latent, began = self.model.latent, time.process_time()
        grey = self.split.train
        for rows in torch.randperm(len(grey), generator=self.generator).split(size):
            shown = torch.bernoulli(grey[rows], generator=self.generator)
            encoded = self.model.encoder(shown)
            loss, _ = latent.loss(encoded, self._cost(shown), self.generator)
            self.optimizer.zero_grad()
            loss.mean().backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), latent.clip)
            self.optimizer.step()
        seconds = time.process_time() - began
        point = {**self.measure(self.split.valid), "seconds": seconds}
        self.curve.append({name: round(value, 3) for name, value in point.items()})
        return self.curve[-1]

    @torch.no_grad()
    def measure(self, grey: Tensor, samples: int = 0, seed: int = 0) -> dict[str, float]:
        """Return distortion and rate in nats per image and, with samples, the likelihood."""
        generator = torch.Generator().manual_seed(seed)
        found: list[Tensor] = []
        for part in grey.split(500):
            shown = torch.bernoulli(part, generator=generator)
            encoded, latent = self.model.encoder(shown), self.model.latent
            _, cost = latent.loss(encoded, self._cost(shown), generator)
            rows = [cost, latent.rate(encoded, generator)]
            if samples:
                rows.append(-self._likelihood(shown, encoded, samples, generator))
            found.append(torch.stack(rows))
        mean = torch.cat(found, 1).mean(1).tolist()
        return dict(zip(("distortion", "rate", "nll"), mean, strict=False))

    def _likelihood(
        self, shown: Tensor, encoded: Tensor, samples: int, generator: torch.Generator
    ) -> Tensor:
        """Return log of the mean of p(x | y) p(y) / q(y) over samples of q, (n,)."""
        every, row = [], torch.arange(len(shown))
        for _ in range(samples):
            point, weight = self.model.latent.weighted(encoded, generator)
            every.append(weight - self.model.cost(shown, point, row))
        return torch.stack(every).logsumexp(0) - math.log(samples)

    def _cost(self, shown: Tensor):  # type: ignore[no-untyped-def]
        return lambda points, row: self.model.cost(shown, points, row)
