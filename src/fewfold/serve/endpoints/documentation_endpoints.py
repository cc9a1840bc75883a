"""Endpoint of the description of the API."""

from typing import Any

from fewfold.serve.endpoint import Call, Endpoints

__all__ = ["ENDPOINTS"]

ENDPOINTS = Endpoints()


@ENDPOINTS.get("/openapi.json", dict[str, Any])
async def description(call: Call) -> dict[str, Any]:
    """Describe the API as OpenAPI 3.1."""
    return call.service.description
