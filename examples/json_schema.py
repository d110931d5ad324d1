"""Answers that are JSON of a given shape: the grammar allows no other token.

    python examples/json_schema.py [BASE_URL]

The shape is guaranteed, the content is the model's. Give every string and array a bound: a small model may otherwise
go on inside one until `max_tokens` cuts it, and a cut answer is not whole JSON (its finish_reason is "length").
"""

from __future__ import annotations

import json
import sys
from typing import Any

import openai

BASE_URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1"

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Paris", "Rome", "Berlin"]},
        "country": {"type": "string", "maxLength": 20},
        "is_capital": {"type": "boolean"},
    },
    "required": ["city", "country", "is_capital"],
    "additionalProperties": False,
}


def main() -> None:
    with openai.OpenAI(base_url=BASE_URL, api_key="none") as client:
        choice = client.chat.completions.create(
            model=client.models.list().data[0].id,
            messages=[{"role": "user", "content": "Tell me about the capital of France, as JSON."}],
            response_format={"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA}},
            max_tokens=128,
        ).choices[0]
        if choice.finish_reason != "stop":
            sys.exit(f"the answer was cut: {choice.finish_reason}")
        print(json.dumps(json.loads(choice.message.content or ""), indent=2))


if __name__ == "__main__":
    main()
