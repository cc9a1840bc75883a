"""Endpoints of recommendations."""

from fewfold.serve.api_error import ApiError
from fewfold.serve.endpoint import Call, Endpoints, Reply
from fewfold.serve.rank_batch import Entry
from fewfold.serve.schemas import Answer, Query, RecommendParameters
from fewfold.serve.settings import Limits

__all__ = ["ENDPOINTS"]

ENDPOINTS = Endpoints()


@ENDPOINTS.post(
    "/v1/recommendations", Answer | list[Answer], body=Query | list[Query], failures=(404,)
)
async def recommend(call: Call) -> Reply:
    """Recommend items to one or several users or histories."""
    limits = call.service.settings.limits
    if isinstance(call.body, Query):
        check_query(call.body, "", limits)
        return Reply((await call.service.ranker.answers([Entry.of(call.body)]))[0])
    queries: list[Query] = call.body
    check_count(len(queries), limits.queries, "queries", "queries")
    for place, query in enumerate(queries):
        check_query(query, f"{place}.", limits)
    check_count(sum(map(_ids, queries)), limits.ids, "ids", None)
    entries = [
        Entry.of(query, f"{place}.", together=len(queries)) for place, query in enumerate(queries)
    ]
    return Reply(b"[" + b",".join(await call.service.ranker.answers(entries)) + b"]")


@ENDPOINTS.get(
    "/v1/users/{id}/recommendations", Answer, parameters=RecommendParameters, failures=(404,)
)
async def recommend_to_user(call: Call) -> Reply:
    """Recommend items to a user of the log or of the feedback."""
    asked: RecommendParameters = call.parameters
    query = Query(
        user=call.id, k=asked.k, explain=asked.explain, exclude_seen=asked.exclude_seen,
        fallback=asked.fallback,
    )  # fmt: skip
    check_query(query, "", call.service.settings.limits)
    return Reply((await call.service.ranker.answers([Entry.of(query)]))[0])


def _ids(query: Query) -> int:
    return len(query.history or ()) + len(query.items or ()) + len(query.exclude)


def check_query(query: Query, field: str, limits: Limits) -> None:
    """Raise unless a query names somebody and is within the limits."""
    if query.user is None and query.history is None:
        raise ApiError(
            400, "missing_field",
            'name whom to recommend to: {"user": id} or {"history": [id, ...]}', f"{field}user",
        )  # fmt: skip
    check_count(query.k, limits.k, "items", f"{field}k")
    check_count(len(query.history or ()), limits.history, "items", f"{field}history")
    check_count(_ids(query), limits.ids, "ids", None)


def check_count(count: int, most: int, what: str, field: str | None) -> None:
    """Raise if there is more of something than the limit."""
    if count > most:
        raise ApiError(
            400, "too_many", f"at most {most} {what} are allowed, got {count}; ask for fewer", field
        )
