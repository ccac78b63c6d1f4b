"""The benches: ours beside the naive form and the peers, each checked before it is timed."""

import argparse

from maxsim.bench import cpu, forward, stream

__all__ = ["main"]


def main(argv: list[str]) -> int:
    """`maxsim bench <subcommand> …` → exit status."""
    parser = argparse.ArgumentParser(prog="maxsim bench", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    cpu.configure(commands.add_parser("cpu", help="32 × 128 against stored passages on this machine's CPU"))
    forward.configure(commands.add_parser("forward", help="the forward kernels on this machine's GPU"))
    stream.configure(commands.add_parser("stream", help="the scan of host memory through this machine's GPU"))
    arguments = parser.parse_args(argv)
    status: int = arguments.run(arguments)
    return status
