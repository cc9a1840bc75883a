"""Save and load a recommender: settings as JSON, tensors as safetensors, in a model folder."""

import itertools
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fewfold._check import whole_number
from fewfold._progress import phase
from fewfold._tensors import Spec
from fewfold.recommender.artifact.card import model_card, versions
from fewfold.recommender.artifact.folder import Folder, Part
from fewfold.recommender.artifact.folder_writing import write_artifact
from fewfold.recommender.artifact.packing import (
    expect_items,
    expect_users,
    pack_items,
    pack_users,
    unpack_items,
    unpack_users,
)
from fewfold.recommender.artifact.profile_packing import (
    expect_profiles,
    pack_profiles,
    unpack_profiles,
)
from fewfold.recommender.artifact.results import StoredComparison, StoredEvaluation
from fewfold.recommender.artifact.schema import Source, check, check_tagged, key, plain
from fewfold.recommender.artifact.table_writing import largest_file, split_weights
from fewfold.recommender.errors import ArtifactError
from fewfold.recommender.evaluation.model_evaluation import Evaluation
from fewfold.recommender.models.model import Fitted, Model
from fewfold.recommender.models.registry import models
from fewfold.recommender.reading.summary import LogSummary
from fewfold.recommender.recommender_state import RecommenderState
from fewfold.recommender.selection.choice import Choice
from fewfold.recommender.selection.half_life import Recency
from fewfold.recommender.training.train_options import CurvePoint, Training
from fewfold.recommender.user_profiles import ProfileSettings
from fewfold.recommender.warm_vectors import WarmSettings

__all__ = ["model_as_json", "model_from_json", "read_state", "write_state"]

_LARGEST = 1e17  # bound of all values in a score: its square fits single precision


@dataclass(frozen=True)
class _LearnedFrom:
    """Size of the training data.

    Attributes:
        users, items, pairs: counts.
        everything: whether it is the whole log.
        tables: how anchor tables were trained, for messages; None for dense tables.
    """

    users: int
    items: int
    pairs: int
    everything: bool
    tables: str | None = None


@dataclass(frozen=True)
class _Config:
    """`config.json`: model, training, data and versions.

    Attributes:
        model: `kind`, and the settings of its recipe.
        training: the settings of the `Training`.
        seed: at least 0.
        data: summary of the log.
        learned_from: size of the training data.
        versions: versions of the libraries.
        choice: how the model was chosen, if it was not named.
        attributes: how item vectors were completed from attributes, if they were.
        recency: how interactions count by their age, if that was asked.
        profiles: how attributes of users are used, if there are any.
        curve: loss and validation of each epoch of the training, if there was one.
        comparison: results of a comparison with other models, if one was made.
    """

    model: Mapping[str, Any]
    training: Mapping[str, Any]
    seed: int
    data: LogSummary
    learned_from: _LearnedFrom = field(metadata=key("learned from"))
    versions: Mapping[str, str]
    choice: Choice | None = None
    attributes: WarmSettings | None = None
    recency: Recency | None = None
    profiles: ProfileSettings | None = None
    curve: tuple[CurvePoint, ...] = ()
    comparison: StoredComparison | None = None

    def __post_init__(self) -> None:
        whole_number(self.seed, "seed", least=0)


def write_state(
    state: RecommenderState, folder: str | os.PathLike[str], *, users: bool, overwrite: bool
) -> Path:
    """Write a model folder, with or without the users and their histories.

    Tables larger than `largest_file` are several files, which the processes of a group write
    together; the first of them writes all other files.
    """
    config = {
        "model": model_as_json(state.fitted.recipe),
        "training": asdict(state.training),
        "seed": state.seed,
        "data": state.data,
        "learned from": state.learned_from,
        "versions": versions(),
    }
    if state.choice is not None:
        config["choice"] = state.choice.as_dict()
    if state.warm is not None:
        config["attributes"] = asdict(state.warm)
    if state.recency is not None:
        config["recency"] = asdict(state.recency)
    if state.profiles is not None:
        config["profiles"] = asdict(state.profiles.settings)
    if state.curve:
        config["curve"] = [asdict(point) for point in state.curve]
    if state.comparison is not None:
        config["comparison"] = state.comparison
    evaluation = state.evaluation
    metrics = evaluation.as_dict() if isinstance(evaluation, Evaluation) else evaluation or {}
    with phase("writing the model"):
        group = state.fitted.group
        with group.together():
            largest = largest_file()
        (largest,) = map(int, group.agree(largest))  # machines may have other environments
        stored = {**state.fitted.stored(), "learned": state.trained_items}
        weights, tables = split_weights(stored, len(state.items), largest)

        def parts() -> dict[str, dict[str, Any]]:
            found = {
                "config.json": config,
                "metrics.json": metrics,
                "model.safetensors": weights,
                "items.safetensors": pack_items(state.items, state.attributes),
            }
            if users and state.users is not None and state.history is not None:
                found["users.safetensors"] = pack_users(state.users, state.history)
            if state.profiles is not None:
                found["profiles.safetensors"] = pack_profiles(state.profiles, users=users)
            return found

        return write_artifact(
            folder, parts, model_card(config, metrics), tables=tables, largest=largest,
            group=group, overwrite=overwrite,
        )  # fmt: skip


def read_state(folder: Folder) -> RecommenderState:
    """Read an opened model folder; an ArtifactError names what is wrong."""
    source = Source(folder.root / "config.json")
    config = check(_Config, folder.config, source, exact=False)
    training = check(Training, config.training, source, "training", exact=True)
    model = model_from_json(config.model, source)
    if folder.metrics != {}:
        check(StoredEvaluation, folder.metrics, Source(folder.root / "metrics.json"), exact=False)
    weights, about = folder.parts["model.safetensors"], folder.parts["items.safetensors"]
    users = folder.parts.get("users.safetensors")
    count = expect_items(about)  # by the headers alone, before anything large is read
    _check_headers(model, weights, count)
    if users is not None:
        expect_users(users, count)
    profiled = folder.parts.get("profiles.safetensors")
    if (profiled is None) != (config.profiles is None):
        raise source.damaged("profiles", "must be there together with profiles.safetensors")
    if profiled is not None and config.profiles is not None:
        expect_profiles(profiled, config.profiles, count)
    folder.verify()
    fitted, trained_items = _read_weights(model, weights, count)
    items, attributes = unpack_items(about)
    user_ids, history = (None, None) if users is None else unpack_users(users, count)
    profiles = None
    if profiled is not None and config.profiles is not None:
        profiles = unpack_profiles(profiled, config.profiles, count)
    return RecommenderState(
        model, training, config.seed, fitted, items, trained_items, user_ids, history, attributes,
        evaluation=folder.metrics or None,
        data={**folder.config["data"], **config.data.as_dict()},
        learned_from=folder.config["learned from"],
        choice=config.choice,
        warm=config.attributes,
        recency=config.recency,
        profiles=profiles,
        curve=config.curve,
        comparison=folder.config.get("comparison"),
    )  # fmt: skip


def model_as_json(model: Model) -> dict[str, Any]:
    """Return the settings of a registered model as a JSON object; `kind` is its name."""
    if models().get(model.name) is not type(model):
        raise ValueError(
            f"a {type(model).__name__} cannot be saved, since it is not registered; "
            "decorate the class with @register"
        )
    return {"kind": model.name, **plain(model)}


def model_from_json(description: Any, source: Source) -> Model:
    """Return the model with the settings of a JSON object; an ArtifactError says what is wrong."""
    model: Model = check_tagged(models(), description, source, "model")
    return model


def _check_headers(model: Model, part: Part, items: int) -> None:
    """Raise unless a file has the names, dtypes and shapes of this model's tensors."""
    learned = ("learned", Spec((items,), torch.bool, below=2))
    part.expect(itertools.chain(model.layout(part.found, items), [learned]))


def _read_weights(model: Model, part: Part, items: int) -> tuple[Fitted, Tensor]:
    """Return the fitted model, and (items,) the mask of the items it was fitted to."""
    tensors = part.read()
    source = Source(part.file)
    if not model.largest(part.ranges, items) < _LARGEST:
        raise source.damaged("", "holds numbers so large that scores would overflow")
    learned = tensors.pop("learned")
    try:
        return model.from_state(tensors, items), learned
    except ValueError as error:  # of values that only the model itself can judge
        raise ArtifactError(f"{part.file}: {error}; {source.advice}") from error
