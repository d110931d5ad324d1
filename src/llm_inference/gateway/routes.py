"""All routes, as a table: where each is, who answers, what goes in and out. A new route is a new line here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from llm_inference.gateway import health, health_detail
from llm_inference.gateway.admin import actions, profile, replicas
from llm_inference.gateway.admin.fleet import ReloadReport
from llm_inference.gateway.openai import batch, chat, completions, embeddings, models, protocol, replies, tokenize
from llm_inference.gateway.tenants.key import RouteGroup
from llm_inference.gateway.ui import status, usage

Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Route:
    """`answer` is the msgspec type of the 200 body, None for text. `stream` is the type of an SSE event's data."""

    method: str
    path: str
    handler: Handler
    summary: str
    body: type[BaseModel] | None = None
    answer: Any = None
    stream: Any = None
    tag: str = "openai"

    @property
    def group(self) -> RouteGroup:
        """Which right a key needs for it."""
        if self.tag in _GROUPS:
            return _GROUPS[self.tag]
        return "models" if self.method == "GET" else "inference"


_GROUPS: dict[str, RouteGroup] = {"tokenizer": "tokenize", "operation": "metrics", "admin": "admin"}


#: Under the API prefix.
API_ROUTES: tuple[Route, ...] = (
    Route(
        "POST",
        "/chat/completions",
        chat.chat_completions,
        "Answer a conversation",
        protocol.ChatCompletionRequest,
        replies.ChatCompletion,
        replies.ChatCompletionChunk,
    ),
    Route(
        "POST",
        "/completions",
        completions.completions,
        "Continue a text",
        protocol.CompletionRequest,
        replies.Completion,
        replies.Completion,
    ),
    Route(
        "POST",
        "/batch_completions",
        batch.batch_completions,
        "Continue many texts as one batch",
        protocol.BatchCompletionRequest,
        list[replies.BatchCompletionItem],
    ),
    Route(
        "POST",
        "/embeddings",
        embeddings.embeddings,
        "Vectors of texts",
        protocol.EmbeddingsRequest,
        replies.EmbeddingList,
    ),
    Route("GET", "/models", models.list_models, "The models served here", answer=replies.ModelList),
    Route("GET", "/models/{model_id:path}", models.get_model, "One model", answer=replies.ModelCard),
)

#: Both under the API prefix and at the root, where peers have them.
TOKENIZER_ROUTES: tuple[Route, ...] = (
    Route(
        "POST",
        "/tokenize",
        tokenize.tokenize,
        "Text or chat to token ids",
        protocol.TokenizeRequest,
        replies.TokenizeReply,
        tag="tokenizer",
    ),
    Route(
        "POST",
        "/detokenize",
        tokenize.detokenize,
        "Token ids to text",
        protocol.DetokenizeRequest,
        replies.DetokenizeReply,
        tag="tokenizer",
    ),
)

#: Under the API prefix, for keys with the right `admin`.
ADMIN_ROUTES: tuple[Route, ...] = (
    Route("GET", "/admin/models", replicas.models, "Replicas and tiers", answer=replicas.ModelsReport, tag="admin"),
    Route("POST", "/admin/reload", actions.reload, "Read the configuration anew", answer=ReloadReport, tag="admin"),
    *(
        Route(
            "POST",
            f"/admin/models/{action}",
            actions.on_replicas(action),
            summary,
            actions.OnReplicas,
            actions.Acted,
            tag="admin",
        )
        for action, summary in actions.SUMMARIES.items()
    ),
    Route(
        "POST",
        "/admin/tiers/restore",
        actions.restore,
        "Let a demoted tier take requests again",
        actions.RestoreTier,
        actions.Restored,
        tag="admin",
    ),
    Route(
        "POST",
        "/admin/profile",
        profile.profile,
        "Where the time of an engine's next steps goes",
        profile.ProfileSteps,
        profile.ProfileReport,
        tag="admin",
    ),
)

#: At the root: what the page and `llm-inference top` show.
PAGE_ROUTES: tuple[Route, ...] = (
    Route("GET", "/status.json", status.status, "How the service is now", answer=status.StatusReport, tag="page"),
    Route("GET", "/usage.json", usage.usage, "Sums of the ledger", answer=usage.UsageReport, tag="page"),
)

#: At the root, without a key (auth.OPEN_PATHS).
PROBE_ROUTES: tuple[Route, ...] = (
    Route("GET", "/health", health.health, "Alive? 503: restart it", answer=health.HealthReport, tag="operation"),
    Route(
        "GET",
        "/health/detail",
        health_detail.detail,
        "How the service and its engines are, with reasons",
        answer=health_detail.DetailReport,
        tag="operation",
    ),
    Route("GET", "/ready", health.ready, "Would a request be answered?", answer=health.HealthReport, tag="operation"),
    Route("GET", "/version", health.version, "The version", answer=health.VersionReport, tag="operation"),
    Route("GET", "/metrics", health.metrics, "Prometheus metrics", tag="operation"),
)


def all_routes(prefix: str) -> list[Route]:
    """Every route with its full path. `prefix` is "" or begins with a slash and does not end with one."""
    prefixed = [*API_ROUTES, *ADMIN_ROUTES, *(TOKENIZER_ROUTES if prefix else ())]
    return [*(_under(prefix, route) for route in prefixed), *TOKENIZER_ROUTES, *PAGE_ROUTES, *PROBE_ROUTES]


def _under(prefix: str, route: Route) -> Route:
    return Route(
        route.method,
        prefix + route.path,
        route.handler,
        route.summary,
        route.body,
        route.answer,
        route.stream,
        route.tag,
    )
