"""What traces and metrics over OTLP share: the packages, imported only when asked for, and who we are."""

from __future__ import annotations

import asyncio
import importlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

from llm_inference.errors import ConfigError
from llm_inference.version import __version__

#: What the last words of a process may take.
CLOSE_S: Final = 5.0


async def aside(work: Callable[[], Any]) -> Any:
    """In a thread that the end of the process does not wait for, unlike those of the event loop: a receiver that takes
    a connection and says nothing would hold it up for as long as its time limit."""
    done: Future[Any] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except Exception as exc:
            done.set_exception(exc)

    done.set_running_or_notify_cancel()
    threading.Thread(target=run, name="otlp", daemon=True).start()
    return await asyncio.wrap_future(done)


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
