"""Low ratings and the age of interactions: what they are worth to EASE, on validation parts.

- Low ratings: a tenth of the training part of a random 80/20 split is held out; of it, pairs rated
  4 or 5 are to be found. Pairs rated below are dropped, or excluded from the user's ranking, or
  also subtracted: entries of ``-weight`` in the matrix that EASE learns from.
- Age: `choose_half_life` on the training part of the split that `fewfold fit` evaluates on.

No test pair is looked at.

    python -m experiments.best_by_default.feedback     # adds what is missing to feedback.json
"""

from pathlib import Path

import numpy as np
import polars as pl
import torch
from torch import Tensor

from experiments.datasets import DATA
from experiments.record import Record, Row
from fewfold.recommender import NDCG, Interactions, Jagged, evaluate, random_split
from fewfold.recommender.evaluation.holdout import hold_out
from fewfold.recommender.evaluation.paired_interval import paired_interval
from fewfold.recommender.models.model import FitOptions
from fewfold.recommender.selection.half_life import choose_half_life

RATED = {"ml-100k": "item_id", "ml-1m": "movie_id"}
TIMED = {
    "ml-100k": ("ml-100k/ratings.parquet", "user_id", "item_id"),
    "ml-1m": ("ml-1m-timestamps/ratings_timestamps.parquet", "user_id", "movie_id"),
    "steam-sample": ("steam-sample/interactions.parquet", "user", "item"),
    "amazon-games-2018": ("amazon-games-2018/interactions.parquet", "user", "item"),
}
_L2, _THRESHOLD = 500.0, 4
_SUBTRACTED = (0.1, 0.25, 0.5)


def _numbers(column: pl.Series) -> np.ndarray:
    return np.unique(column.to_numpy(), return_inverse=True)[1]


def _per_user(weights: Tensor, known: Interactions, excluded: Jagged, test: Jagged) -> Tensor:
    """NDCG@10 of each user by an item-to-item matrix."""
    scores = torch.from_numpy(known.to_csr() @ weights.numpy())
    scores[excluded.row, excluded.values] = -torch.inf
    metric = NDCG(10)
    return evaluate(scores.topk(10).indices, test, (metric,), resamples=0)[metric].per_user


def _matrix(entries: Tensor) -> Tensor:
    """The weights of EASE for a dense (users, items) matrix."""
    gram = entries.T @ entries
    gram.diagonal().add_(_L2)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(gram))
    found = inverse / -inverse.diagonal()
    return found.fill_diagonal_(0.0)


def low_ratings(name: str) -> Row:
    """NDCG@10 with low ratings dropped, excluded, and subtracted."""
    table = pl.read_parquet(DATA / name / "ratings.parquet")
    rated = Interactions.from_pairs(
        _numbers(table["user_id"]), _numbers(table[RATED[name]]),
        weights=table["rating"].cast(pl.Float64).to_list(),
    )  # fmt: skip
    split = random_split(random_split(rated, test=0.2, seed=0).train, test=0.1, seed=1)
    assert split.train.weights is not None
    assert split.test.weights is not None
    high = split.train.weights >= _THRESHOLD
    likes, dislikes = split.train.keep(high), split.train.keep(~high)
    found = split.test.keep(split.test.weights >= _THRESHOLD)
    users = (found.jagged.lengths > 0).nonzero().squeeze(1)
    test, known = found.rows(users), likes.select(users)
    entries, low = (torch.from_numpy(one.to_csr().toarray()) for one in (likes, dislikes))
    plain = _matrix(entries)
    dropped = _per_user(plain, known, likes.rows(users), test)
    results = {"excluded": _per_user(plain, known, split.train.rows(users), test)}
    for weight in _SUBTRACTED:
        changed = _matrix(entries - weight * low)
        results[f"subtracted {weight}"] = _per_user(changed, known, split.train.rows(users), test)
    row: Row = {"users": len(users), "dropped": float(dropped.mean())}
    for method, values in results.items():
        gain = paired_interval(values, dropped)
        row[method] = {"mean": float(values.mean()), "low": gain.low, "high": gain.high}
    return row


def age(name: str) -> Row:
    """The half-life that is chosen on the training part, and why."""
    file, user, item = TIMED[name]
    table = pl.read_parquet(DATA / file)
    log = Interactions.from_pairs(
        _numbers(table[user]), _numbers(table[item]), table["timestamp"].to_list()
    )
    train = hold_out(log, test=0.2)[0].train
    found = choose_half_life(train, FitOptions(progress=False))
    return {"half-life": found.half_life, "why": found.why}


def main() -> None:
    """Measure whatever is not there yet."""
    record = Record(Path(__file__).with_name("feedback.json"))
    for name in RATED:
        record.once(lambda n=name: low_ratings(n), data=name, what="low ratings")  # type: ignore[misc]
    for name in TIMED:
        record.once(lambda n=name: age(n), data=name, what="age")  # type: ignore[misc]


if __name__ == "__main__":
    main()
