from __future__ import annotations

import re

import pytest

from llm_inference.gateway.ui.page import Page
from tests.gateway.serving import serving

PATHS = sorted(Page("/v1").handlers)


async def test_every_file_is_public_exact_and_strict() -> None:
    async with serving(api_keys=("secret",)) as service:
        assert "/" in PATHS
        for path in PATHS:
            reply = await service.get(path)
            assert reply.status == 200, path
            policy = reply.headers["content-security-policy"]
            assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'")
            assert "unsafe" not in policy
            assert "*" not in policy
            assert reply.headers["x-content-type-options"] == "nosniff"
            assert "secret" not in reply.text
            assert (await service.request("POST", path)).status == 401
            if path != "/":
                assert (await service.get(path + "/")).status == 401
                assert (await service.get(path.upper())).status == 401
        assert (await service.get("/status.json")).status == 401
        assert (await service.get("/usage.json")).status == 401


async def test_a_known_file_is_not_sent_again() -> None:
    async with serving() as service:
        first = await service.get("/")
        again = await service.get("/", headers={"if-none-match": first.headers["etag"]})
        assert (again.status, again.text) == (304, "")
        other = await service.get("/", headers={"if-none-match": '"another"'})
        assert (other.status, other.text) == (200, first.text)
        assert (await service.request("HEAD", "/")).status == 200


async def test_it_can_be_switched_off() -> None:
    async with serving(page=False) as service:
        for path in PATHS:
            assert (await service.get(path)).status == 404
        assert (await service.get("/status.json")).status == 200


async def test_it_knows_where_the_api_is() -> None:
    async with serving(api_prefix="/llm/v1") as service:
        text = (await service.get("/")).text
        assert '<meta name="api-prefix" content="/llm/v1">' in text
        assert "[[" not in text


async def test_it_leaves_no_line_and_no_label_of_a_clients(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as service:
        with caplog.at_level("INFO", "llm_inference.gateway.request"):
            await service.get("/")
            await service.get("/status.json")
        assert [one for one in caplog.records if one.name.startswith("llm_inference")] == []
        assert 'route="/"' in await service.metrics()


def test_scripts_and_styles_are_files_and_text_is_never_parsed() -> None:
    """What the policy forbids is not in the files either; and what a model says never becomes HTML."""
    from importlib.resources import files

    folder = files("llm_inference.gateway.ui").joinpath("static")
    for entry in folder.iterdir():
        text = entry.read_text()
        forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser|setHTML"
        assert re.findall(forbidden, text) == [], entry.name
        assert re.findall(r"""(?:src|href|url|from|import)\W{1,3}(?:https?:)?//""", text) == [], entry.name
        if entry.name.endswith(".html"):
            assert re.findall(r"<style|style=|\son\w+=|<script(?![^>]*src=)", text) == []
        if entry.name.endswith((".js", ".css")):
            assert len(text.splitlines()) <= 400, f"{entry.name} is long"
        if entry.name.endswith(".js"):
            for name in re.findall(r'from "\./([\w.]+)"', text):
                assert folder.joinpath(name).is_file(), f"{entry.name} imports {name}"
