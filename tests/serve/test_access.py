"""Keys, limits, headers, the log, metrics and the page: what is around every request."""

import socket
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serve.running import Running, lines, serving

KEY = "correct horse battery staple"


def error(response: httpx.Response) -> dict[str, Any]:
    found: dict[str, Any] = response.json()["error"]
    return found


def test_a_key_is_demanded_of_all_but_health_and_the_page(shop: Path, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(KEY + "\n")
    options = ("--no-feedback", "--api-key-file", file, "--cors", "https://shop.example")
    with serving(shop, *options, "--log-json", folder=tmp_path) as server:
        for path in ("/", "/docs", "/docs/docs.js", "/v1/health/live", "/v1/health/ready"):
            assert server.get(path).status_code == 200, path
        for path in ("/v1/model", "/metrics", "/openapi.json", "/v1/users/u1/recommendations"):
            refused = server.get(path)
            assert refused.status_code == 401
            assert refused.headers["www-authenticate"] == "Bearer"
            assert error(refused)["code"] == "wrong_key"
            for wrong in ("wrong", KEY[:-1], KEY + "x", "ü"):
                headers = {"authorization": f"Bearer {wrong}".encode()}
                assert server.get(path, headers=headers).status_code == 401
            assert server.get(path, headers={"authorization": f"Basic {KEY}"}).status_code == 401
            assert server.get(path, headers={"authorization": f"Bearer {KEY}"}).status_code == 200
            assert server.get(path, headers={"x-api-key": KEY}).status_code == 200
        allowed = server.client.options(
            "/v1/recommendations",
            headers={
                "origin": "https://shop.example",
                "access-control-request-method": "POST",
                "access-control-request-headers": "authorization,content-type",
            },
        )
        assert allowed.headers["access-control-allow-origin"] == "https://shop.example"
        other = server.get("/v1/health/live", headers={"origin": "https://evil.example"})
        assert "access-control-allow-origin" not in other.headers
        assert KEY not in server.log()


def test_the_key_may_be_in_the_environment(shop: Path, tmp_path: Path) -> None:
    with serving(
        shop, "--no-feedback", "--host", "0.0.0.0", folder=tmp_path,
        environment={"FEWFOLD_API_KEY": KEY},
    ) as server:  # fmt: skip
        assert server.get("/v1/model").status_code == 401
        assert server.get("/v1/model", headers={"x-api-key": KEY}).status_code == 200


def test_no_other_origin_is_allowed_unless_named(server: Running) -> None:
    response = server.get("/v1/health/live", headers={"origin": "https://shop.example"})
    assert "access-control-allow-origin" not in response.headers
    preflight = server.client.options(
        "/v1/recommendations",
        headers={"origin": "https://a.example", "access-control-request-method": "POST"},
    )
    assert preflight.status_code == 405
    # A form of another page cannot be sent as JSON without being asked first.
    plain = server.client.post("/v1/recommendations", content='{"history":[]}')
    assert plain.status_code == 415


@pytest.mark.parametrize(
    ("body", "field", "code"),
    [
        ({"history": ["a1"], "k": 21}, "k", "too_many"),
        ({"history": ["a1"] * 51}, "history", "too_many"),
        ({"history": ["a1"], "items": ["a1"] * 100}, None, "too_many"),
        ([{"history": ["a1"] * 50}] * 3, None, "too_many"),
        ([{"user": "u1"}] * 41, "queries", "too_many"),
        ({"history": ["a1"], "k": 0}, "k", "invalid_value"),
        ({"history": ["a1"], "k": 1.5}, "k", "invalid_value"),
        ({"history": ["a1"], "number": 3}, "number", "unknown_field"),
        ([{"user": "u1"}, {"user": "u1", "K": 3}], "1.K", "unknown_field"),
        ({"history": "a1"}, "history", "invalid_value"),
        ({"history": [None]}, "history.0", "invalid_value"),
        ({"k": 3}, "user", "missing_field"),
        ({}, "user", "missing_field"),
        ("a1", None, "invalid_value"),
    ],
)
def test_what_is_refused_is_named(server: Running, body: Any, field: str | None, code: str) -> None:
    response = server.post("/v1/recommendations", body)
    assert response.status_code == 400
    found = error(response)
    assert (found["field"], found["code"]) == (field, code)


def test_bodies_and_parameters(server: Running) -> None:
    post = server.client.post
    json = {"content-type": "application/json; charset=utf-8"}
    assert post("/v1/recommendations", content=b"{", headers=json).status_code == 400
    assert post("/v1/recommendations", content=b"\xff", headers=json).status_code == 400
    assert post("/v1/recommendations", content=b"", headers=json).status_code == 400
    deep = b"[" * 5000 + b"]" * 5000
    assert post("/v1/recommendations", content=deep, headers=json).status_code == 400
    large = post("/v1/recommendations", content=b" " * 10_001, headers=json)
    assert large.status_code == 413
    chunked = post("/v1/recommendations", content=iter([b" " * 6000] * 2), headers=json)
    assert chunked.status_code == 413
    assert error(chunked)["code"] == "body_too_large"
    for path, field in (
        ("/v1/users/u1/recommendations?k=x", "k"),
        ("/v1/users/u1/recommendations?kk=3", "kk"),
        ("/v1/users/u1/recommendations?k=3&k=4", "k"),
        ("/v1/users/u1/recommendations?k=21", "k"),
        ("/v1/users/u1/recommendations?fallback=all", "fallback"),
        ("/v1/items?limit=0", "limit"),
        ("/v1/model?x=1", "x"),
        ("/v1/items?search=%ff", None),
    ):
        response = server.get(path)
        assert response.status_code == 400, path
        assert error(response)["field"] == field
    wrong = server.client.delete("/v1/recommendations")
    assert wrong.status_code == 405
    assert wrong.headers["allow"] == "POST"
    for path in ("/v1/", "/v1", "/v2/x", "/page/none", "/page/%00", "/page/..%2fapp.py", "/v1//"):
        response = server.get(path)
        assert response.status_code == 404, path
        assert error(response)["code"] == "unknown_route"


def test_time_and_concurrency_are_limited(shop: Path, tmp_path: Path) -> None:
    options = ("--no-feedback", "--time-limit", "0.5", "--max-concurrent", 2)
    with serving(shop, *options, folder=tmp_path) as server:
        address = httpx.URL(server.url)
        head = (
            b"POST /v1/recommendations HTTP/1.1\r\nhost: localhost\r\n"
            b"content-type: application/json\r\n"
            b"content-length: 20\r\n\r\n{"
        )
        slow = [socket.create_connection((address.host, address.port or 80)) for _ in range(2)]
        for one in slow:
            one.sendall(head)
        time.sleep(0.1)
        # Two requests are in progress, so that a third is one too many.
        refused = [server.get("/v1/model") for _ in range(3)]
        assert {one.status_code for one in refused} == {429}
        assert refused[0].headers["retry-after"] == "1"
        assert server.get("/v1/health/live").status_code == 200
        for one in slow:
            assert b"HTTP/1.1 408" in one.recv(1000)
            one.close()
        assert server.get("/v1/model").status_code == 200


def test_requests_that_take_too_long(shop: Path, tmp_path: Path) -> None:
    with serving(shop, "--no-feedback", "--time-limit", "0.05", folder=tmp_path) as server:
        queries = [{"user": f"u{n % 120}", "explain": True, "k": 40} for n in range(256)]
        for _ in range(20):
            response = server.post("/v1/recommendations", queries)
            if response.status_code == 504:
                break
            assert response.status_code == 408  # on a busy machine even the body takes longer
        assert error(response)["code"] == "took_too_long"
        assert server.get("/v1/health/live").status_code == 200


def test_headers(server: Running) -> None:
    page = server.get("/")
    assert page.headers["content-type"].startswith("text/html")
    for response in (page, server.get("/page/index.html"), server.get("/docs")):
        policy = response.headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert response.headers["referrer-policy"] == "no-referrer"
        assert response.headers["x-content-type-options"] == "nosniff"
    answer = server.get("/v1/health/live")
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_the_log_has_no_ids_unless_asked(shop: Path, tmp_path: Path) -> None:
    for options, shown in (((), False), (("--log-ids",), True)):
        with serving(shop, "--no-feedback", "--log-json", *options, folder=tmp_path) as server:
            answer = server.get("/v1/users/u77/recommendations").json()
            server.get("/v1/users/mister%20x")
            server.get("/v1/nothing/u55")
            server.stop()
            log = server.log()
            requests = [line for line in lines(log) if line["event"] == "request"]
            assert [line["status"] for line in requests] == [200, 404, 404]
            assert requests[0]["route"] == "GET /v1/users/{id}/recommendations"
            assert requests[0]["ms"] > 0
            assert requests[1]["error"] == "unknown_user"
            assert ("u77" in log, "mister" in log, "u55" in log) == (shown, shown, shown)
            answers = [line for line in lines(log) if line["event"] == "answer"]
            assert [line["id"] for line in answers] == ([answer["id"]] if shown else [])
            for line in answers:
                assert line["model"] == answer["model"]
                assert line["items"] == [one["item"] for one in answer["items"]]


def test_metrics_of_all_workers(shop: Path, tmp_path: Path) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    with serving(shop, "--no-feedback", "--workers", 2, folder=tmp_path) as server:

        def ask() -> None:
            for _ in range(5):
                with httpx.Client(base_url=server.url, timeout=30) as client:
                    assert client.get("/v1/users/u1/recommendations").status_code == 200

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        server.get("/v1/users/nobody/recommendations")
        text = server.get("/metrics").text
        found = {
            (sample.name, *sorted(sample.labels.values())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        route = "GET /v1/users/{id}/recommendations"
        assert found["fewfold_requests_total", "200", route] == 40
        assert found["fewfold_requests_total", "404", route] == 1
        assert found["fewfold_request_seconds_count", route] == 41
        assert found["fewfold_request_seconds_bucket", "+Inf", route] == 41
        assert found["fewfold_batch_size_sum",] == 41
        assert found["fewfold_workers",] == 2
        assert found["fewfold_memory_bytes", "0"] > 2e7
        assert found["fewfold_model_age_seconds",] > 0
        stats = server.get("/v1/stats").json()
        assert stats["requests"] == 42
        assert stats["workers"] == 2
        assert 0 < stats["uptime_s"] < 100
