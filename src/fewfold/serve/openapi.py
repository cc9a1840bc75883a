"""The OpenAPI description, generated from the endpoints and their schemas."""

from collections.abc import Sequence
from typing import Any

import msgspec

import fewfold
from fewfold.serve.endpoint import Endpoint
from fewfold.serve.schemas import ErrorAnswer, Query, RecommendParameters, SimilarParameters
from fewfold.serve.settings import Limits, ServeSettings

__all__ = ["openapi"]

_REASONS = {
    400: "malformed or invalid",
    401: "the API key is missing or wrong",
    403: "a page of another site may not ask",
    404: "unknown user, item or route",
    408: "the body did not arrive in time",
    409: "the new model cannot be loaded",
    413: "the body is too large",
    415: "the body is not declared as JSON",
    429: "too many requests at the same time",
    503: "no model yet, no journal, or about to end",
    504: "took too long",
}
_TEMPLATE = "#/components/schemas/{name}"


def openapi(endpoints: Sequence[Endpoint], settings: ServeSettings) -> dict[str, Any]:
    """Return the description of the API with these settings, as OpenAPI 3.1."""
    kinds: list[Any] = [ErrorAnswer]
    for one in endpoints:
        kinds += [
            kind for kind in (one.answer, one.body, one.parameters) if kind not in (None, bytes)
        ]
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_TEMPLATE)
    by_kind = {_key(kind): schema for kind, schema in zip(kinds, schemas, strict=True)}
    _limit(components, settings.limits)
    paths: dict[str, Any] = {}
    for one in endpoints:
        operation = _operation(one, by_kind, components, secured=settings.access.key is not None)
        paths.setdefault(one.path, {})[one.method.lower()] = operation
    for one in endpoints:
        if one.parameters is not None:  # written out at each path
            components.pop(one.parameters.__name__, None)
    description: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "fewfold serve",
            "version": fewfold.__version__,
            "description": "Recommendations from a fitted model. Ids in a path are "
            "percent-encoded.",
        },
        "paths": paths,
        "components": {"schemas": components},
    }
    if settings.access.key is not None:
        description["components"]["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer"},
            "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
        }
    return description


def _key(kind: Any) -> str:
    return str(kind)


def _limit(components: dict[str, Any], limits: Limits) -> None:
    """Add the limits of this server to the schemas."""
    query = components[Query.__name__]["properties"]
    query["k"]["maximum"] = limits.k
    for one in (RecommendParameters, SimilarParameters):
        components[one.__name__]["properties"]["k"]["maximum"] = limits.k
    for name, most in (("history", limits.history), ("items", limits.ids)):
        _array(query[name])["maxItems"] = most
    _array(query["exclude"])["maxItems"] = limits.ids


def _array(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the array of a schema that may also be null."""
    if schema.get("type") == "array":
        return schema
    found: dict[str, Any] = next(one for one in schema["anyOf"] if one.get("type") == "array")
    return found


def _operation(
    one: Endpoint, schemas: dict[str, Any], components: dict[str, Any], *, secured: bool
) -> dict[str, Any]:
    answer = {"type": "string"} if one.answer is bytes else schemas[_key(one.answer)]
    media = one.media.partition(";")[0]
    responses: dict[str, Any] = {
        str(one.status): {"description": "the answer", "content": {media: {"schema": answer}}}
    }
    for status in _failures(one, secured):
        responses[str(status)] = {
            "description": _REASONS[status],
            "content": {"application/json": {"schema": schemas[_key(ErrorAnswer)]}},
        }
    words = [part.strip("{}") for part in one.segments if part != "v1"]
    found: dict[str, Any] = {
        "summary": one.summary,
        "operationId": "_".join([one.method.lower(), *words]).replace(".", "_"),
        "tags": [words[0]],
        "responses": responses,
    }
    parameters = _path_parameters(one) + _query_parameters(one, components)
    if parameters:
        found["parameters"] = parameters
    if one.body is not None:
        schema = schemas[_key(one.body)]
        found["requestBody"] = {
            "required": True, "content": {"application/json": {"schema": schema}},
        }  # fmt: skip
    if secured and not one.public:
        found["security"] = [{"bearer": []}, {"key": []}]
    return found


def _failures(one: Endpoint, secured: bool) -> list[int]:
    found = {400, 503, 504, *one.failures}
    if one.body is not None:
        found |= {408, 413, 415}
    if not one.public:
        found.add(429)
        if secured:
            found.add(401)
        else:
            found.add(403)
    return sorted(found)


def _path_parameters(one: Endpoint) -> list[dict[str, Any]]:
    if "{id}" not in one.segments:
        return []
    schema = {"type": "string", "minLength": 1}
    return [{"name": "id", "in": "path", "required": True, "schema": schema}]


def _query_parameters(one: Endpoint, components: dict[str, Any]) -> list[dict[str, Any]]:
    if one.parameters is None:
        return []
    properties = components[one.parameters.__name__]["properties"]
    found = []
    for name, schema in properties.items():
        about = {key: value for key, value in schema.items() if key != "description"}
        found.append({"name": name, "in": "query", "required": False, "schema": about})
        if "description" in schema:
            found[-1]["description"] = schema["description"]
    return found
