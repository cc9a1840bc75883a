"""Losses: Fenchel-Young losses with every option, the fused output layer, the sampled softmax."""

import numpy as np
import torch
from torch import Tensor

import fewfold as ff
from fewfold.sampling.proposal import Given, Proposal
from tests.fuzz.compare import close, native, plain, similar
from tests.fuzz.values import count, length, normal, pick, rows_of, score_rows, threads

OMEGAS = (ff.Gini(), ff.Tsallis(1.5), ff.Tsallis(1.25), ff.Norm(2.0), ff.Norm(1.5))


def fenchel_young(rng: np.random.Generator) -> int:
    """Loss and gradient of rows of any length, with weights, smoothing and ignored rows."""
    threads(rng)
    n = length(rng)
    dtype = pick(rng, (torch.float32, torch.float64))
    scores = rows_of(rng, score_rows(rng, n, count(rng, n, 150_000), dtype, infinite=False))
    scores = scores.clamp(-1e4, 1e4)
    target = torch.from_numpy(rng.integers(0, n, len(scores)))
    if rng.random() < 0.3:
        target[int(rng.integers(len(scores)))] = -100
    options = {"omega": pick(rng, OMEGAS), "reduction": pick(rng, ("none", "mean", "sum"))}
    if rng.random() < 0.3:
        options["label_smoothing"] = float(rng.random())
    weight = torch.from_numpy(rng.random(n)) if rng.random() < 0.3 else None

    def both(rows: Tensor, factors: Tensor | None) -> tuple[Tensor, Tensor]:
        leaf = rows.detach().clone().requires_grad_()
        loss = ff.fenchel_young_loss(leaf, target, weight=factors, **options)
        (slope,) = torch.autograd.grad(loss.sum(), leaf)
        return loss, slope

    own = None if weight is None else weight.to(dtype)
    (loss, slope), (want, tangent) = native(both, scores, own), plain(both, scores, own)
    if bool(want.isnan().any()):  # the mean of nothing
        return len(scores)
    size = scores.double().abs().max() + 1
    tight = 1e-9 if dtype == torch.float64 else 5e-6
    close(loss, want, tight * float(size) * (len(scores) if loss.dim() == 0 else 1), "loss", tight)
    close(slope, tangent, tight, "gradient", 1e-4 if dtype == torch.float32 else 1e-8)
    return len(scores)


def output_layer(rng: np.random.Generator) -> int:
    """`linear_entmax_loss` against the loss of scores that are written out."""
    threads(rng)
    classes, d, rows = length(rng, 40_000), int(rng.integers(1, 20)), int(rng.integers(1, 12))
    dtype = pick(rng, (torch.float32, torch.float64))
    hidden, table = normal(rng, rows, d, dtype=dtype), normal(rng, classes, d, dtype=dtype)
    hidden = hidden * float(pick(rng, (0.01, 1.0, 5.0)))
    bias = score_rows(rng, classes, 1, dtype, infinite=False)[0].clamp(-20, 20)
    target = torch.from_numpy(rng.integers(0, classes, rows))
    alpha = pick(rng, (1.25, 1.5, 2.0))
    chunk = pick(rng, (None, None, 1, 100, 2048, 5000))
    chunk = None if chunk is not None and classes // chunk > 200 else chunk

    def fused(x: Tensor, w: Tensor, b: Tensor) -> list[Tensor]:
        leaves = [one.clone().requires_grad_() for one in (x, w, b)]
        loss = ff.linear_entmax_loss(
            leaves[0], leaves[1], target, alpha, linear_bias=leaves[2], chunk_size=chunk
        )
        return [loss, *torch.autograd.grad(loss, leaves)]

    def written_out(x: Tensor, w: Tensor, b: Tensor) -> list[Tensor]:
        leaves = [one.clone().requires_grad_() for one in (x, w, b)]
        loss = ff.entmax_loss(leaves[0] @ leaves[1].T + leaves[2], target, alpha)
        return [loss, *torch.autograd.grad(loss, leaves)]

    tight = 1e-8 if dtype == torch.float64 else 3e-4
    names = ("loss", "hidden", "weight", "bias")
    given = hidden, table, bias
    similar(native(fused, *given), plain(written_out, *given), tight, names)
    return rows


class Drawn(Proposal):
    """Draws with any probabilities, the same ones whenever they are asked for."""

    def __init__(self, items: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.log_q = torch.randn(items, generator=generator, dtype=torch.float64).log_softmax(0)
        self.seed = seed

    def fit(self, item_vectors: Tensor, counts: Tensor | None = None) -> "Drawn":
        """Nothing to learn."""
        return self

    def given(self, queries: Tensor, *, shared: bool = False) -> Given:
        """The draws of a batch."""
        return GivenDraws(self, 0 if shared else len(queries))


class GivenDraws(Given):
    """Draws for so many queries, or for all of them together."""

    def __init__(self, proposal: Drawn, queries: int) -> None:
        self.proposal, self.queries = proposal, queries

    def sample(self, n: int, *, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Ids of any item, and their log-probabilities."""
        own = torch.Generator().manual_seed(self.proposal.seed)
        shape = (self.queries, n) if self.queries else (n,)
        ids = torch.randint(len(self.proposal.log_q), shape, generator=own)
        return ids, self.log_prob(ids)

    def log_prob(self, ids: Tensor, row: Tensor | None = None) -> Tensor:
        """Log-probabilities of ids."""
        return self.proposal.log_q[ids].float()


def sampled(rng: np.random.Generator) -> int:
    """Sampled softmax and noise-contrastive losses, and the gradients of the rows they touch."""
    threads(rng)
    items, d, rows = length(rng, 3_000), length(rng, 200), int(rng.integers(1, 40))
    dtype = pick(rng, (torch.float32, torch.float64))
    queries, table = normal(rng, rows, d, dtype=dtype), normal(rng, items, d, dtype=dtype)
    queries = queries / d**0.5
    positives = torch.from_numpy(rng.integers(0, items, (rows, int(rng.integers(1, 4)))))
    proposal = Drawn(items, int(rng.integers(2**31)))
    loss_of = pick(rng, (ff.sampled_softmax_loss, ff.noise_contrastive_loss))
    options = {"samples": int(rng.integers(1, 70)), "shared": bool(rng.random() < 0.5)}
    options["remove_hits"] = bool(rng.random() < 0.3)

    def all_of(q: Tensor, w: Tensor) -> list[Tensor]:
        leaves = [q.clone().requires_grad_(), w.clone().requires_grad_()]
        loss = loss_of(*leaves, positives, proposal, **options)
        return [loss, *(one.to_dense() for one in torch.autograd.grad(loss, leaves))]

    tight = 1e-9 if dtype == torch.float64 else 1e-4
    ours, theirs = native(all_of, queries, table), plain(all_of, queries, table)
    similar(ours, theirs, tight, ("loss", "queries", "items"))
    return rows


TRIALS = {"fenchel_young": fenchel_young, "output_layer": output_layer, "sampled": sampled}
