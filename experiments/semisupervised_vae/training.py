"""Training of the autoencoder with any estimator, with checkpoints."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fewfold as ff
from experiments import checkpoint
from experiments.semisupervised_vae.digits import Digits, Split, draw
from experiments.semisupervised_vae.model import SemisupervisedVAE
from fewfold import _progress
from fewfold._files import new_file

Point = dict[str, float]
Baseline = nn.Module | None
_RECORDED = ("step", "curve", "seconds", "wall", "start")  # what is no tensor


@dataclass(frozen=True)
class Method:
    """A training method for unlabelled images.

    Attributes:
        lr: of Adam, as published for the methods of the paper.
        estimator: that of a step, given its number and the baseline.
        baseline: what the estimator compares with, if anything, for so many pixels and classes.
        sparse: whether labels are predicted by sparsemax and not by softmax.
    """

    lr: float
    estimator: Callable[[int, Any], ff.expectation.Estimator]
    baseline: Callable[[int, int], Baseline] = lambda pixels, classes: None
    sparse: bool = False

    @property
    def exact(self) -> ff.expectation.Estimator:
        """Return the estimator of the exact expectation under the predictions, for evaluation."""
        return ff.SparseMarginal() if self.sparse else ff.Dense()

    def supervised(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of the classifier."""
        return (ff.sparsemax_loss if self.sparse else F.cross_entropy)(scores, labels)


@dataclass(frozen=True)
class Budget:
    """Training settings; as published except for the number of epochs, which is 200 there."""

    epochs: int = 60
    warm: int = 100
    batch: int = 64
    hidden: int = 128
    wide: int = 256
    decay: float = 1e-5
    warm_lr: float = 1e-3
    keep: int = 5  # epochs between checkpoints


class Training:
    """A model, its optimiser and its generator between the first epoch and the last."""

    def __init__(self, method: Method, split: Split, budget: Budget, seed: int) -> None:
        self.method, self.split, self.budget, self.seed = method, split, budget, seed
        torch.manual_seed(seed)
        self.generator = torch.Generator().manual_seed(seed)
        pixels, classes = split.test.grey.shape[1], int(split.test.labels.max()) + 1
        self.model = SemisupervisedVAE(pixels, classes, hidden=budget.hidden, wide=budget.wide)
        self.baseline = method.baseline(pixels, classes)
        self.learned = nn.ModuleList(m for m in (self.model, self.baseline) if m is not None)
        self.optimizer = self._adam(method.lr)
        self.step, self.seconds, self.wall, self.start = 0, 0.0, 0.0, 0.0
        self.curve: list[Point] = []

    def loss(self, images: Tensor, labels: Tensor) -> tuple[Tensor, ff.expectation.Expectation]:
        """Return the loss of labelled images and of as many unlabelled ones above them.

        Both kinds go through the decoder in one call: the cost of the estimator's labels takes
        the known ones along.
        """
        count = len(images) - len(labels)
        scores, price = self.model.classifier(images), self.model.costs(images, self.generator)
        known: list[Tensor] = []

        def cost(atoms: Tensor, row: Tensor) -> Tensor:
            own = labels if atoms.dim() == 1 else F.one_hot(labels, scores.shape[1]).to(atoms)
            rows = torch.cat([row, torch.arange(count, len(images))])
            costs = price(torch.cat([atoms, own]), rows)
            known.append(costs[len(row) :])
            return costs[: len(row)]

        estimator = self.method.estimator(self.step, self.baseline)
        unlabelled = scores[:count]
        out = ff.expect(
            cost, unlabelled, estimator, context=images[:count], generator=self.generator
        )
        supervised = known[0].mean() + self.method.supervised(scores[count:], labels)
        times = len(self.split.unlabelled) / len(self.split.labelled)
        return supervised + times * (out.loss - out.entropy.mean()), out

    def steps(self) -> Iterator[ff.expectation.Expectation]:
        """Yield the losses of one epoch."""
        for images, labels in self.split.batches(self.budget.batch, self.generator):
            loss, out = self.loss(images, labels)
            self._descend(loss)
            self.step += 1
            yield out

    def epoch(self) -> Point:
        """Train on every unlabelled image once."""
        began, since = time.process_time(), time.perf_counter()
        calls = bound = 0.0
        for out in self.steps():
            calls += len(out.support.row)
            bound += float((out.value - out.entropy.detach()).sum())
        self.seconds += time.process_time() - began
        self.wall += time.perf_counter() - since
        count = len(self.split.unlabelled)
        point = {"calls": round(calls / count, 4), "negative ELBO": round(bound / count, 3)}
        point |= {
            part: accuracy(self.model, getattr(self.split, part), len(self.curve))
            for part in ("valid", "test")
        }
        self.curve.append(point)
        return point

    def warm_epoch(self) -> None:
        """Train on the labelled images only, once each."""
        known = self.split.labelled
        for rows in torch.randperm(len(known), generator=self.generator).split(self.budget.batch):
            images, labels = draw(known.grey[rows], self.generator), known.labels[rows]
            costs = self.model.costs(images, self.generator)(labels, torch.arange(len(labels)))
            scores = self.model.classifier(images)
            self._descend(costs.mean() + self.method.supervised(scores, labels))

    def warm_start(self, path: Path) -> None:
        """Pretrain on the labels alone; the weights are stored at this path for other methods."""
        from safetensors.torch import load_file, save_file

        if not path.exists():
            self.optimizer = self._adam(self.budget.warm_lr)
            for _ in _progress.over("warm start", range(self.budget.warm)):
                self.warm_epoch()
            path.parent.mkdir(parents=True, exist_ok=True)
            with new_file(path) as partial:
                save_file(self.model.state_dict(), partial)
        self.model.load_state_dict(load_file(path))
        self.optimizer = self._adam(self.method.lr)
        self.generator.manual_seed(self.seed)  # the same whether or not the weights were there
        self.start = accuracy(self.model, self.split.test, 0)

    def save(self, path: Path) -> None:
        """Save the training state."""
        record = {name: getattr(self, name) for name in _RECORDED}
        checkpoint.save(path, self.learned, self.optimizer, self.generator, record)

    def load(self, path: Path) -> None:
        """Restore a state written by `save`."""
        record = checkpoint.load(path, self.learned, self.optimizer, self.generator)
        for name in _RECORDED:
            setattr(self, name, record[name])

    def _adam(self, lr: float) -> torch.optim.Optimizer:
        parameters = self.learned.parameters()
        return torch.optim.Adam(parameters, lr, weight_decay=self.budget.decay, fused=True)

    def _descend(self, loss: Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


class LabelByLabel(Training):
    """Naive sum over all labels: one decoder call per label."""

    def price(self, images: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        """Return the cost of labels; the first layer is evaluated once per image."""
        return self.model.costs(images, self.generator)

    def loss(self, images: Tensor, labels: Tensor) -> tuple[Tensor, ff.expectation.Expectation]:
        """Return the same value as `Dense`, up to noise."""
        count = len(images) - len(labels)
        scores, price = self.model.classifier(images), self.price(images)
        rows = torch.arange(len(images))

        def cost(atoms: Tensor, row: Tensor) -> Tensor:
            each = [price(torch.full((count,), z), rows[:count]) for z in range(scores.shape[1])]
            return torch.stack(each, 1)[row, atoms]

        out = ff.expect(cost, scores[:count], ff.Dense())
        known = price(labels, rows[count:])
        supervised = known.mean() + self.method.supervised(scores[count:], labels)
        times = len(self.split.unlabelled) / len(self.split.labelled)
        return supervised + times * (out.loss - out.entropy.mean()), out


class ImageAndLabel(LabelByLabel):
    """As in the authors' code: q(h | x, z) takes image and label together, once per label."""

    def price(self, images: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        """Return the cost of labels, from the images of these rows."""

        def cost(labels: Tensor, row: Tensor) -> Tensor:
            seen = self.model.costs(images.index_select(0, row), self.generator)
            return seen(labels, torch.arange(len(row)))

        return cost


@torch.no_grad()
def accuracy(model: SemisupervisedVAE, part: Digits, seed: int) -> float:
    """Return the accuracy in per cent on images binarised once."""
    generator = torch.Generator().manual_seed(seed)
    hits = sum(
        int((model.classifier(draw(grey, generator)).argmax(1) == labels).sum())
        for grey, labels in zip(part.grey.split(1000), part.labels.split(1000), strict=True)
    )
    return round(100 * hits / len(part), 2)


@torch.no_grad()
def bound(
    model: SemisupervisedVAE, part: Digits, estimator: ff.expectation.Estimator, seed: int
) -> Point:
    """Return the negative ELBO without the constant log 10, and the decoder calls per image."""
    generator = torch.Generator().manual_seed(seed)
    total = calls = 0.0
    for grey in part.grey.split(250):
        images = draw(grey, generator)
        costs = model.costs(images, generator)
        out = ff.expect(costs, model.classifier(images), estimator)
        total += float((out.value - out.entropy).sum())
        calls += len(out.support.row)
    return {"negative ELBO": round(total / len(part), 3), "calls": round(calls / len(part), 4)}
