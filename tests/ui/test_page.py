"""The page in a real browser, on fake engines and once on the default model."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

import pytest

from llm_inference.engine.fake import FakeEngine, FakeScript
from llm_inference.gateway.tenants.ledger import Entry
from llm_inference.gateway.tenants.ledger_store import LedgerStore
from llm_inference.gateway.tenants.tenants import Tenants
from tests.e2e.server import running_server
from tests.gateway.serving import serving
from tests.ui.browser import drive

pytestmark = pytest.mark.browser

MARKDOWN = """\
Some **bold**, *slanted*, `a < b` and ~~gone~~ words. <img src=x onerror="window.pwned=1">

<script>window.pwned = 1</script>

# A heading

[good](https://example.org/a?b=1) [bad](javascript:alert(1)) ![picture](https://example.org/p.png) https://example.org/bare.
[data](data:text/html,<script>window.pwned=1</script>) \\*not slanted\\* snake_case_name 2 * 3 * 4

1. one
2. two
   - nested
3. three

> quoted

```html
<b onclick="window.pwned=1">code & more</b>
```

| Name | Number |
| :--- | ---: |
| a\\|b | 1 |

***

```
unclosed"""
PHONE = {"width": 390, "height": 844}
DESK = {"width": 1280, "height": 800}


async def test_a_conversation() -> None:
    broken = FakeEngine("broken", script=FakeScript(fail_after=0))
    async with serving(FakeScript(delay_s=0.001), others={"broken": broken}) as service:
        await drive("playground", service.url)


async def test_stop_aborts_the_work() -> None:
    async with serving(FakeScript(answers=["word " * 800], delay_s=0.002)) as service:
        await drive("stop", service.url)
        await service.idle()
        assert len(service.engine.aborted) == 1


async def test_markdown_becomes_elements_and_html_stays_text() -> None:
    async with serving(FakeScript(answers=[MARKDOWN])) as service:
        found = await drive("markdown", service.url)
    assert set(found["tags"]) == {
        *("a", "blockquote", "button", "code", "del", "div", "em", "figcaption", "figure", "h3", "hr", "li", "ol", "p"),
        *("pre", "span", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul"),
    }
    assert '<img src=x onerror="window.pwned=1">' in found["text"]
    assert "<script>window.pwned = 1</script>" in found["text"]
    safe = "noopener noreferrer nofollow"
    assert found["links"] == [
        ["good", "https://example.org/a?b=1", safe],
        ["picture", "https://example.org/p.png", safe],
        ["https://example.org/bare", "https://example.org/bare", safe],
    ]
    assert "[bad](javascript:alert(1))" in found["text"]
    assert "*not slanted* snake_case_name 2 * 3 * 4" in found["text"]
    assert found["inline"] == [["STRONG", "bold"], ["EM", "slanted"], ["CODE", "a < b"], ["DEL", "gone"]]
    assert found["items"] == ["one", "two", "nested", "three"]
    assert found["cells"] == [["a|b", ""], ["1", "right"]]
    assert found["code"] == ['<b onclick="window.pwned=1">code & more</b>', "unclosed"]
    assert found["languages"] == ["html", "text"]
    assert found["copied"] == found["code"][0]


async def test_the_key_is_asked_for_and_forgotten() -> None:
    async with serving(api_keys=("sk-right",)) as service:
        await drive("key", service.url, key="sk-right")


async def test_the_code_does_what_the_page_did() -> None:
    question = 'What\'s "this"?\n$HOME `x` \\n é 🙂'
    async with serving() as service:
        found = await drive(
            "code", service.url, question=question, system="Say 'it'.", settings={"Top k": "5", "Seed": "7"}
        )
        asked = service.engine.requests[-1]
        for command in (("bash", "-euo", "pipefail", "-c", found["curl"]), (sys.executable, "-c", found["python"])):
            process = await asyncio.create_subprocess_exec(
                *command,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={**os.environ, "NO_PROXY": "*"},
            )
            out, problems = await process.communicate()
            assert process.returncode == 0, problems.decode()
            again = service.engine.requests[-1]
            assert again.request_id != asked.request_id
            assert (again.prompt, again.sampling) == (asked.prompt, asked.sampling)
            assert out
    assert found["answer"] == question.replace("`x`", "x")


async def test_status_and_usage(tmp_path: Path) -> None:
    store = LedgerStore(f"sqlite:///{tmp_path / 'ledger.db'}")
    store.write(
        [
            Entry(f"r{number}", time.time(), "r", "", model, "/x", "", "", 200, "stop", 1000, 200, 0, None, 0.5)
            for number, model in enumerate(("fake", "fake", "evil<b>"))
        ]
    )
    async with serving(tenants=Tenants(ledger_sums=store)) as service:
        await service.chat()
        await service.chat(model="nowhere")
        found = await drive("views", service.url)
    store.close()
    [model] = found["status"]["models"]
    assert model.split()[:3] == ["fake", "ready", "fake"]
    [error] = found["status"]["errors"]
    assert error.split("\t")[1:5] == ["404", "model_not_found", "–", "/v1/chat/completions"]
    assert [row.split("\t")[0] for row in found["status"]["times"]] == [
        *("First token", "Each further token", "Waiting in the queue", "Whole request")
    ]
    assert found["tiles"]["Requests"].startswith("2 in ")
    assert found["tiles"]["In flight"] == "0 of 512"
    assert found["meter"] == 0
    assert found["trend"].startswith("Tokens per second: now 0.0")
    today = time.strftime("%Y-%m-%d", time.gmtime())
    assert [row.split() for row in found["byDay"]] == [
        [today, "fake", "2", "2,000", "0", "400"],
        [today, "evil<b>", "1", "1,000", "0", "200"],
    ]
    assert [row.split()[0] for row in found["byModel"]] == ["evil<b>", "fake"]


@pytest.mark.parametrize(
    ("name", "viewport", "scheme"),
    [("desk", DESK, "light"), ("desk", DESK, "dark"), ("phone", PHONE, "light"), ("phone", PHONE, "dark")],
)
async def test_it_fits_the_window(name: str, viewport: dict[str, int], scheme: str, tmp_path: Path) -> None:
    """The pictures are for people: set UI_PICTURES=FOLDER to keep them."""
    folder = Path(os.environ.get("UI_PICTURES", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    long = "a-model-with-quite-a-long-name-8B-Instruct"
    others = {long: FakeEngine(long, script=FakeScript(answers=["Short."]))}
    async with serving(FakeScript(answers=[MARKDOWN]), others=others) as service:
        await service.chat(model="nowhere")
        await drive(
            "looks",
            service.url,
            folder=str(folder),
            name=f"{name}-{scheme}",
            viewport=viewport,
            scheme=scheme,
            mobile=name == "phone",
            questions=["What is the capital of France?", "And now?"],
            compare=scheme == "dark",
        )
    assert len(list(folder.glob(f"{name}-{scheme}-*.png"))) == 7


@pytest.mark.e2e
async def test_the_default_model() -> None:
    with running_server() as server:
        picture = os.environ.get("UI_PICTURE")
        found = await drive("model", server.url, question="What is the capital of France?", picture=picture)
    assert "Paris" in found["text"]
    assert "tokens/s" in found["figures"]
    assert found["tokens"] > 1
    assert "%" in found["note"]
