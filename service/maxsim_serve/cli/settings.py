"""`maxsim settings`: print every setting, as the default configuration file or as a table."""

import argparse

from ..settings import as_markdown, as_yaml

__all__ = ["add_parser", "run"]


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    parser = commands.add_parser("settings", help="print every setting with its default")
    parser.add_argument("form", nargs="?", choices=["yaml", "markdown"], default="yaml")
    return parser


def run(args: argparse.Namespace) -> int:
    print(as_markdown() if args.form == "markdown" else as_yaml(), end="")
    return 0
