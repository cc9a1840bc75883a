"""All rows of the table of devices, and the public names that are not in it."""

import types

import fewfold

from . import functions, huggingface, structures, tables, training

CASES = [*functions.CASES, *structures.CASES, *tables.CASES, *training.CASES, *huggingface.CASES]

MODULES = (
    "maps", "losses", "structured", "structured.structures", "expectation", "attention",
    "hopfield", "continuous", "distributions", "sampling", "embeddings", "optim",
)  # fmt: skip

EXCLUDED = {
    "show_config": "prints",
    "attention.Backend": "text, no tensors",
    "attention.attention_backend": "text, no tensors",
    "attention.picture_attention": "draws a picture",
    "hopfield.storage_bound": "numbers, no tensors",
    "expectation.annealed": "numbers, no tensors",
    "expectation.Baseline": "a base class",
    "continuous.Density": "a base class",
    "continuous.Locator": "a base class",
    "optim.Penalty": "numbers, no tensors",
    "embeddings.Sizes": "numbers, no tensors",
    "embeddings.DataParallel": "needs a group of processes",
}
"""Public names of which no row says where they run, and why."""


def public() -> set[str]:
    """All public names of functions and classes below `fewfold`, without the recommender."""
    top = {
        name: getattr(fewfold, name)
        for name in fewfold.__all__
        if not isinstance(getattr(fewfold, name), types.ModuleType) and name != "__version__"
    }
    own = {"VAE", "Recommender", "compare", "read_log"}  # tests/device/test_recommender.py
    found = set(top) - own
    for module in MODULES:
        inside = fewfold
        for part in module.split("."):
            inside = getattr(inside, part)
        for name in inside.__all__:
            value = getattr(inside, name)
            if not isinstance(value, types.ModuleType) and top.get(name) is not value:
                place = "structures" if module == "structured.structures" else module
                found.add(f"{place}.{name}")
    return found
