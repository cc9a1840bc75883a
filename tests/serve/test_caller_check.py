"""Pages of other sites cannot use a server without a key through a browser."""

from pathlib import Path

import pytest

from fewfold.serve.api_error import ApiError
from fewfold.serve.caller_check import CallerCheck
from fewfold.serve.settings import Access, Network, ServeSettings


def refusal(host: str, origin: str | None = None, **settings: object) -> str:
    """Return the code with which a request is refused, or "" for one that is not."""
    check = CallerCheck(ServeSettings(Path("model"), **settings))  # type: ignore[arg-type]
    headers = {b"host": host.encode()}
    if origin is not None:
        headers[b"origin"] = origin.encode()
    for _ in range(2):  # the second time from memory
        try:
            check(headers)
            code = ""
        except ApiError as error:
            code = error.code if error.status == 403 else "not a 403"
    return code


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8000", "localhost:8000", "[::1]:8000", "a.localhost", ""]
)
def test_names_of_this_machine_are_answered(host: str) -> None:
    assert refusal(host) == ""


@pytest.mark.parametrize(
    "host", ["evil.example:8000", "127.0.0.1.evil.example", "10.0.0.1", "[bad"]
)
def test_other_names_are_refused_on_loopback(host: str) -> None:
    assert refusal(host) == "foreign_host"
    assert refusal(host, access=Access(key="k")) == ""
    assert refusal(host, network=Network(host="0.0.0.0")) == ""


def test_pages_of_other_sites_are_refused_unless_named() -> None:
    host, other = "127.0.0.1:8000", "https://shop.example"
    assert refusal(host, "http://127.0.0.1:8000") == ""
    assert refusal(host, "http://127.0.0.1:9000") == "foreign_origin"
    assert refusal(host, "null") == "foreign_origin"
    assert refusal(host, other) == "foreign_origin"
    assert refusal(host, other, access=Access(cors=(other,))) == ""
    assert refusal(host, other, access=Access(key="k")) == ""
    assert refusal("10.0.0.1:80", other, network=Network(host="0.0.0.0")) == "foreign_origin"
