"""Endpoints of users: search and history."""

from fewfold.serve.api_error import ApiError
from fewfold.serve.endpoint import Call, Endpoints
from fewfold.serve.schemas import HistoryItem, SearchParameters, UserAnswer, UsersAnswer

__all__ = ["ENDPOINTS"]

ENDPOINTS = Endpoints()


@ENDPOINTS.get("/v1/users", UsersAnswer, parameters=SearchParameters, failures=(404,))
async def search(call: Call) -> UsersAnswer:
    """Find users of the log by a part of their id."""
    snapshot, asked = call.service.live.current, call.parameters
    view = call.service.view(snapshot)
    found = await call.service.in_thread(view.find_users, asked.search, asked.limit)
    if found is None:
        raise ApiError(
            404, "no_users", "this model was saved without users; send the items of a user as "
            "`history`",
        )  # fmt: skip
    return UsersAnswer(found, snapshot.version)


@ENDPOINTS.get("/v1/users/{id}", UserAnswer, failures=(404,))
async def history(call: Call) -> UserAnswer:
    """Return the items of a user, of the log and of the feedback."""
    live = call.service.live
    snapshot = live.current
    if not live.knows(snapshot, call.id):
        raise ApiError(
            404, "unknown_user",
            f"no user {call.id!r} in this model; GET /v1/users?search= finds users", "id",
        )  # fmt: skip
    found = live.history(snapshot, call.id)
    numbers = snapshot.state.items.find([item for item, _ in found]).tolist()
    view = call.service.view(snapshot)
    items = [
        HistoryItem(
            item,
            view.attributes(number) if number >= 0 else {},
            "log" if source == "log" else "feedback",
        )
        for (item, source), number in zip(found, numbers, strict=True)
    ]
    known = None if snapshot.state.users is None else snapshot.state.users.convert(call.id)
    return UserAnswer(call.id if known is None else known, items, snapshot.version)
