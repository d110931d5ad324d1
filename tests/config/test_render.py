from __future__ import annotations

from pathlib import Path

import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from llm_inference.config.document import parse_document
from llm_inference.config.load import LoadedConfig, load_config
from llm_inference.config.render import MASK, render_yaml
from llm_inference.config.schema import ServerConfig


def test_each_line_says_where_it_came_from(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("model: m\nkv_cache_memory: 2GiB\n")
    text = render_yaml(load_config(file))
    lines = {line.split(":")[0].strip(" -"): line for line in text.splitlines()}
    assert lines["kv_cache_memory"].endswith(f"# file {file}:2")
    assert " 2147483648 " in lines["kv_cache_memory"]
    assert lines["port"].split() == ["port:", "8000", "#", "default"]
    assert lines["name"].endswith("# default (from model)")


def test_what_it_prints_loads_to_the_same(repository: Path, tmp_path: Path) -> None:
    for source in [None, *sorted((repository / "configs").glob("*.yaml"))]:
        loaded = load_config(source, environ={})
        copy = tmp_path / "copy.yaml"
        copy.write_text(render_yaml(loaded))
        assert load_config(copy, environ={}).config == loaded.config
        assert yaml.safe_load(render_yaml(loaded))["models"][0]["name"] == loaded.config.models[0].name


#: No path, header or program's argument takes a NUL, and so no config.
TEXT = st.characters(exclude_characters="\0", exclude_categories=("Cs",))


@settings(max_examples=50, deadline=None)
@given(text=st.text(TEXT, min_size=1), items=st.dictionaries(st.text(TEXT, max_size=20), st.text(TEXT) | st.integers()))
@example(text="a", items={"${": "${"})
def test_any_text_comes_back(text: str, items: dict[str, str | int]) -> None:
    config = ServerConfig.model_validate({"models": [{"model": text, "engine_args": items, "warmup": [text]}]})
    rendered = render_yaml(LoadedConfig(config))
    again = ServerConfig.model_validate(parse_document(rendered, "f", {}).data)
    assert again == config


def test_secrets_are_masked() -> None:
    config = ServerConfig.model_validate(
        {"api": {"api_keys": ["hush"]}, "models": [{"url": "http://x", "name": "n", "api_key": "hush"}]}
    )
    text = render_yaml(LoadedConfig(config))
    assert "hush" not in text
    assert text.count(MASK) == 2
