"""The OpenAPI document, made from the same types that parse requests (pydantic) and write answers (msgspec)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from pydantic.json_schema import models_json_schema

from llm_inference.gateway.failure import ErrorResponse
from llm_inference.gateway.routes import Route
from llm_inference.version import __version__

_REF = "#/components/schemas/{name}"


def openapi(routes: Sequence[Route], *, with_keys: bool) -> dict[str, Any]:
    """The whole document for `routes`. With keys, every route but the probes names the security scheme."""
    bodies = list(dict.fromkeys(route.body for route in routes if route.body is not None))
    _, defined = models_json_schema(
        [(body, "validation") for body in bodies], ref_template=_REF.replace("{name}", "{model}")
    )
    answers = [kind for route in routes for kind in (route.answer, route.stream) if kind is not None]
    unique = list({str(kind): kind for kind in [*answers, ErrorResponse]}.values())
    schemas, components = msgspec.json.schema_components(unique, ref_template=_REF)
    written = dict(zip(map(str, unique), schemas, strict=True))
    paths: dict[str, Any] = {}
    for route in routes:
        path = route.path.replace(":path}", "}")
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, path, written, with_keys)
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "llm-inference", "version": __version__},
        "paths": paths,
        "components": {"schemas": {**defined.get("$defs", {}), **components}},
    }
    if with_keys:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return document


def _operation(route: Route, path: str, written: dict[str, Any], with_keys: bool) -> dict[str, Any]:
    content: dict[str, Any] = {"text/plain": {"schema": {"type": "string"}}}
    if route.answer is not None:
        content = {"application/json": {"schema": written[str(route.answer)]}}
    if route.stream is not None:
        content["text/event-stream"] = {"schema": written[str(route.stream)]}
    error = {"application/json": {"schema": written[str(ErrorResponse)]}}
    operation: dict[str, Any] = {
        "operationId": f"{route.method.lower()}{path.replace('/', '_').replace('{', '').replace('}', '')}",
        "summary": route.summary,
        "tags": [route.tag],
        "responses": {
            "200": {"description": "The answer", "content": content},
            "4XX": {"description": "The caller's fault", "content": error},
            "5XX": {"description": "Our fault, or our state", "content": error},
        },
    }
    if route.tag == "operation":
        # Probes answer in one shape whatever their status.
        operation["responses"] = {"200": operation["responses"]["200"]}
        if route.path in ("/health", "/ready"):
            operation["responses"]["503"] = {"description": "No; the body says why", "content": content}
    if route.body is not None:
        reference = {"$ref": _REF.format(name=route.body.__name__)}
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": reference}}}
    if "{" in path:
        name = path[path.index("{") + 1 : path.index("}")]
        operation["parameters"] = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}}]
    if with_keys and route.tag != "operation":
        operation["security"] = [{"key": []}]
    return operation
