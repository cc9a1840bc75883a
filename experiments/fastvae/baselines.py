"""Baselines on the FastVAE authors' MovieLens-10M: what any model of that table has to beat.

``python -m experiments.fastvae.baselines`` writes baselines.json next to this file.
"""

import argparse
import json
import subprocess
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import machine
from experiments import datasets
from fewfold.recommender import (
    BM25,
    EASE,
    NDCG,
    Baseline,
    Cosine,
    ItemKNN,
    MostPopular,
    Recall,
    Split,
    evaluate,
    random_split,
)

HERE = Path(__file__).parent
METRICS = (NDCG(50), Recall(50))
MODELS: tuple[Baseline, ...] = (
    MostPopular(),
    ItemKNN(100, Cosine()),
    ItemKNN(100, BM25()),
    EASE(l2=250.0),
)


def measure(model: Baseline, split: Split) -> dict[str, Any]:
    """One row: how good, and how long it took."""
    start = time.perf_counter()
    model.fit(split.train)
    fitted = time.perf_counter()
    top = model.recommend(split.fold_in, 50)
    ranked = time.perf_counter()
    report = evaluate(top, split.test, METRICS)
    print(f"{model!r}\n{report}\n", flush=True)
    row: dict[str, Any] = {"model": repr(model)}
    for score in report.scores:
        row[str(score.metric)] = round(score.mean, 4)
        row[f"{score.metric} interval"] = [round(score.low, 4), round(score.high, 4)]
    row["fit seconds"] = round(fitted - start, 2)
    row["recommend seconds"] = round(ranked - fitted, 2)
    return row


def main() -> None:
    """Measure every baseline on one split and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="ml-10m-fastvae")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=HERE / "baselines.json")
    options = parser.parse_args()
    git = ["git", "-C", str(HERE), "rev-parse", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True).stdout.strip()
    start = time.perf_counter()
    core = datasets.interactions(options.data).k_core(10).interactions
    split = random_split(core, test=0.2, seed=options.seed)
    rows = [measure(model, split) for model in MODELS]
    result = {
        "data": f"{options.data}, 10-core: {core.users} x {core.items}, {core.pairs} pairs",
        "split": "random, 80/20 per user",
        "formulas": {str(metric): metric.formula for metric in METRICS},
        "seed": options.seed,
        "commit": commit,
        "machine": machine(),
        "wall seconds": round(time.perf_counter() - start, 1),
        "rows": rows,
    }
    options.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
