"""Bodies, parameters and answers of the API.

These classes are the only description of the API's data: requests are checked against them, answers
are encoded from them, and `/openapi.json` is generated from them.
"""

from typing import Annotated, Any, Literal

from fewfold._optional import optional_import

with optional_import("msgspec", "serve", "fewfold serve"):
    from msgspec import UNSET, Meta, Struct, UnsetType, field

__all__ = [
    "Answer", "Anchor", "AnchorItem", "AnchorsAnswer", "Because", "Condition",
    "DiversityOptions", "ErrorAnswer",
    "ErrorBody", "Event", "FeedbackAnswer", "Fallback", "HealthAnswer", "HistoryItem", "ItemAnswer",
    "ItemId", "ItemsAnswer", "ListedItem", "ListedUser", "ModelAnswer", "Query",
    "RecommendParameters", "RecommendedItem", "ReloadAnswer", "SearchParameters", "SimilarAnswer",
    "SimilarParameters", "StatsAnswer", "UserAnswer", "UsersAnswer",
]  # fmt: skip

ItemId = str | int
Fallback = Literal["none", "popular"]
Count = Annotated[int, Meta(ge=1)]
_K = Annotated[int, Meta(ge=1, description="number of items")]
_Limit = Annotated[int, Meta(ge=1, le=1000, description="number of entries")]
_Search = Annotated[str, Meta(max_length=1000, description="part of an id or name")]
_Model = Annotated[str, Meta(description="version of the model that answered")]


class Request(Struct, forbid_unknown_fields=True, frozen=True):
    """Base of what clients send: unknown fields are refused."""


_Value = str | int | float | bool
_End = str | int | float  # a date is text


class Condition(Request, frozen=True, omit_defaults=True):
    """A range of an attribute, both ends included, or values that it must not have."""

    min: _End | None = None
    max: _End | None = None
    excluded: _Value | list[_Value] | None = field(name="not", default=None)


class DiversityOptions(Request, frozen=True):
    """How much to prefer items that differ from those ranked before them."""

    amount: Annotated[float, Meta(ge=0, le=1)]
    by: str | None = None


Where = dict[str, _Value | list[_Value] | Condition]


class Query(Request, frozen=True):
    """Whom to recommend to, by `user` or `history`, and how."""

    user: ItemId | None = None
    history: Annotated[list[ItemId], Meta(description="items, oldest first")] | None = None
    k: _K = 10
    items: Annotated[list[ItemId], Meta(description="the only candidates")] | None = None
    exclude: Annotated[list[ItemId], Meta(description="never to recommend")] = field(
        default_factory=list
    )
    exclude_seen: Annotated[bool, Meta(description="leave out items of the history")] = True
    where: Annotated[Where, Meta(description="conditions on attributes of the items")] | None = None
    diversity: Annotated[float, Meta(ge=0, le=1)] | DiversityOptions | None = None
    at_most: Annotated[dict[str, Count], Meta(description="items per attribute value")] | None = (
        None
    )
    explain: Annotated[bool, Meta(description="name the reasons for each item")] = False
    fallback: Annotated[Fallback, Meta(description="what to answer for an unknown user")] = "none"


class RecommendParameters(Request, frozen=True):
    """Parameters of `GET /v1/users/{id}/recommendations`."""

    k: _K = 10
    explain: bool = False
    exclude_seen: bool = True
    fallback: Fallback = "none"


class SimilarParameters(Request, frozen=True):
    """Parameters of `GET /v1/items/{id}/similar`."""

    k: _K = 10


class SearchParameters(Request, frozen=True):
    """Parameters of a search."""

    search: _Search = ""
    limit: _Limit = 20


class Event(Request, frozen=True):
    """An interaction of a user with an item."""

    user: ItemId
    item: ItemId
    time: Annotated[str, Meta(description="ISO 8601")] | float | None = None
    recommendation: Annotated[str, Meta(max_length=200)] | None = None


class Because(Struct, frozen=True):
    """An item of the history, and what it adds to the score."""

    item: ItemId
    contribution: float


class RecommendedItem(Struct, frozen=True, gc=False):
    """A recommended item."""

    item: ItemId
    score: float
    attributes: dict[str, str]
    because: list[Because] | UnsetType = UNSET


class Answer(Struct, frozen=True):
    """Recommended items, best first."""

    id: Annotated[str, Meta(description="of this recommendation; feedback may name it")]
    model: _Model
    user: ItemId | None
    items: list[RecommendedItem]
    unknown: Annotated[list[ItemId], Meta(description="ids of the request that are not known")]
    note: Annotated[str, Meta(description="why the answer is empty or not personal")] | None = None


class SimilarAnswer(Struct, frozen=True):
    """Items similar to one, the most similar first."""

    id: str
    model: _Model
    item: ItemId
    items: list[RecommendedItem]


class ListedUser(Struct, frozen=True):
    """A user, and how many items they have."""

    user: ItemId
    items: int


class UsersAnswer(Struct, frozen=True):
    """Users that were searched."""

    users: list[ListedUser]
    model: _Model


class HistoryItem(Struct, frozen=True):
    """An item of a history."""

    item: ItemId
    attributes: dict[str, str]
    source: Literal["log", "feedback"] = field(name="from")


class UserAnswer(Struct, frozen=True):
    """A user's history, oldest first where times are known."""

    user: ItemId
    history: list[HistoryItem]
    model: _Model


class ListedItem(Struct, frozen=True):
    """An item, and how many users have it."""

    item: ItemId
    attributes: dict[str, str]
    users: int | None


class ItemsAnswer(Struct, frozen=True):
    """Items that were searched."""

    items: list[ListedItem]
    model: _Model


class ItemAnswer(Struct, frozen=True):
    """An item; `known` says whether it had interactions when the model was fitted."""

    item: ItemId
    attributes: dict[str, str]
    users: int | None
    known: bool
    model: _Model


class FeedbackAnswer(Struct, frozen=True):
    """How many events were stored, and which of their items the model does not know."""

    stored: int
    model: _Model
    unknown_items: list[ItemId]


class ModelAnswer(Struct, frozen=True):
    """Description of the model that is served."""

    model: _Model
    loaded: str
    kind: str
    settings: dict[str, Any]
    card: str
    metrics: dict[str, Any]
    sizes: dict[str, int]
    data: dict[str, Any]
    choice: dict[str, Any] | None
    comparison: Any
    curve: list[Any] | None
    attributes: dict[str, dict[str, Any]]
    counts: dict[str, int | None]
    has: dict[str, bool]


class AnchorItem(Struct, frozen=True):
    """An item of an anchor."""

    item: ItemId
    weight: float


class Anchor(Struct, frozen=True):
    """An anchor: how many items use it, their most common label, and its main items."""

    anchor: int
    items: int
    label: str | None
    top: list[AnchorItem]


class AnchorsAnswer(Struct, frozen=True):
    """The anchors of the model, and its size with and without them."""

    anchors: list[Anchor]
    sizes: dict[str, int]
    model: _Model


class StatsAnswer(Struct, frozen=True):
    """Measurements of all workers; rates, latencies and batch sizes of the last minute."""

    requests_per_second: float
    latency_ms: dict[str, float | None]
    batch_size: dict[str, float | None]
    requests: int
    errors: int
    model: _Model
    loaded: str
    reloads: int
    workers: int
    uptime_s: float
    memory_bytes: int


class ReloadAnswer(Struct, frozen=True):
    """The model that is served now, and the one before."""

    model: _Model
    previous: str
    changed: bool


class HealthAnswer(Struct, frozen=True):
    """State of the process."""

    status: Literal["live", "ready"]


class ErrorBody(Struct, frozen=True):
    """What was expected, what came, and what to send."""

    code: str
    message: str
    field: str | None


class ErrorAnswer(Struct, frozen=True):
    """Answer to a request that failed."""

    error: ErrorBody
