"""Endpoints of the model: description, anchors, reload."""

from fewfold.recommender.errors import ArtifactError
from fewfold.serve.api_error import ApiError
from fewfold.serve.endpoint import Call, Endpoints
from fewfold.serve.schemas import AnchorsAnswer, ModelAnswer, ReloadAnswer

__all__ = ["ENDPOINTS"]

ENDPOINTS = Endpoints()


@ENDPOINTS.get("/v1/model", ModelAnswer)
async def describe(call: Call) -> ModelAnswer:
    """Describe the model: settings, card, metrics, sizes, data."""
    live = call.service.live
    view = call.service.view(live.current)
    journal = live.journal is not None
    answer: ModelAnswer = await call.service.in_thread(lambda: view.description(journal=journal))
    return answer


@ENDPOINTS.get("/v1/anchors", AnchorsAnswer, failures=(404,))
async def anchors(call: Call) -> AnchorsAnswer:
    """List the anchors of the model and the items each of them groups."""
    view = call.service.view(call.service.live.current)
    found: AnchorsAnswer | None = await call.service.in_thread(view.anchors)
    if found is None:
        raise ApiError(
            404, "no_anchors", "this model has no anchors; fit one with `fewfold fit --anchors`"
        )
    return found


@ENDPOINTS.post("/v1/admin/reload", ReloadAnswer, failures=(409,))
async def reload(call: Call) -> ReloadAnswer:
    """Load the model folder again if it has changed."""
    try:
        before, after = await call.service.in_thread(call.service.reload)
    except (ArtifactError, OSError) as error:
        raise ApiError(
            409, "not_loaded", f"the new model cannot be loaded, and the old one stays: {error}"
        ) from error
    return ReloadAnswer(after, before, after != before)
