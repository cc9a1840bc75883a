"""The network of the FastVAE paper, trained as its authors do: rows of the published table.

``python -m experiments.fastvae.published ml10m`` adds what is missing to results.json. A training
is saved once a minute in build/fastvae, and resumed after an interruption.

The settings are those of the paper and, where it is silent, of its code: M-200-32, ReLU, dropout
of half the hidden units, one draw of the latent, a linear map to item vectors of 200 entries,
Adam with a weight decay of .01 on the sum over 256 users, a learning rate of .001 that falls by 5%
every five epochs, 200 epochs, 16 codewords, popularity log(1 + count). As in the code,
5,000 users of the test are looked at during training; nothing is chosen by that: the row is the
model after the last epoch.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import fewfold as ff
from experiments.fastvae import run
from experiments.record import origin

CHECKPOINTS = Path(__file__).parents[2] / "build" / "fastvae"
HIDDEN, LATENT, BATCH, EPOCHS = 200, 32, 256, 200
WEIGHT_DECAY = 0.01 / BATCH  # our loss is the mean over the users of a step, theirs the sum
CODEWORDS = 16
WATCHED = 5000  # users who are evaluated after each epoch
FULL, FULL_SAME = "full softmax", "full softmax, initial values of the sampled"
INDEX = "multi-index, popularity"
INDEX_SAME = "multi-index, popularity, initial values of the full softmax"


def proposals() -> dict[str, Callable[[], ff.sampling.Proposal]]:
    """Return the proposals of the paper, by name."""
    return {
        INDEX: lambda: ff.MultiIndex(CODEWORDS, within="popularity"),
        "multi-index, uniform": lambda: ff.MultiIndex(CODEWORDS),
        "multi-index, exact": lambda: ff.MultiIndex(CODEWORDS, within="exact"),
        "popularity": ff.Popularity,
        "uniform": ff.Uniform,
        "kernel": ff.sampling.QuadraticKernel,
        "dynamic negatives": ff.sampling.Dynamic,
    }


def objective(name: str, samples: int) -> ff.recommender.Objective:
    """Return the training objective of the decoder, by name."""
    if name in (FULL, FULL_SAME):
        return ff.recommender.FullSoftmax()
    proposal = proposals()[INDEX if name == INDEX_SAME else name]()
    return ff.recommender.SampledSoftmax(proposal, samples, popularity=torch.log1p)


def network(name: str, items: int, seed: int) -> ff.recommender.FastVAE:
    """Return the published network with the initial values of torch's layers, as in its code.

    There, a sampled model has an `nn.Embedding` of items, whose entries have variance 1, and no
    bias; the full softmax an `nn.Linear`, whose entries have variance 1 / 600, and a bias.
    """
    encoder = ff.recommender.Perceptron(dropout=0.5, bottleneck=LATENT)
    model = ff.recommender.FastVAE(
        items, hidden=HIDDEN, latent=HIDDEN, layers=0, dropout=0.0, encoder=encoder, seed=seed
    )
    generator = torch.Generator().manual_seed(seed)
    linear = name in (FULL, INDEX_SAME)
    with torch.no_grad():
        model.inputs.normal_(generator=generator)
        for layer in (model.posterior, model.expand):
            assert isinstance(layer, nn.Linear)
            for values in (layer.weight, layer.bias):
                _uniform(values, layer.in_features, generator)
        if linear:
            _uniform(model.items, HIDDEN, generator)
        else:
            model.items[:, :-1].normal_(generator=generator)
    model.shift.requires_grad_(False)  # the code has none after its table of inputs
    if not linear:
        model.items.register_post_accumulate_grad_hook(_without_bias)
    return model


def _uniform(values: Tensor, width: int, generator: torch.Generator) -> None:
    values.uniform_(-(width**-0.5), width**-0.5, generator=generator)


def _without_bias(items: Tensor) -> None:
    """Set the gradient of the bias to zero, which then stays zero."""
    assert items.grad is not None
    values = items.grad._values() if items.grad.is_sparse else items.grad
    values[:, -1] = 0


def row(
    dataset: str, name: str, seed: int, *, beta: float, epochs: int, every: float = 60.0
) -> dict[str, Any]:
    """Train a model, or resume its training, and return its row."""
    data = run.DATA[dataset]
    split = data.split(seed)
    model = network(name, split.train.items, seed)
    options = ff.recommender.TrainOptions(
        epochs=epochs, batch=BATCH, lr=1e-3, beta=beta, annealing=0.0, seed=seed,
        optimizer=ff.recommender.DenseAdam(WEIGHT_DECAY),
    )  # fmt: skip
    who = torch.randperm(split.test.users, generator=torch.Generator().manual_seed(seed))[:WATCHED]
    watched = ff.recommender.Split(
        train=split.train, test=split.test.select(who), fold_in=split.fold_in.select(who), users=who
    )
    CHECKPOINTS.mkdir(parents=True, exist_ok=True)
    parts = (dataset, *name.replace(",", "").split(), f"{beta:g}", str(epochs), str(seed))
    path = CHECKPOINTS / "-".join(parts)
    log = ff.recommender.train(
        model, split.train, options, objective=objective(name, data.samples), validation=watched,
        checkpoint=ff.recommender.Checkpoint(path, every=every, resume=True),
    )  # fmt: skip
    found = run.quality(model.recommend(split.fold_in, 50), split)
    path.unlink(missing_ok=True)
    seconds = round(sum(each.seconds for each in log), 1)
    every_ten = log[9::10]
    return {
        **found,
        "train seconds": seconds,
        "NDCG@50 by ten epochs": [round(each.ndcg or 0.0, 4) for each in every_ten],
        "loss by ten epochs": [round(each.loss, 3) for each in every_ten],
    }


def key(dataset: str, name: str, seed: int, *, beta: float, epochs: int) -> dict[str, Any]:
    """Return the fields that name a row."""
    model = f"published network, {name}"
    if beta != 1:
        model += f", KL weight {beta:g}"
    return {
        "protocol": "published", "data": dataset, "model": model, "seed": seed, "epochs": epochs,
    }  # fmt: skip


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset", choices=run.DATA)
    names = [FULL, FULL_SAME, INDEX_SAME, *proposals()]
    parser.add_argument("--models", help=f"separated by semicolons; by default {'; '.join(names)}")
    parser.add_argument("--seeds", default="0,1,2", help="separated by commas")
    parser.add_argument("--beta", type=float, default=1.0, help="weight of the KL term")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    options = parser.parse_args()
    chosen = options.models.split(";") if options.models else names
    if unknown := set(chosen) - set(names):
        parser.error(f"--models must be among {'; '.join(names)}, got {'; '.join(unknown)}")
    torch.set_num_threads(1)
    for seed in map(int, options.seeds.split(",")):
        for name in chosen:
            settings = {"beta": options.beta, "epochs": options.epochs}
            names_row = key(options.dataset, name, seed, **settings)
            if run.RECORD.rows(**names_row):
                continue
            made = row(options.dataset, name, seed, **settings)
            print(names_row, made, flush=True)
            run.RECORD.add([{**names_row, **made, **origin()}])


if __name__ == "__main__":
    main()
