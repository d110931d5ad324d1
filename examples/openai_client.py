"""Ask a running server with OpenAI's own Python client.

    python examples/openai_client.py [BASE_URL]

Start the server first, for example with `llm-inference serve`.
"""

from __future__ import annotations

import sys

import openai

BASE_URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1"


def main() -> None:
    # The client insists on a key; a server without keys ignores it.
    with openai.OpenAI(base_url=BASE_URL, api_key="none") as client:
        model = client.models.list().data[0].id
        answer = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            max_tokens=32,
        )
        print(answer.choices[0].message.content)
        if answer.usage is not None:
            print(f"{answer.usage.prompt_tokens} tokens in, {answer.usage.completion_tokens} out", file=sys.stderr)


if __name__ == "__main__":
    main()
