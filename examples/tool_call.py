"""Let the model call a function, run it, and give the result back.

    python examples/tool_call.py [BASE_URL]

`tool_choice="required"` forces a call whose arguments fit the schema, also on a model whose chat template knows no
tools (the default model is one). On a model that was trained with tools leave it at "auto".
"""

from __future__ import annotations

import json
import sys
from typing import Any

import openai

BASE_URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1"

TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "get_temperature",
            "description": "The temperature in a city, in degrees Celsius.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "maxLength": 20}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
]


def get_temperature(city: str) -> str:
    """A stand-in for a real service."""
    return json.dumps({"city": city, "celsius": 18})


def main() -> None:
    with openai.OpenAI(base_url=BASE_URL, api_key="none") as client:
        model = client.models.list().data[0].id
        messages: list[Any] = [{"role": "user", "content": "How warm is it in Paris?"}]
        choice = client.chat.completions.create(
            model=model,
            messages=messages,
            tools=TOOLS,
            tool_choice="required",
            parallel_tool_calls=False,
            max_tokens=100,
        ).choices[0]
        call: Any = (choice.message.tool_calls or [])[0]
        print(f"{choice.finish_reason}: {call.function.name}({call.function.arguments})")

        messages.append(choice.message.model_dump(exclude_none=True))
        result = get_temperature(**json.loads(call.function.arguments))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        answer = client.chat.completions.create(model=model, messages=messages, max_tokens=48)
        print(answer.choices[0].message.content)


if __name__ == "__main__":
    main()
