"""Models for the suite `http`: folders of any size with random weights, written once.

Only time is measured. Items come in groups, as those of a trained model do, since otherwise an
index would have nothing to find; histories are of two groups.
"""

from functools import cache
from pathlib import Path
from typing import Any

import torch

import fewfold as ff
from benchmarks.http_load import Request
from fewfold.recommender.ids import Ids
from fewfold.recommender.models.fastvae.fitted import FittedVAE
from fewfold.recommender.models.fastvae.tables import DenseTables
from fewfold.recommender.recommender_state import RecommenderState
from fewfold.recommender.saved_model import write_state

FOLDER = Path("build/benchmarks/http")
GROUPS, LENGTH, QUERIES = 1000, 20, 2000


@cache
def folder_of(items: int) -> Path:
    """Return a model folder with this many items."""
    folder = FOLDER / f"model-{items}"
    if not (folder / "manifest.json").exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        write_state(_state(items), folder, users=True, overwrite=True)
    return folder


def _state(items: int) -> RecommenderState:
    generator = torch.Generator().manual_seed(0)
    recipe = ff.VAE()
    model = recipe.network(items)
    group = torch.arange(items) % GROUPS

    def grouped(width: int) -> torch.Tensor:
        centres = torch.randn(GROUPS, width, generator=generator)
        table = torch.randn(items, width, generator=generator).mul_(0.7)
        return table.add_(centres[group]).mul_(width**-0.5)

    tables = model.tables
    assert isinstance(tables, DenseTables)
    tables.items.data.copy_(grouped(recipe.latent + 1))
    table = grouped(recipe.rank(items)).mul_(0.1)
    scale = torch.rand(items, generator=generator) + 0.5
    model.shortcut = ff.recommender.Shortcut(table, scale, 130.0)
    users = 2 * QUERIES
    pairs = torch.tensor([histories(items)[user % QUERIES] for user in range(users)])
    row = torch.arange(users).repeat_interleave(LENGTH)
    history = ff.recommender.Interactions.from_pairs(row, pairs.flatten(), shape=(users, items))
    return RecommenderState(
        recipe,
        ff.recommender.Training(),
        0,
        FittedVAE(recipe, model),
        Ids.of(f"item-{number}" for number in range(items)),
        torch.ones(items, dtype=torch.bool),
        Ids.of(f"user-{number}" for number in range(users)),
        history,
        data=_summary(),
        learned_from={"users": users, "items": items, "pairs": history.pairs, "everything": True},
    )


@cache
def _summary() -> dict[str, Any]:
    log = {"user": ["a", "a", "b"], "item": ["x", "y", "x"]}
    return ff.read_log(log).summary.as_dict()


@cache
def histories(items: int) -> list[list[int]]:
    """Return item numbers of the histories that are asked for."""
    generator = torch.Generator().manual_seed(1)
    groups = torch.randint(GROUPS, (QUERIES, 2), generator=generator).repeat(1, LENGTH // 2)
    members = torch.randint(items // GROUPS, (QUERIES, LENGTH), generator=generator)
    found: list[list[int]] = (members * GROUPS + groups).tolist()
    return found


def requests(items: int, k: int = 10) -> list[Request]:
    """Return a request for each of the histories."""
    return [
        ("POST", "/v1/recommendations", {"history": [f"item-{one}" for one in row], "k": k})
        for row in histories(items)
    ]
