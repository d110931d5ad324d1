"""What traces and metrics over OTLP share: the packages, imported only when asked for, and who we are."""

from __future__ import annotations

import importlib
from typing import Any

from llm_inference.errors import ConfigError
from llm_inference.version import __version__


def require(key: str, *modules: str) -> None:
    """Raises `ConfigError`, naming the configuration's `key`, where one of `modules` is missing."""
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ConfigError(
                f"{key}: needs the packages of OpenTelemetry ({error.name} is missing); "
                "install llm-inference[otel], or set it to false"
            ) from error


def make_resource() -> Any:
    """The SDK's `Resource`: what OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say, else our name; and our version."""
    from opentelemetry.sdk.resources import Resource

    resource = Resource.create()
    if str(resource.attributes.get("service.name", "")).startswith("unknown_service"):
        resource = resource.merge(Resource({"service.name": "llm-inference"}))
    return resource.merge(Resource({"service.version": __version__}))
