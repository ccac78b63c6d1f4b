"""The command `maxsim`."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from . import __version__

__all__ = ["main"]

# A command's module is imported only when it runs or explains itself: `maxsim import` needs no torch.
_COMMANDS = {
    "serve": "serve",
    "demo": "demo",
    "import": "importer",
    "info": "info",
    "settings": "settings",
    "bench": "bench",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="maxsim", description="Late-interaction reranking and search.")
    parser.add_argument("--version", action="version", version=f"maxsim-serve {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    named = [word for word in words[:1] if word in _COMMANDS]
    modules = {name: import_module(f"maxsim_serve.cli.{_COMMANDS[name]}") for name in named or _COMMANDS}
    for module in modules.values():
        module.add_parser(commands)
    args = parser.parse_args(words)
    return int(modules[args.command].run(args))


if __name__ == "__main__":
    raise SystemExit(main())
