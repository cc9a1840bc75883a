"""The table of the FastVAE paper on real logs, with published numbers.

``python -m experiments.fastvae.run ml10m`` adds what is missing to results.json: it may be stopped
and started again.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix

import fewfold as ff
from experiments import datasets
from experiments.record import Record, origin

RECORD = Record(Path(__file__).parent / "results.json")
ALS = "ALS (implicit)"
METRICS = (ff.recommender.NDCG(50), ff.recommender.Recall(50))


@dataclass(frozen=True)
class Data:
    """A dataset and its settings, chosen on a validation part of the training set."""

    split: Callable[[int], ff.recommender.Split]
    epochs: int
    samples: int
    rank: int
    strength: float
    l2: float | None
    powers: tuple[float, float]
    als: dict[str, float] | None
    ease: bool


def _als(factors: int, alpha: float, regularization: float) -> dict[str, float]:
    return {"factors": factors, "alpha": alpha, "regularization": regularization}


DATA = {
    "ml10m": Data(datasets.ml10m, 16, 200, 448, 100.0, None, (0.3, 0.35), None, ease=True),
    "gowalla": Data(
        datasets.gowalla, 20, 1000, 448, 400.0, 0.0, (0.3, 0.35), _als(128, 40, 10), ease=False
    ),
    "epinions": Data(
        datasets.epinions, 12, 1000, 192, 300.0, 0.0, (0.6, 0.3), _als(128, 10, 10), ease=False
    ),
}


SHORT = ", 3 epochs"  # how soon a user may have something: the same, in less time


def objectives(data: Data) -> dict[str, Callable[[], ff.recommender.Objective]]:
    """Return the training objectives of the decoder, by name."""

    def sampled(
        proposal: ff.sampling.Proposal, shared: bool = False
    ) -> Callable[[], ff.recommender.Objective]:
        samples = max(1000, data.samples) if shared else data.samples
        return lambda: ff.recommender.SampledSoftmax(proposal, samples, shared=shared)

    return {
        "full softmax": ff.recommender.FullSoftmax,
        "multi-index, popularity": sampled(ff.MultiIndex(16, within="popularity")),
        "multi-index, uniform": sampled(ff.MultiIndex(16)),
        "popularity": sampled(ff.Popularity()),
        "uniform": sampled(ff.Uniform()),
        "multi-index, popularity, shared": sampled(
            ff.MultiIndex(16, within="popularity"), shared=True
        ),
    }


def baselines(data: Data) -> dict[str, Callable[[], ff.recommender.Baseline]]:
    """Return the baseline models, by name."""
    models: dict[str, Callable[[], ff.recommender.Baseline]] = {
        "most popular": ff.recommender.MostPopular,
        "item-KNN, cosine": lambda: ff.recommender.ItemKNN(20),
    }
    if data.ease:
        models["EASE"] = ff.recommender.EASE
    return models


def quality(top: torch.Tensor, split: ff.recommender.Split) -> dict[str, float]:
    """Return the metrics of the table."""
    report = ff.recommender.evaluate(top, split.test, METRICS, resamples=1)
    return {str(metric): round(report[metric].mean, 4) for metric in METRICS}


def fastvae(name: str, data: Data, split: ff.recommender.Split, seed: int) -> list[dict[str, Any]]:
    """Return two rows: the autoencoder alone, and with its shortcut."""
    model = ff.recommender.FastVAE(split.train.items, seed=seed)
    start = _clocks()
    objective = objectives(data)[name.removesuffix(SHORT)]()
    passes = 3 if name.endswith(SHORT) else data.epochs
    epochs = ff.recommender.train(model, split.train, objective=objective, epochs=passes, seed=seed)
    trained = _clocks() - start
    loss = round(epochs[-1].loss, 3)
    alone = {
        "model": f"FastVAE, {name}",
        **quality(model.recommend(split.fold_in, 50), split),
        **_seconds(trained),
        "loss": loss,
    }
    start = _clocks()
    model.shortcut = ff.recommender.Shortcut.fit(
        split.train, data.rank, strength=data.strength, l2=data.l2, powers=data.powers, seed=seed
    )
    trained += _clocks() - start
    both = {
        "model": f"FastVAE, {name}, with shortcut",
        **quality(model.recommend(split.fold_in, 50), split),
        **_seconds(trained),
        "loss": loss,
    }
    return [alone, both]


def baseline(name: str, data: Data, split: ff.recommender.Split) -> list[dict[str, Any]]:
    """Return one row."""
    start = _clocks()
    model = baselines(data)[name]().fit(split.train)
    seconds = _seconds(_clocks() - start)
    top = model.recommend(split.fold_in, 50)
    return [{"model": name, **quality(top, split), **seconds}]


def als(data: Data, split: ff.recommender.Split, seed: int) -> list[dict[str, Any]]:
    """Return one row: ALS of the package implicit, with weight alpha for observed pairs."""
    from implicit.als import AlternatingLeastSquares
    from threadpoolctl import threadpool_limits

    if data.als is None:
        raise ValueError("ALS has no settings for this dataset: choose them on a validation part")
    with threadpool_limits(1, "blas"):  # it has threads of its own
        model = AlternatingLeastSquares(
            **data.als, iterations=15, num_threads=torch.get_num_threads(), random_state=seed
        )
        start = _clocks()
        model.fit(csr_matrix(split.train.to_csr()), show_progress=False)
        seconds = _seconds(_clocks() - start)
    factors = map(torch.from_numpy, (model.user_factors, model.item_factors))
    top = ff.recommender.top_k(ff.recommender.DotProduct(*factors), 50, exclude=split.fold_in).ids
    return [{"model": ALS, **quality(top, split), **seconds, **data.als}]


def _clocks() -> np.ndarray:
    return np.array([time.perf_counter(), time.process_time()])


def _seconds(clocks: np.ndarray) -> dict[str, float]:
    wall, processor = (round(float(seconds), 1) for seconds in clocks)
    # Of several threads the processor's seconds are the sum.
    alone = {"processor seconds": processor} if torch.get_num_threads() == 1 else {}
    return {"train seconds": wall, **alone}


def run(dataset: str, names: list[str], seeds: int) -> None:
    """Add the missing rows."""
    data = DATA[dataset]
    for seed in range(seeds):
        split = data.split(seed)
        for name in names:
            vae = name.removesuffix(SHORT) in objectives(data)
            model = f"FastVAE, {name}" if vae else name
            if RECORD.rows(data=dataset, model=model, seed=seed):
                continue
            if vae:
                rows = fastvae(name, data, split, seed)
            elif name == ALS:
                rows = als(data, split, seed)
            else:
                rows = baseline(name, data, split)
            for row in rows:
                print(dataset, seed, row, flush=True)
            RECORD.add([{"data": dataset, "seed": seed, **row, **origin()} for row in rows])


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset", choices=DATA)
    parser.add_argument(
        "--models", help=f"separated by semicolons; by default all, without those {SHORT[2:]}"
    )
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    data = DATA[options.dataset]
    every = [*baselines(data), *([ALS] if data.als else []), *objectives(data)]
    names = options.models.split(";") if options.models else every
    run(options.dataset, names, options.seeds)


if __name__ == "__main__":
    main()
