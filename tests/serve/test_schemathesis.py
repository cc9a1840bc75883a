"""Requests that schemathesis derives from the description of the API, valid and invalid ones."""

import json
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import schemathesis
from schemathesis.specs.openapi.checks import positive_data_acceptance

from fewfold.serve.app import ENDPOINTS
from fewfold.serve.openapi import openapi
from fewfold.serve.settings import Limits, ServeSettings
from tests.serve.running import Running

# Tests are collected before there is a server; that it sends the same is tested.
LIMITS = Limits(body=10_000, k=20, history=50, ids=100, queries=40)
DESCRIPTION = json.loads(json.dumps(openapi(ENDPOINTS, ServeSettings(Path(), limits=LIMITS))))
API = schemathesis.openapi.from_dict(DESCRIPTION)
API.config.checks.negative_data_rejection.expected_statuses = ["400", "404", "405", "413", "415"]


def validate(case: Any, server: Running) -> None:
    """Send a request; status, headers and body of the answer must be as described."""
    # What a schema does not say of a body may be wrong with it, as a text that is no time.
    excluded = [positive_data_acceptance] if case.method == "POST" else []
    case.call_and_validate(base_url=server.url, timeout=60, excluded_checks=excluded)


@API.parametrize()
@hypothesis.settings(max_examples=8)
def test_requests(case: Any, server: Running) -> None:
    validate(case, server)


@pytest.mark.nightly
@API.parametrize()
@hypothesis.settings(max_examples=300)
def test_many_requests(case: Any, server: Running) -> None:
    validate(case, server)


def test_the_server_sends_the_same_description(server: Running) -> None:
    assert server.get("/openapi.json").json() == DESCRIPTION
    assert "Traceback" not in server.log()
