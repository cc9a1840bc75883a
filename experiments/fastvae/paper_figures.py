"""Figures 2, 3 and 5 with the network, the data and the ranges of the paper, and its bounds.

``python -m experiments.fastvae.paper_figures`` measures what is missing in paper_figures.json and
draws it. Figures 3 and 5 are on Gowalla, by epoch, on a validation part of its training set;
Figure 2 and the bounds of Theorems 5.3 and 5.4 on ML10M, with the network of `published`, whose
training is saved once a minute in build/fastvae and resumed after an interruption.
"""

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib
import torch
from matplotlib import pyplot
from matplotlib.figure import Figure

import fewfold as ff
from experiments import datasets
from experiments.arguments import add_epochs
from experiments.fastvae import figures, published
from experiments.fastvae.figures import (
    DYNAMIC,
    EXACT,
    FULL,
    INDEXED,
    KERNEL,
    STATIC,
    STYLE,
    line,
    panels_of,
    scores,
)
from experiments.record import Record, Row

HERE = Path(__file__).parent
RECORD = Record(HERE / "paper_figures.json")
MODELS = HERE.parents[1] / "build" / "fastvae"
SAMPLERS = (FULL, *INDEXED, *STATIC, KERNEL, DYNAMIC)
SAMPLES, CODEWORDS, DRAWS = (200, 1000, 5000), (8, 16, 32, 64, 128), 1000
EPOCHS, USERS = 100, 200


def options(epochs: int, seed: int) -> ff.recommender.TrainOptions:
    """Return the options of a published training."""
    return ff.recommender.TrainOptions(
        epochs=epochs, batch=published.BATCH, lr=1e-3, beta=1.0, annealing=0.0, seed=seed,
        optimizer=ff.recommender.DenseAdam(published.WEIGHT_DECAY),
    )  # fmt: skip


def objective(sampler: str, samples: int, codewords: int) -> ff.recommender.Objective:
    """Return the training objective of the decoder, with the popularity of the paper."""
    if sampler == FULL:
        return ff.recommender.FullSoftmax()
    proposal = figures.proposal(sampler, codewords)
    return ff.recommender.SampledSoftmax(proposal, samples, popularity=torch.log1p)


def trainings(samplers: Iterable[str], seed: int) -> Iterable[dict[str, Any]]:
    """Return the models of Figures 3 and 5; settings a sampler does not have are zero."""
    found = []
    for sampler in samplers:
        words = 16 if sampler in INDEXED else 0
        found.append((sampler, 0 if sampler == FULL else DRAWS, words))
    found += [(sampler, n, 16 * (sampler == INDEXED[1])) for n in SAMPLES
              for sampler in (INDEXED[1], "uniform")]  # fmt: skip
    found += [(INDEXED[1], DRAWS, words) for words in CODEWORDS]
    for sampler, samples, words in dict.fromkeys(found):
        yield {"sampler": sampler, "samples": samples, "codewords": words, "seed": seed}


def curve(split: ff.recommender.Split, key: dict[str, Any], epochs: int) -> Row:
    """Return NDCG@50 on the validation part after every epoch."""
    name = FULL if key["sampler"] == FULL else published.INDEX  # their initial values
    model = published.network(name, split.train.items, key["seed"])
    chosen = objective(key["sampler"], key["samples"], key["codewords"])
    log = ff.recommender.train(
        model, split.train, options(epochs, key["seed"]), objective=chosen, validation=split,
        progress=False,
    )  # fmt: skip
    return {"NDCG@50": [round(epoch.ndcg or 0.0, 5) for epoch in log]}


def trained(split: ff.recommender.Split, folder: Path, epochs: int) -> ff.recommender.FastVAE:
    """Load the model of Figure 2 from its file, training it first if necessary."""
    from safetensors.torch import load_file, save_file

    model = published.network(published.INDEX, split.train.items, 0)
    folder.mkdir(parents=True, exist_ok=True)
    file, partial = (folder / f"figure2-{epochs}{end}" for end in (".safetensors", "-unfinished"))
    if not file.exists():
        checkpoint = ff.recommender.Checkpoint(partial, every=60.0, resume=True)
        chosen = objective(INDEXED[0], 200, 16)
        ff.recommender.train(
            model, split.train, options(epochs, 0), objective=chosen, checkpoint=checkpoint
        )
        save_file({name: value.contiguous() for name, value in model.state_dict().items()}, file)
        partial.unlink()
    model.load_state_dict(load_file(file))
    return model.eval()


def bounds(
    model: ff.recommender.FastVAE, split: ff.recommender.Split, within: str, codewords: int
) -> Row:
    """Return the exact divergence of a multi-index and its bound, means over users."""
    users = torch.randperm(split.train.users, generator=torch.Generator().manual_seed(0))[:USERS]
    queries, vectors = model.queries(split.train.rows(users)), model.vectors
    counts = (split.train.counts() + 1).log1p()
    proposal = ff.MultiIndex(codewords, within=within).fit(vectors, counts)
    exact = ff.sampling.kl_divergence(proposal, queries, vectors)
    bound = ff.sampling.kl_bound(proposal, queries, vectors)
    return {"kl": round(float(exact.mean()), 4), "bound": round(float(bound.mean()), 4)}


def measure_divergence(epochs: int) -> None:
    """Compute what is missing of Figure 2 and the bounds, on ML10M."""
    split = datasets.ml10m(0)
    new = published.network(published.INDEX, split.train.items, 0)
    old = trained(split, MODELS, epochs)
    for state, model, length in (("untrained", new, 0), ("trained", old, epochs)):
        own = {"model": state, "epochs": length, "seed": 0}
        for sampler in (FULL, EXACT, *INDEXED, *STATIC, KERNEL, DYNAMIC):
            key = {"figure": "divergence", "sampler": sampler, **own}
            RECORD.once(lambda m=model, s=sampler: figures.divergence(m, split, s), **key)
        for within in ("uniform", "popularity"):
            for words in CODEWORDS:
                key = {"figure": "bounds", "within": within, "codewords": words, **own}
                RECORD.once(lambda m=model, w=within, n=words: bounds(m, split, w, n), **key)


def measure_training(samplers: Iterable[str], seed: int, epochs: int) -> None:
    """Compute what is missing of Figures 3 and 5, on Gowalla."""
    part = ff.recommender.random_split(datasets.gowalla(0).train, seed=0)
    for key in trainings(samplers, seed):
        own = {"figure": "training", **key, "epochs": epochs}
        RECORD.once(lambda k=key: curve(part, k, epochs), **own)


def draw_bounds(rows: list[Row]) -> Figure:
    """Plot divergence and bound against the number of codewords, before and after training."""
    figure, panels = panels_of(2)
    for axes, state in zip(panels, ("untrained", "trained"), strict=True):
        for within, sampler in (("uniform", INDEXED[1]), ("popularity", INDEXED[0])):
            mine = [row for row in rows if (row["model"], row["within"]) == (state, within)]
            points = {row["codewords"]: row for row in mine}
            for field, style in (("kl", "-"), ("bound", "--")):
                axes.plot(
                    list(points), [row[field] for row in points.values()], style,
                    color=STYLE[sampler]["color"], label=f"{within}, {field}",
                )  # fmt: skip
        axes.set(xscale="log", yscale="log", xlabel="codewords", title=f"{state} model")
        axes.set_xticks(CODEWORDS, [str(words) for words in CODEWORDS])
        axes.minorticks_off()
    panels[0].set_ylabel("KL(q || softmax), nats")
    panels[0].legend(frameon=False)
    return figure


def draw_training(rows: list[Row]) -> Figure:
    """Plot NDCG@50 by epoch: all samplers, numbers of draws, numbers of codewords."""
    figure, panels = panels_of(3, sharey=True)
    few = [(f"{name}, {n} draws", {"sampler": name, "samples": n,
            "codewords": 16 * (name == INDEXED[1])}, name)
           for name in (INDEXED[1], "uniform") for n in SAMPLES]  # fmt: skip
    words = [(f"{n} codewords", {"sampler": INDEXED[1], "samples": DRAWS, "codewords": n},
              INDEXED[1]) for n in CODEWORDS]  # fmt: skip
    every = [(name, {"sampler": name, "samples": 0 if name == FULL else DRAWS,
              "codewords": 16 * (name in INDEXED)}, name) for name in SAMPLERS]  # fmt: skip
    for axes, group, title in zip(
        panels, (every, few, words), ("samplers", "draws", "codewords"), strict=True
    ):
        for place, (label, key, sampler) in enumerate(group):
            by_epoch = scores(rows, **key).T
            line(axes, dict(enumerate(by_epoch, 1)), label, sampler)
            axes.lines[-1].set(alpha=1 if group is every else 0.35 + 0.15 * (place % 5))
        axes.set(xlabel="epoch", title=title)
        axes.legend(frameon=False, fontsize=8)
    panels[0].set_ylabel("NDCG@50, validation part of Gowalla")
    return figure


DRAWN = {
    "figure2_paper": ("divergence", figures.draw_divergence),
    "figure3_figure5_paper": ("training", draw_training),
    "bounds": ("bounds", draw_bounds),
}


def draw() -> None:
    """Draw what is measured."""
    for name, (part, make) in DRAWN.items():
        if rows := RECORD.rows(figure=part):
            longest = max(row["epochs"] for row in rows)
            figure = make([row for row in rows if row["epochs"] in (0, longest)])
            figure.savefig(HERE / f"{name}.png")
            pyplot.close(figure)


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parts = ("ml10m", "gowalla")
    parser.add_argument("parts", nargs="*", default=parts, help="ml10m, gowalla, or nothing: both")
    parser.add_argument("--samplers", default=";".join(SAMPLERS), help="of Figure 3")
    add_epochs(parser, EPOCHS, published.EPOCHS)
    chosen = parser.parse_args()
    matplotlib.use("Agg")
    torch.set_num_threads(1)
    if "ml10m" in chosen.parts:
        measure_divergence(chosen.epochs)
    if "gowalla" in chosen.parts:
        measure_training(chosen.samplers.split(";"), 0, chosen.epochs)
    draw()


if __name__ == "__main__":
    main()
