"""Figures 2 to 5 of the FastVAE paper: ``python -m experiments.fastvae.figures``.

The numbers are kept in figures.json: what is there is drawn again without being measured again.
"""

import argparse
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

import fewfold as ff
from benchmarks import fastvae as steps
from experiments import datasets
from experiments.record import Record, Row
from fewfold._files import new_file

HERE = Path(__file__).parent
RECORD = Record(HERE / "figures.json")
WEIGHTS = HERE.parents[1] / "build" / "fastvae" / "ml10m.npz"

FULL, SHARED = "full softmax", "multi-index, popularity, shared"
EXACT, KERNEL, DYNAMIC = "multi-index, exact", "kernel", "dynamic negatives"
STATIC = ("popularity", "uniform")
INDEXED = ("multi-index, popularity", "multi-index, uniform")
# Colours of Okabe and Ito, which everybody can tell apart; one per sampler in every figure.
STYLE = {
    FULL: {"color": "black", "marker": "s"},
    INDEXED[0]: {"color": "#D55E00", "marker": "o"},
    INDEXED[1]: {"color": "#0072B2", "marker": "^"},
    STATIC[0]: {"color": "#E69F00", "marker": "D"},
    STATIC[1]: {"color": "#56B4E9", "marker": "v"},
    SHARED: {"color": "#009E73", "marker": "P"},
    EXACT: {"color": "#009E73", "marker": "P"},
    KERNEL: {"color": "#CC79A7", "marker": "X"},
    DYNAMIC: {"color": "#999999", "marker": "*"},
}
LEGEND = {"loc": "upper left", "frameon": False}
USERS, EPOCHS = 15_000, 8
SAMPLES, CODEWORDS = (20, 50, 200, 1000), (1, 4, 16, 64)
ITEMS = (10_000, 50_000, 200_000, 1_000_000)
SMALL_SAMPLE, PUBLISHED_SAMPLE = 20, 200  # samples per query: few, and as published


def proposal(sampler: str, codewords: int) -> ff.sampling.Proposal:
    """Return the proposal of a sampler, by name."""
    if sampler == "uniform":
        return ff.Uniform()
    if sampler == "popularity":
        return ff.Popularity()
    if sampler == KERNEL:
        return ff.sampling.QuadraticKernel()
    if sampler == DYNAMIC:
        return ff.sampling.Dynamic()
    within = sampler.rsplit(", ")[1] if sampler != SHARED else "popularity"
    return ff.MultiIndex(codewords, within=within)


def objective(sampler: str, samples: int, codewords: int) -> ff.recommender.Objective:
    """Return the training objective of the decoder, by name."""
    if sampler == FULL:
        return ff.recommender.FullSoftmax()
    return ff.recommender.SampledSoftmax(
        proposal(sampler, codewords), samples, shared=sampler == SHARED
    )


# Figure 2


def divergence(
    model: ff.recommender.FastVAE, split: ff.recommender.Split, sampler: str, codewords: int = 64
) -> Row:
    """Return KL(q || softmax) of 200 users, and the cumulative probability by item count."""
    users = torch.randperm(split.train.users, generator=torch.Generator().manual_seed(0))[:200]
    queries = model.queries(split.train.rows(users))
    counts = split.train.counts()
    log_p = (queries @ model.vectors.T).double().log_softmax(1)
    if sampler == FULL:
        log_q = log_p
    else:
        mass = (counts + 1).log1p()  # the popularity of the paper, and of ff.recommender.train
        fitted = proposal(sampler, codewords).fit(model.vectors, mass)
        every = torch.arange(len(mass)).expand(len(users), -1)
        log_q = fitted.log_prob(queries, every).double()
    kl = (log_q.exp() * (log_q - log_p)).sum(1)
    order = counts.argsort(descending=True, stable=True)
    curve = log_q[0, order].exp().cumsum(0)
    rank = np.unique(np.geomspace(1, len(order), 300).astype(int))
    return {
        "kl": round(float(kl.mean()), 4),
        "kl of the user": round(float(kl[0]), 4),
        "rank": rank.tolist(),
        "cumulative": [round(value, 5) for value in curve[rank - 1].tolist()],
    }


def trained(
    split: ff.recommender.Split, file: Path, epochs: int = EPOCHS
) -> ff.recommender.FastVAE:
    """Load a model from its file, training it first if necessary."""
    model = ff.recommender.FastVAE(split.train.items, seed=0)
    if not file.exists():
        ff.recommender.train(
            model, split.train, objective=objective(INDEXED[0], PUBLISHED_SAMPLE, 16), epochs=epochs
        )
        file.parent.mkdir(parents=True, exist_ok=True)
        state = {name: value.numpy() for name, value in model.state_dict().items()}
        with new_file(file) as partial, partial.open("wb") as stream:
            np.savez(stream, **state)
    state = {name: torch.from_numpy(value) for name, value in np.load(file).items()}
    model.load_state_dict(state)
    return model.eval()


def measure_divergence(seeds: int = 1) -> None:
    """Compute the data of Figure 2."""
    split = datasets.ml10m(0)
    untrained = ff.recommender.FastVAE(split.train.items, seed=0)
    for state, model in (("untrained", untrained), ("trained", trained(split, WEIGHTS))):
        for sampler in (FULL, *INDEXED, *STATIC):
            key = {"figure": "divergence", "model": state, "sampler": sampler, "seed": 0}
            RECORD.once(lambda m=model, s=sampler: divergence(m, split, s), **key)


def draw_divergence(rows: list[Row]) -> Figure:
    """Plot the cumulative probability by popularity, before and after training."""
    figure, panels = panels_of(2, sharey=True)
    for axes, state in zip(panels, ("untrained", "trained"), strict=True):
        for row in (row for row in rows if row["model"] == state):
            sampler = row["sampler"]
            name = "softmax" if sampler == FULL else f"{sampler}: {abs(row['kl']):.3f}"
            style = {"linewidth": 5, "alpha": 0.3} if sampler == FULL else {"linewidth": 1.8}
            style |= {"linestyle": "--" if sampler in STATIC else "-", "label": name}
            axes.plot(row["rank"], row["cumulative"], color=STYLE[sampler]["color"], **style)
        axes.set(xscale="log", xlabel="items, most popular first", title=f"{state} model")
        axes.set(xlim=(1, max(row["rank"][-1] for row in rows)), ylim=(0, 1.01))
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.legend(title="mean KL(q || softmax), nats", alignment="left", **LEGEND)
    panels[0].set_ylabel("cumulative probability")
    return figure


# Figures 3 and 5


def subset(users: int) -> ff.recommender.Split:
    """Return a subset of MovieLens training users, and a validation split of their items."""
    train = datasets.ml10m(0).train
    some = torch.randperm(train.users, generator=torch.Generator().manual_seed(0))[:users]
    return ff.recommender.random_split(train.select(some), seed=0)


def curve(split: ff.recommender.Split, key: dict[str, Any], epochs: int = EPOCHS) -> Row:
    """Return NDCG@50 on the validation part after every epoch."""
    model = ff.recommender.FastVAE(split.train.items, seed=key["seed"])
    chosen = objective(key["sampler"], key["samples"], key["codewords"])
    log = ff.recommender.train(
        model, split.train, objective=chosen, validation=split, epochs=epochs, seed=key["seed"],
        progress=False,
    )  # fmt: skip
    return {
        "NDCG@50": [round(epoch.ndcg or 0.0, 5) for epoch in log],
        "train seconds": round(sum(epoch.seconds for epoch in log), 1),
    }


def trainings(seed: int) -> Iterable[dict[str, Any]]:
    """Return the models of Figures 3 and 5; settings a sampler does not have are zero."""
    yield {"sampler": FULL, "samples": 0, "codewords": 0, "seed": seed}
    yield {"sampler": SHARED, "samples": 1000, "codewords": 16, "seed": seed}
    for words in CODEWORDS:
        for sampler in INDEXED:
            yield {"sampler": sampler, "samples": SMALL_SAMPLE, "codewords": words, "seed": seed}
    for samples in SAMPLES:
        for sampler in (*INDEXED, *STATIC):
            words = 16 if sampler in INDEXED else 0
            yield {"sampler": sampler, "samples": samples, "codewords": words, "seed": seed}


def measure_training(seeds: int) -> None:
    """Compute the data of Figures 3 and 5."""
    split = subset(USERS)
    for seed in range(seeds):
        for key in trainings(seed):
            RECORD.once(lambda k=key: curve(split, k), figure="training", **key)


def scores(rows: list[Row], **key: Any) -> Tensor:
    """Return NDCG@50 of the models with these fields, (seeds, epochs)."""
    found = [row["NDCG@50"] for row in rows if key.items() <= row.items()]
    return torch.tensor(found or [[]], dtype=torch.float64)


def draw_convergence(rows: list[Row]) -> Figure:
    """Plot NDCG@50 by epoch for every sampler, with the published and a small sample size."""
    figure, panels = panels_of(2, sharey=True)
    for axes, samples in zip(panels, (PUBLISHED_SAMPLE, SMALL_SAMPLE), strict=True):
        some = (FULL, *INDEXED, *STATIC)
        for sampler in (*some, SHARED) if samples == PUBLISHED_SAMPLE else some:
            key = {} if sampler in (FULL, SHARED) else {"samples": samples}
            words = {"codewords": 16} if sampler in INDEXED else {}
            by_epoch = scores(rows, sampler=sampler, **key, **words).T
            name = f"{sampler} (1000 a batch)" if sampler == SHARED else sampler
            line(axes, dict(enumerate(by_epoch, 1)), name, sampler)
        axes.set(xlabel="epoch", title=f"{samples} draws per user")
    panels[0].set_ylabel("NDCG@50, validation")
    panels[0].legend(**LEGEND | {"loc": "lower right"})
    return figure


def draw_sensitivity(rows: list[Row]) -> Figure:
    """Plot the final NDCG@50 against the number of samples and of codewords."""
    figure, (left, right) = panels_of(2, sharey=True)
    full = float(scores(rows, sampler=FULL)[:, -1].mean())
    for axes, field, ticks, samplers, fixed, title in (
        (left, "samples", SAMPLES, (*INDEXED, *STATIC), {}, "draws per user (16 codewords)"),
        (
            right,
            "codewords",
            CODEWORDS,
            INDEXED,
            {"samples": SMALL_SAMPLE},
            f"codewords ({SMALL_SAMPLE} draws)",
        ),
    ):
        for sampler in samplers:
            words = {"codewords": 16} if sampler in INDEXED else {}
            keys = {tick: {"sampler": sampler, **words, **fixed, field: tick} for tick in ticks}
            last = {tick: scores(rows, **key)[:, -1:].flatten() for tick, key in keys.items()}
            line(axes, last, sampler, sampler)
        axes.axhline(full, color="black", linewidth=1, linestyle="--", label=FULL)
        axes.set(xscale="log", xlabel=title)
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.minorticks_off()
    left.set_ylabel("NDCG@50, validation")
    left.legend(**LEGEND | {"loc": "lower right"})
    return figure


# Figure 4

PER_USER = f"multi-index, uniform, {steps.DRAWS} draws per user"
PER_BATCH = f"multi-index, uniform, {steps.SHARED} draws shared"
MODES = {
    FULL: steps.full_step,
    PER_USER: lambda items: steps.sampled_step(items, shared=False),
    PER_BATCH: lambda items: steps.sampled_step(items, shared=True),
    **{
        sampler: lambda items, sampler=sampler: steps.sampled_step(
            items, shared=False, proposal=proposal(sampler, 16)
        )
        for sampler in (INDEXED[0], *STATIC)
    },
}


def step_time(mode: str, items: int, seconds: float = 3.0) -> Row:
    """Return the minimum CPU time of a training step in milliseconds, on one thread.

    Whatever else the machine does meanwhile can only make a step longer.
    """
    step = MODES[mode](items)
    step()
    taken: list[float] = []
    while len(taken) < 5 or sum(taken) < seconds:
        start = time.process_time()
        step()
        taken.append(time.process_time() - start)
    return {"milliseconds": round(min(taken) * 1e3, 3), "steps": len(taken)}


def measure_time(seeds: int = 1) -> None:
    """Compute the data of Figure 4."""
    for items in ITEMS:
        for mode in MODES:
            key = {"figure": "time", "sampler": mode, "items": items, "seed": 1}
            RECORD.once(lambda m=mode, n=items: step_time(m, n), **key)


def draw_time(rows: list[Row]) -> Figure:
    """Plot milliseconds per step against the number of items."""
    figure, (axes,) = panels_of(1)
    figure.set_figwidth(8)
    styles = {PER_USER: INDEXED[1], PER_BATCH: SHARED}
    for mode in MODES:
        points = {row["items"]: row["milliseconds"] for row in rows if row["sampler"] == mode}
        like = styles.get(mode, mode)
        line(axes, {x: torch.tensor([points[x]]) for x in sorted(points)}, mode, like)
    axes.legend(**LEGEND)
    axes.set(xscale="log", yscale="log", xlabel="items", ylabel="milliseconds per step, one thread")
    axes.set_xticks(ITEMS, [f"{n:,}" for n in ITEMS])
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.minorticks_off()
    return figure


def panels_of(count: int, **options: Any) -> tuple[Figure, list[Axes]]:
    size = (5.6 * count + 0.4, 4.2)
    figure, axes = pyplot.subplots(1, count, figsize=size, dpi=150, layout="constrained", **options)
    panels = list(np.atleast_1d(axes))
    for one in panels:
        one.spines[["top", "right"]].set_visible(False)
        one.grid(color="0.92", linewidth=0.8)
        one.set_axisbelow(True)
    return figure, panels


def line(axes: Axes, points: dict[int, Tensor], name: str, sampler: str) -> None:
    """Plot the mean over seeds at every measured point, with bars from minimum to maximum."""
    points = {x: y for x, y in points.items() if len(y)}
    style = {"linewidth": 1.8, "markersize": 5, "label": name, **STYLE[sampler]}
    mean = [float(y.mean()) for y in points.values()]
    axes.plot(list(points), mean, **style)
    low, high = ([float(end(y)) for y in points.values()] for end in (torch.amin, torch.amax))
    axes.vlines(list(points), low, high, color=style["color"], linewidth=1)


FIGURES = {
    "2": ("divergence", measure_divergence, draw_divergence),
    "3": ("training", measure_training, draw_convergence),
    "4": ("time", measure_time, draw_time),
    "5": ("training", measure_training, draw_sensitivity),
}


def draw_all(numbers: Iterable[str], seeds: int) -> None:
    """Measure missing data, then draw all figures."""
    for number in numbers:
        part, measure, draw = FIGURES[number]
        measure(seeds)
        figure = draw(RECORD.rows(figure=part))
        figure.savefig(HERE / f"figure{number}.png")
        pyplot.close(figure)


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("figures", nargs="*", default=[*FIGURES], help="2, 3, 4, 5; all of them")
    parser.add_argument("--seeds", type=int, default=1, help="of the training runs")
    options = parser.parse_args()
    matplotlib.use("Agg")
    torch.set_num_threads(1)
    draw_all(options.figures, options.seeds)


if __name__ == "__main__":
    main()
