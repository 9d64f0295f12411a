"""The API in OpenAPI 3.1 (https://spec.openapis.org/oas/v3.1.1), made of the table. Pure."""

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from gateway.ops.api import asks
from gateway.ops.api.table import EVENT_MODELS, EVENTS_PATH, ROUTES, SPEC_PATH, ApiRoute

_REF = "#/components/schemas/{model}"
_PROBLEM: dict[str, Any] = {
    "type": "object",
    "required": ["title", "status", "detail"],
    "properties": {"title": {"type": "string"}, "status": {"type": "integer"}, "detail": {"type": "string"}},
}
_REFUSALS = {
    "400": "It cannot be understood.",
    "401": "The token is missing or wrong.",
    "403": "No token is configured, or the host name is not known.",
}


def build_openapi(version: str) -> dict[str, Any]:
    """The document, ready to be written as JSON."""
    gives = [(row.response_model, "serialization") for row in ROUTES]
    told: list[tuple[type[BaseModel], JsonSchemaMode]] = [(kind, "serialization") for kind in EVENT_MODELS.values()]
    refs, definitions = models_json_schema([*_unique_models(gives), *told], ref_template=_REF)
    schemas: dict[str, Any] = dict(definitions.get("$defs", {}))
    paths: dict[str, Any] = {}
    for row in ROUTES:
        paths.setdefault(row.path, {})[row.method.lower()] = _build_operation(
            row, refs[row.response_model, "serialization"], schemas
        )
    paths[EVENTS_PATH] = {
        "get": _build_events_operation(schemas, [refs[kind, "serialization"] for kind in EVENT_MODELS.values()])
    }
    paths[SPEC_PATH] = {
        "get": {
            "summary": "This document.",
            "responses": {"200": {"description": "OpenAPI 3.1", "content": {"application/json": {"schema": {}}}}},
        }
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Reverie",
            "version": version,
            "description": "What a running gateway does, and what can be asked of it. Times are ISO 8601, UTC.",
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": "`ops.token`"}},
            "schemas": {**schemas, "Problem": _PROBLEM},
        },
    }


def _unique_models(
    kinds: Iterable[tuple[type[BaseModel], str]],
) -> list[tuple[type[BaseModel], JsonSchemaMode]]:
    return [(kind, "serialization") for kind in dict.fromkeys(kind for kind, _ in kinds)]


def _build_operation(row: ApiRoute, gives: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {"summary": row.summary}
    if row.method == "GET":
        operation["parameters"] = _build_parameters(row.input_type)
    else:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": _build_body_schema(row.input_type, schemas)}},
        }
    operation["responses"] = {
        "200": {"description": row.summary, "content": {"application/json": {"schema": gives}}},
        **_build_refusals(),
    }
    return operation


def _build_events_operation(schemas: dict[str, Any], kinds: list[dict[str, Any]]) -> dict[str, Any]:
    schemas["AnyEvent"] = {"oneOf": kinds, "description": f"By the name of the event: {', '.join(EVENT_MODELS)}."}
    return {
        "summary": "What happens, as it happens: server-sent events.",
        "parameters": [
            *_build_parameters(TypeAdapter(asks.EventsQuery)),
            {
                "name": "Last-Event-ID",
                "in": "header",
                "schema": {"type": "string"},
                "description": "As `after`, for clients that connect again by themselves.",
            },
        ],
        "responses": {
            "200": {
                "description": "Each `data` is one of these. `id` is a position of the log.",
                "content": {"text/event-stream": {"schema": {"$ref": _REF.format(model="AnyEvent")}}},
            },
            **_build_refusals(),
        },
    }


def _build_refusals() -> dict[str, Any]:
    problem = {"application/problem+json": {"schema": {"$ref": _REF.format(model="Problem")}}}
    return {status: {"description": told, "content": problem} for status, told in _REFUSALS.items()}


def _build_parameters(takes: TypeAdapter[Any]) -> list[dict[str, Any]]:
    schema = takes.json_schema(mode="validation")
    required = schema.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": said}
        for name, said in schema.get("properties", {}).items()
    ]


def _build_body_schema(takes: TypeAdapter[Any], schemas: dict[str, Any]) -> dict[str, Any]:
    """The body's, with what it refers to among the others."""
    schema = takes.json_schema(mode="validation", ref_template=_REF)
    schemas.update(schema.pop("$defs", {}))
    return schema
