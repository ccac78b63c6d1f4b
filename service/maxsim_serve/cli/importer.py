"""`maxsim import`: a file of texts or vectors into a collection of a running service."""

import argparse
import os
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tqdm import tqdm

from .client import Client, NotAnswering, RequestFailed, collection_path
from .journal import Journal, Progress
from .jsonl import JsonLines
from .records import Batch, Source, batches
from .tensors import open_npz, open_safetensors
from .upload import upload

__all__ = ["add_parser", "run"]

_SOME_REFUSED = 3
_MIB = 1 << 20
_EPILOG = """exit status: 0 all stored; 3 some documents refused, each listed on stderr; 1 the import failed;
130 interrupted. After 1 or 130, the same command goes on where it stopped."""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    parser = commands.add_parser(
        "import", help="put a file of texts or vectors into a collection", epilog=_EPILOG
    )
    parser.add_argument("file", type=Path, help="JSON lines, .safetensors or .npz")
    parser.add_argument("--collection", "-c", required=True, help="where the documents go")
    parser.add_argument("--url", default="http://127.0.0.1:8080", help="the service (default: %(default)s)")
    parser.add_argument("--api-key", default=os.environ.get("MAXSIM_API_KEY"), help="default: MAXSIM_API_KEY")
    parser.add_argument(
        "--batch-documents",
        type=_positive,
        help="most documents in a request (default: 64 texts, 1024 matrices)",
    )
    parser.add_argument(
        "--batch-bytes",
        type=_positive,
        default=16 * _MIB,
        help="most bytes in one, about (default: %(default)s)",
    )
    parser.add_argument(
        "--restart", action="store_true", help="from the beginning, even after an interruption"
    )
    parser.add_argument("--create", action="store_true", help="create the collection if it is not there")
    created = parser.add_argument_group("with --create")
    created.add_argument("--dim", type=_positive, help="default: the file's vectors', or the encoder's")
    created.add_argument("--dtype", choices=["float16", "bfloat16", "float32"], help="stored form")
    created.add_argument("--normalize", action=argparse.BooleanOptionalAction, help="each row to length 1")
    return parser


def run(args: argparse.Namespace) -> int:
    try:
        source = _open(args.file)
        journal = Journal(args.file, args.url, args.collection)
        with Client(args.url, api_key=args.api_key) as client:
            return _import(client, source, journal, args)
    except (OSError, ValueError, NotAnswering) as error:
        print(f"maxsim import: {error}", file=sys.stderr)
    except RequestFailed as error:
        hint = "; --create creates it" if error.status == 404 and not args.create else ""
        print(f"maxsim import: {error}{hint}", file=sys.stderr)
    except KeyboardInterrupt:
        print("maxsim import: interrupted; the same command goes on where this one stopped", file=sys.stderr)
        return 130
    return 1


def _import(client: Client, source: Source, journal: Journal, args: argparse.Namespace) -> int:
    client.request("GET", "/readyz", tries=3)
    begun = Progress() if args.restart else _resumable(client, journal, args.collection)
    if begun.number:
        print(
            f"going on after {begun.place.number} of {args.file.name}; --restart starts over", file=sys.stderr
        )
    pending = batches(
        source.read(begun.place), most_documents=args.batch_documents, most_bytes=args.batch_bytes
    )
    if args.create:
        pending = _create_for(pending, client, args)
    started = time.perf_counter()
    done = begun
    with tqdm(
        total=source.total_bytes,
        initial=begun.offset_bytes,
        unit="B",
        unit_scale=True,
        desc="import",
        disable=None,
    ) as bar:
        for progress, refused in upload(client, args.collection, pending, begun):
            for item in refused:
                tqdm.write(f"refused: {item}", file=sys.stderr)
            journal.write(progress)
            bar.update(progress.offset_bytes - done.offset_bytes)
            done = progress
            rate = (done.stored - begun.stored) / (time.perf_counter() - started)
            bar.set_postfix_str(f"{done.stored} documents, {rate:.0f}/s")
    journal.remove()
    _summarize(args, begun, done, time.perf_counter() - started)
    return _SOME_REFUSED if done.refused else 0


def _resumable(client: Client, journal: Journal, collection: str) -> Progress:
    """The journal's progress, unless the collection has lost documents since."""
    progress = journal.read()
    if progress is None:
        return Progress()
    try:
        documents = client.request("GET", collection_path(collection))["documents"]
    except RequestFailed as error:
        if error.status != 404:
            raise
        documents = 0
    if documents < progress.total:
        print(
            f"{collection} had {progress.total} documents when the import stopped and has {documents} now: "
            "starting over",
            file=sys.stderr,
        )
        return Progress()
    return progress


def _create_for(pending: Iterator[Batch], client: Client, args: argparse.Namespace) -> Iterator[Batch]:
    """Create the collection, as wide as the first vectors if the command does not say, then pass all on."""
    first = next(pending, None)
    dim = args.dim
    if dim is None and first is not None and first.records and not isinstance(first.records[0].content, str):
        dim = first.records[0].content.shape[1]
    shape = {"dim": dim, "dtype": args.dtype, "normalize": args.normalize}
    client.request(
        "PUT", collection_path(args.collection), json={k: v for k, v in shape.items() if v is not None}
    )
    if first is not None:
        yield first
    yield from pending


def _open(path: Path) -> Source:
    openers: dict[str, Callable[[Path], Source]] = {
        ".jsonl": JsonLines,
        ".npz": open_npz,
        ".safetensors": open_safetensors,
    }
    if path.suffix not in openers:
        raise ValueError(f"{path} must end in {', '.join(openers)}, which says what it holds")
    try:
        return openers[path.suffix](path)
    except (zipfile.BadZipFile, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error


def _summarize(args: argparse.Namespace, begun: Progress, done: Progress, elapsed_s: float) -> None:
    documents, read_bytes = done.stored - begun.stored, done.offset_bytes - begun.offset_bytes
    earlier = f" after {begun.stored} before the interruption" if begun.number else ""
    print(
        f"{args.file.name} → {args.collection}: {documents:,} documents stored{earlier} in {elapsed_s:.1f} s "
        f"({documents / elapsed_s:,.0f} documents/s, {read_bytes / elapsed_s / 1e6:.2f} MB/s), "
        f"{done.refused} refused" + (f"; the collection holds {done.total:,}" if documents else "")
    )


def _positive(text: str) -> int:
    value = int(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{value} must be positive")
    return value
