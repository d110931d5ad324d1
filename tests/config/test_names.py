from __future__ import annotations

import re

import pytest

from llm_inference.config import names
from llm_inference.config.messages import known_fields


def test_every_renamed_key_leads_to_a_known_one() -> None:
    known = {field for section in known_fields().values() for field in section}
    for section, table in names._RENAMED.items():
        for old, new in table.items():
            assert old not in known_fields()[section], old
            assert set(re.findall(r"[a-z_]+", new)) & known, f"{old} → {new}"


@pytest.mark.parametrize(("name", "close"), [("max-model-len", "max_model_len"), ("Model", "model"), ("zzz", None)])
def test_nearest(name: str, close: str | None) -> None:
    assert names.nearest(name, ["max_model_len", "model"]) == close
