"""`python -m maxsim.bench.traffic_probe CASE`: one call of ours, for Nsight Compute to look at."""

import sys

import torch

from maxsim.bench.cases import CASES


def main(name: str) -> None:
    """Score one case, after a warm-up, with the profiler on for that call alone."""
    case = next(case for case in CASES if case.name == name)
    generator = torch.Generator("cuda")
    generator.seed()
    work = case.make(generator)
    work.prepare()
    work.score()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    work.score()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


if __name__ == "__main__":
    main(sys.argv[1])
