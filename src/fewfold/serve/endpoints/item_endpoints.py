"""Endpoints of items: search, details, similar items."""

from fewfold.recommender.recommendations import RankOptions, similar_items
from fewfold.serve.api_error import ApiError
from fewfold.serve.endpoint import Call, Endpoints
from fewfold.serve.endpoints.recommend_endpoints import check_count
from fewfold.serve.live_model import Snapshot
from fewfold.serve.rank_batch import recommended
from fewfold.serve.schemas import (
    ItemAnswer,
    ItemsAnswer,
    SearchParameters,
    SimilarAnswer,
    SimilarParameters,
)

__all__ = ["ENDPOINTS"]

ENDPOINTS = Endpoints()


@ENDPOINTS.get("/v1/items", ItemsAnswer, parameters=SearchParameters)
async def search(call: Call) -> ItemsAnswer:
    """Find items by a part of their id or name; without one, the most popular items."""
    snapshot, asked = call.service.live.current, call.parameters
    view = call.service.view(snapshot)
    found = await call.service.in_thread(view.find_items, asked.search, asked.limit)
    return ItemsAnswer(found, snapshot.version)


@ENDPOINTS.get(
    "/v1/items/{id}/similar", SimilarAnswer, parameters=SimilarParameters, failures=(404,)
)
async def similar(call: Call) -> SimilarAnswer:
    """List the items most similar to an item."""
    snapshot, k = call.service.live.current, call.parameters.k
    check_count(k, call.service.settings.limits.k, "items", "k")
    number = known_item(snapshot, call.id)
    item = snapshot.state.items[number]
    found = await call.service.in_thread(similar_items, [item], snapshot.state, RankOptions(k))
    new_id = call.service.ranker.new_id()
    return SimilarAnswer(new_id, snapshot.version, item, recommended(found, 0, k))


@ENDPOINTS.get("/v1/items/{id}", ItemAnswer, failures=(404,))
async def details(call: Call) -> ItemAnswer:
    """Return what is known of an item."""
    snapshot = call.service.live.current
    view, number = call.service.view(snapshot), known_item(snapshot, call.id)
    return ItemAnswer(
        snapshot.state.items[number], view.attributes(number), view.item_users(number),
        bool(snapshot.state.trained_items[number]), snapshot.version,
    )  # fmt: skip


def known_item(snapshot: Snapshot, item: str) -> int:
    """Return the number of an item; 404 if there is none."""
    number = int(snapshot.state.items.find([item])[0])
    if number < 0:
        raise ApiError(
            404, "unknown_item",
            f"no item {item!r} in this model; GET /v1/items?search= finds items", "id",
        )  # fmt: skip
    return number
