"""A model as a folder stores it: settings as JSON, learned tensors as safetensors."""

import itertools
from typing import Any

import torch
from torch import Tensor

from fewfold._tensors import Spec
from fewfold.recommender.artifact.folder import Part
from fewfold.recommender.artifact.schema import Source, check_tagged, plain
from fewfold.recommender.errors import ArtifactError
from fewfold.recommender.models.model import Fitted, Model
from fewfold.recommender.models.registry import models

__all__ = ["described", "expect", "recipe_of", "restore"]

_LARGEST = 1e17  # bound of all values in a score: its square fits single precision


def described(recipe: Model) -> dict[str, Any]:
    """Settings of a registered model as a JSON object; `kind` is its name."""
    if models().get(recipe.name) is not type(recipe):
        raise ValueError(
            f"a {type(recipe).__name__} cannot be written down, for it is not registered; "
            "decorate the class with @register"
        )
    return {"kind": recipe.name, **plain(recipe)}


def recipe_of(description: Any, source: Source) -> Model:
    """Model with the settings of a JSON object; ArtifactError says what is wrong."""
    recipe: Model = check_tagged(models(), description, source, "model")
    return recipe


def expect(recipe: Model, part: Part, items: int) -> None:
    """Raise unless a file has the names, dtypes and shapes of this model's tensors."""
    learned = ("learned", Spec((items,), torch.bool, below=2))
    part.expect(itertools.chain(recipe.layout(part.found, items), [learned]))


def restore(recipe: Model, part: Part, items: int) -> tuple[Fitted, Tensor]:
    """Fitted model, and (items,) mask of the items it was fitted to, of a file `expect` accepts."""
    tensors = part.read()
    source = Source(part.file)
    if not recipe.largest(part.ranges, items) < _LARGEST:
        raise source.damaged("", "holds numbers so large that scores would overflow")
    learned = tensors.pop("learned")
    try:
        return recipe.from_state(tensors, items), learned
    except ValueError as error:  # of values that only the model itself can judge
        raise ArtifactError(f"{part.file}: {error}; {source.advice}") from error
