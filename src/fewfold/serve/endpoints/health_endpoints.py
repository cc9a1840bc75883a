"""Endpoints of health and of measurements."""

from datetime import UTC, datetime

from fewfold.serve.api_error import ApiError
from fewfold.serve.endpoint import Call, Endpoints, Reply
from fewfold.serve.measurements import exposition, memory
from fewfold.serve.schemas import HealthAnswer, StatsAnswer

__all__ = ["ENDPOINTS"]

ENDPOINTS = Endpoints()


@ENDPOINTS.get("/v1/health/live", HealthAnswer, public=True)
async def live(call: Call) -> HealthAnswer:
    """Answer as long as the process works."""
    return HealthAnswer("live")


@ENDPOINTS.get("/v1/health/ready", HealthAnswer, public=True, failures=(503,))
async def ready(call: Call) -> HealthAnswer:
    """Answer 200 if a model is loaded and the server is not about to end."""
    if call.service.ready:
        return HealthAnswer("ready")
    stopping = call.service.board.stopping
    raise ApiError(
        503, "stopping" if stopping else "not_ready",
        "the server is about to end" if stopping else "the model is being loaded",
        headers={"retry-after": "1"},
    )  # fmt: skip


@ENDPOINTS.get("/v1/stats", StatsAnswer)
async def stats(call: Call) -> StatsAnswer:
    """Return rates, latencies and batch sizes of the last minute, of all workers."""
    board, snapshot = call.service.board, call.service.live.current
    recent = board.last_minute()
    percentiles = {
        name: None if (found := recent.percentile(share)) is None else round(1e3 * found, 3)
        for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
    }
    mean = recent.entries / recent.batches if recent.batches else None
    totals = board.totals()
    return StatsAnswer(
        requests_per_second=recent.requests / recent.seconds,
        latency_ms=percentiles,
        batch_size={"mean": mean, "max": recent.most if recent.batches else None},
        requests=totals.requests,
        errors=totals.errors,
        model=snapshot.version,
        loaded=snapshot.loaded.isoformat(),
        reloads=totals.reloads,
        workers=len(board.pids()),
        uptime_s=(datetime.now(UTC).timestamp() - totals.started),
        memory_bytes=sum(map(memory, board.pids())),
    )


@ENDPOINTS.get("/metrics", bytes, media="text/plain; version=0.0.4; charset=utf-8")
async def metrics(call: Call) -> Reply:
    """Return the measurements of all workers in the format of Prometheus."""
    text = exposition(call.service.board, call.service.live.current)
    return Reply(text, media="text/plain; version=0.0.4; charset=utf-8")
