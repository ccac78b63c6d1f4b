"""`maxsim bench`: the kernels' own benches, from the library."""

import argparse

from maxsim.bench import main

__all__ = ["add_parser", "run"]


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    parser = commands.add_parser("bench", help="measure the kernels on this machine, beside other libraries")
    parser.add_argument("rest", nargs=argparse.REMAINDER, help="bench and its options; `maxsim bench -h`")
    return parser


def run(args: argparse.Namespace) -> int:
    return main(args.rest)
