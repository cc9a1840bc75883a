"""Checks an answer against the description of the API."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import httpx
from jsonschema_rs import Draft202012Validator

from fewfold.serve.app import ENDPOINTS
from fewfold.serve.openapi import openapi
from fewfold.serve.settings import Access, ServeSettings

DESCRIPTION = openapi(ENDPOINTS, ServeSettings(Path(), access=Access("key")))
_PATHS = sorted(DESCRIPTION["paths"], key=len, reverse=True)


@cache
def _validator(path: str, method: str, status: int) -> Any:
    answers = DESCRIPTION["paths"][path][method]["responses"]
    assert str(status) in answers, f"{method} {path} answers {status}, which is not described"
    schema = answers[str(status)]["content"].get("application/json", {}).get("schema", True)
    components = DESCRIPTION["components"]
    return Draft202012Validator({"components": components, "allOf": [schema]})


def check(response: httpx.Response) -> None:
    """Raise unless the answer of an endpoint is as described."""
    raw = response.request.url.raw_path.decode().partition("?")[0]
    for path in _PATHS:
        if re.fullmatch(path.replace(".", r"\.").replace("{id}", ".+"), raw):
            break
    else:
        return
    method = response.request.method.lower()
    if method not in DESCRIPTION["paths"][path]:
        assert response.status_code == 405 or method == "options"
        return
    validator = _validator(path, method, response.status_code)
    if response.headers.get("content-type", "").startswith("application/json"):
        response.read()
        validator.validate(response.json())
