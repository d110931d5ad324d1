"""One suite, every engine: each field of its table is a 400 that names it, or works."""

from __future__ import annotations

import pytest

from tests.conformance.client import post
from tests.conformance.engines import Case
from tests.conformance.fields import PROBES, Seen

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="package")]


@pytest.mark.parametrize("field", PROBES)
async def test_field(case: Case, field: str) -> None:
    probe = PROBES[field]
    value = probe.for_bytes if case.echoes and probe.for_bytes is not None else probe.value
    request = {**probe.others, field: value}
    refused = [name for name in request if case.engine.capabilities.support(name) == "refused" and name in PROBES]
    if refused:
        reply = await post(case, probe.path, **request)
        assert reply.status == 400, reply.text
        assert reply.error["param"] in refused
        assert repr(case.engine.info.engine) in reply.error["message"]
        reasons = case.engine.capabilities.reasons
        assert case.echoes or reasons.get(reply.error["param"]), "a refusal has its reason in the table"
        return
    if field == "logits_processors":
        reply = await post(case, probe.path, **request)
        assert case.echoes or reply.status == 400, "there is no such plug-in"
        return
    for name, value in probe.where_taken.items():
        if case.engine.capabilities.support(name) != "refused":
            request[name] = value
    reply = await post(case, probe.path, **request)
    if "tools" in request and "tool_choice" not in request and not case.echoes:
        # The default model's template has no place for tools, and this engine cannot force a call.
        assert (reply.status, reply.error["param"]) == (400, "tools")
        assert "does not show tools" in reply.error["message"]
        return
    assert reply.status == 200, reply.text
    if case.echoes:
        return
    plain = again = None
    if probe.beside == "plain":
        plain = await post(case, probe.path, **probe.others)
    elif probe.beside == "again":
        again = await post(case, probe.path, **request)
    seen = Seen(reply, plain, again)
    assert probe.check(seen), f"{field} made of\n{plain and plain.text}\nthis:\n{reply.text}"
