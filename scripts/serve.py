"""A thin door: `python scripts/serve.py …` is `llm-inference serve …`."""

import sys

from llm_inference.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["serve", *sys.argv[1:]]))
