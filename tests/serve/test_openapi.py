"""The description of the API: complete, valid, and what the server has."""

from pathlib import Path

import msgspec
import pytest
import schemathesis
from schemathesis.core.result import Ok

from fewfold.serve.app import ENDPOINTS, ROUTES
from fewfold.serve.openapi import openapi
from fewfold.serve.schemas import Query
from fewfold.serve.settings import Limits, ServeSettings
from tests.serve.contract import DESCRIPTION
from tests.serve.running import Running


def test_it_is_valid_openapi() -> None:
    found = schemathesis.openapi.from_dict(DESCRIPTION)
    operations = list(found.get_all_operations())
    assert all(isinstance(one, Ok) for one in operations)
    assert len(operations) == len(ENDPOINTS)


def test_every_endpoint_is_described(server: Running) -> None:
    served = server.get("/openapi.json").json()
    described = {
        f"{method.upper()} {path}" for path, found in served["paths"].items() for method in found
    }
    assert described == set(ROUTES) - {"other"}
    for endpoint in ENDPOINTS:
        found = served["paths"][endpoint.path][endpoint.method.lower()]
        assert found["summary"] == endpoint.summary
        assert ("requestBody" in found) == (endpoint.body is not None)
        assert str(endpoint.status) in found["responses"]
        given = [one["name"] for one in found.get("parameters", []) if one["in"] == "query"]
        fields = endpoint.parameters.__struct_fields__ if endpoint.parameters else ()
        assert given == list(fields)
    names = [one["operationId"] for methods in served["paths"].values() for one in methods.values()]
    assert len(set(names)) == len(names)


def test_limits_are_described() -> None:
    limits = Limits(k=7, history=8, ids=9)
    found = openapi(ENDPOINTS, ServeSettings(Path(), limits=limits))
    query = found["components"]["schemas"]["Query"]["properties"]
    assert query["k"]["maximum"] == 7
    assert query["history"]["anyOf"][0]["maxItems"] == 8
    assert query["exclude"]["maxItems"] == 9
    (k,) = (
        one
        for one in found["paths"]["/v1/items/{id}/similar"]["get"]["parameters"]
        if one["name"] == "k"
    )
    assert k["schema"]["maximum"] == 7
    assert "securitySchemes" not in found["components"]
    assert "securitySchemes" in DESCRIPTION["components"]
    assert "security" not in DESCRIPTION["paths"]["/v1/health/live"]["get"]


def test_unknown_fields_are_refused_by_the_description_too() -> None:
    assert DESCRIPTION["components"]["schemas"]["Query"]["additionalProperties"] is False
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        msgspec.json.decode(b'{"kk": 1}', type=Query)
