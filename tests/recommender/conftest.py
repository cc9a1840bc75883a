"""A log small enough to learn in a moment, with something in it to be learned."""

import random
from pathlib import Path

import pytest

import fewfold as ff


def grouped(users: int = 120, seed: int = 0) -> dict[str, list[str]]:
    """Users of four tastes; a taste is ten items, of which each user has six."""
    rows: dict[str, list[str]] = {"user": [], "item": []}
    generator = random.Random(seed)
    for user in range(users):
        taste = user % 4
        for item in generator.sample(range(10), 6):
            rows["user"].append(f"u{user}")
            rows["item"].append(f"{'abcd'[taste]}{item}")
    return rows


@pytest.fixture(scope="session")
def fitted() -> ff.Recommender:
    """A small FastVAE of the grouped log; not to be changed."""
    recipe = ff.VAE(hidden=16, latent=7, layers=0, shortcut=8)
    training = ff.recommender.Training(epochs=30, batch=32)
    return ff.Recommender(recipe, training=training).fit(grouped(), progress=False)


@pytest.fixture(scope="session")
def artifact(fitted: ff.Recommender, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same as a folder; not to be changed."""
    return fitted.save(tmp_path_factory.mktemp("artifact") / "model")
