"""`maxsim bench`: the library's benches of the kernels, and the service's of its engine."""

import argparse

from maxsim.bench import main

__all__ = ["add_parser", "run"]


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    parser = commands.add_parser("bench", help="measure the kernels on this machine, beside other libraries")
    parser.add_argument("rest", nargs=argparse.REMAINDER, help="bench and its options; `maxsim bench -h`")
    return parser


def run(args: argparse.Namespace) -> int:
    if args.rest[:1] == ["engine"]:
        from . import engine_bench  # it needs what only a GPU's machine has a use for

        parser = argparse.ArgumentParser(prog="maxsim bench engine", description=engine_bench.__doc__)
        engine_bench.configure(parser)
        arguments = parser.parse_args(args.rest[1:])
        status: int = arguments.run(arguments)
        return status
    return main(args.rest)
