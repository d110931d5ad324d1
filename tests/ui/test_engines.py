"""The operator's buttons in a real browser, over a real keeper of fake engines."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from llm_inference.errors import SourceError
from llm_inference.gateway.auth import KeyRing
from llm_inference.gateway.tenants.key import ApiKey, Scope, digest_of
from llm_inference.gateway.tenants.tenants import Tenants
from llm_inference.serve.fleet import OwnFleet
from tests.gateway.serving import serving
from tests.serve.works import Works, kept_by, lazy, works  # noqa: F401 - a fixture
from tests.ui.browser import drive
from tests.ui.test_page import DESK, PHONE

pytestmark = pytest.mark.browser


@pytest.mark.parametrize(("name", "viewport", "scheme"), [("desk", DESK, "light"), ("phone", PHONE, "dark")])
async def test_buttons_ask_first_and_then_act(
    name: str,
    viewport: dict[str, int],
    scheme: str,
    tmp_path: Path,
    works: Works,  # noqa: F811
) -> None:
    """The pictures are for people: set UI_PICTURES=FOLDER to keep them."""
    folder = os.environ.get("UI_PICTURES")
    keys = [
        ApiKey(id="op", name="op", digest=digest_of("operator"), scope=Scope(routes=("inference", "models", "admin"))),
        ApiKey(id="user", name="user", digest=digest_of("user")),
        ApiKey(
            id="other", name="other", digest=digest_of("other"), scope=Scope(routes=("models", "admin"), models=("x*",))
        ),
    ]
    rooms = tmp_path / "rooms"
    rooms.mkdir()
    async with kept_by(rooms, lazy("chat", replicas=3)) as (keeper, [desk]):
        await keeper.act("load", ["chat#0", "chat#1"])
        works.failures, works.fail_in = [SourceError("weights.bin is damaged")], ("model-0-2",)
        async with serving(router=desk.router, tenants=Tenants(keys=KeyRing(keys))) as service:
            service.app.state.gateway.fleet = OwnFleet(keeper, None)
            options = {"folder": folder, "name": f"engines-{name}", "viewport": viewport, "scheme": scheme}
            found = await drive("engines", service.url, mobile=name == "phone", **options)
    assert [row.split()[:2] for row in found["before"]] == [
        ["chat#0", "loaded"],
        ["chat#1", "loaded"],
        ["chat#2", "unloaded"],
    ]
