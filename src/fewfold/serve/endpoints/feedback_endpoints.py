"""Endpoint of feedback."""

from fewfold.recommender.journal import Event as JournalEvent
from fewfold.serve.api_error import ApiError
from fewfold.serve.endpoint import Call, Endpoints, Reply
from fewfold.serve.endpoints.recommend_endpoints import check_count
from fewfold.serve.schemas import Event, FeedbackAnswer

__all__ = ["ENDPOINTS"]

ENDPOINTS = Endpoints()


@ENDPOINTS.post(
    "/v1/feedback", FeedbackAnswer, body=Event | list[Event], status=201, failures=(503,)
)
async def append(call: Call) -> Reply:
    """Store interactions; they are on disk, and count, when this answers."""
    live, snapshot = call.service.live, call.service.live.current
    if live.journal is None:
        raise ApiError(
            503, "no_journal", "feedback is not stored; start the server with --journal FILE"
        )
    events: list[Event] = [call.body] if isinstance(call.body, Event) else call.body
    check_count(len(events), call.service.settings.limits.ids, "events", None)
    single = isinstance(call.body, Event)
    stored = [_checked(event, "" if single else f"{n}.") for n, event in enumerate(events)]
    try:
        await call.service.in_thread(live.append, stored)
    except OSError as error:
        call.service.log.event("feedback not stored", reason=str(error))
        raise ApiError(
            503, "journal_failed", "the feedback could not be stored; send it again later",
            headers={"retry-after": "5"},
        ) from error  # fmt: skip
    unknown = live.unknown_items(snapshot, [event.item for event in stored])
    return Reply(FeedbackAnswer(len(stored), snapshot.version, unknown), 201)


def _checked(event: Event, field: str) -> JournalEvent:
    """Return an event as the journal stores it; 400 if it cannot."""
    try:
        return JournalEvent(event.user, event.item, event.time, event.recommendation)
    except (ValueError, TypeError, OverflowError) as error:
        name = str(error).split(" ", 1)[0]
        about = f"{field}{name}" if name in Event.__struct_fields__ else field.rstrip(".") or None
        raise ApiError(400, "invalid_value", str(error), about) from None
