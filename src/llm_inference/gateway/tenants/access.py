"""What a valid key may do: which routes, and which models it may use and see."""

from __future__ import annotations

from llm_inference.errors import InvalidRequestError, ModelNotFoundError, PermissionDeniedError
from llm_inference.gateway.record import RequestRecord
from llm_inference.gateway.routing.router import Router
from llm_inference.gateway.routing.table import Target
from llm_inference.gateway.tenants.key import ApiKey, RouteGroup


def check_route(record: RequestRecord, group: RouteGroup) -> None:
    """Raise `PermissionDeniedError` unless the caller may use routes of `group`.

    Without keys everybody may, but nobody is an operator: the admin's routes need a key in any case.
    """
    key = record.key
    if key is None and group != "admin":
        return
    if key is None or group not in key.scope.routes:
        record.metrics.refused("permission_denied")
        whose = "This server has no keys, and its" if key is None else f"The key {key.id} may not use"
        what = "admin routes need one that names them" if key is None else f"routes of the group {group!r}"
        raise PermissionDeniedError(f"{whose} {what}; its operator can make one with `routes: [{group}]`.")


def find(router: Router, name: str | None, key: ApiKey | None) -> Target:
    """Like `Router.find`, as if only the models of `key` were served: others cannot be told from none at all."""
    if key is None or key.scope.all_models:
        return router.find(name)
    allowed = visible(router, key)
    listing = ", ".join(repr(one) for one in allowed) or "none"
    if name is None:
        if len(allowed) == 1:
            return router.find(allowed[0])
        raise InvalidRequestError(f"model is required: one of those that this key may use ({listing}).", param="model")
    try:
        target = router.find(name)
    except ModelNotFoundError:
        target = None
    if target is None or target.group.name not in allowed:
        raise ModelNotFoundError(
            f"The model {name[:200]!r} is not served here, or not for this key; it may use {listing}.", param="model"
        )
    return target


def visible(router: Router, key: ApiKey | None) -> list[str]:
    """The served names that the caller may use."""
    return [name for name in router.table.groups if key is None or key.scope.may_use_model(name)]
