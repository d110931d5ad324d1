"""Print the effective configuration and where each value came from.

The output is YAML that can be saved and used; keys and other secrets are masked in it.
"""

from __future__ import annotations

import argparse
import json

from llm_inference.cli import options

HELP = "print the effective configuration, or the JSON schema for editors"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--schema", action="store_true", help="print the JSON schema of the config file instead")
    options.add_config_arguments(parser, api=True)


def run(args: argparse.Namespace) -> int:
    if args.schema:
        from llm_inference.config.json_schema import json_schema

        print(json.dumps(json_schema(), indent=2))
        return 0
    from llm_inference.config.render import render_yaml

    print(render_yaml(options.load(args)), end="")
    return 0
