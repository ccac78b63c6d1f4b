"""The command.

python -m maxsim_retriever serve                            POST /search on RETRIEVER_HOST:RETRIEVER_PORT
python -m maxsim_retriever ingest corpus.jsonl              `-` reads standard input
"""

import argparse
import logging
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import httpx
import psycopg
import uvicorn
from pydantic import ValidationError

from .app import build_app
from .ingest import IngestFailed, ingest, read
from .settings import Settings, from_environment

_ENCODE_TIMEOUT_S = 600.0  # a batch is encoded within one request
_SHUTDOWN_TIMEOUT_S = 10


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="maxsim_retriever", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, dest="command")
    commands.add_parser("serve", help="answer searches")
    filling = commands.add_parser("ingest", help="load a corpus into PostgreSQL and the reranker")
    filling.add_argument("corpus", help='lines of {"id" or "_id", "text", "title"?}; - for standard input')
    filling.add_argument("--batch", type=int, default=32, help="documents a request (default: %(default)s)")
    args = parser.parse_args()
    try:
        settings = from_environment(os.environ)
    except ValidationError as error:
        print(f"maxsim_retriever: {error}", file=sys.stderr)
        return 2
    if args.command == "serve":
        return _serve(settings)
    if args.batch < 1:
        parser.error(f"--batch {args.batch}: at least 1")
    if args.corpus == "-":
        return _ingest(sys.stdin, settings, args.batch)
    with Path(args.corpus).open(encoding="utf-8") as lines:
        return _ingest(lines, settings, args.batch)


def _serve(settings: Settings) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line a request otherwise
    uvicorn.run(
        build_app(settings),
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=_SHUTDOWN_TIMEOUT_S,
    )
    return 0


def _ingest(lines: Iterable[str], settings: Settings, batch_documents: int) -> int:
    started, stored, refused = time.perf_counter(), 0, 0
    key = settings.reranker_api_key
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        with httpx.Client(
            base_url=settings.reranker_url, headers=headers, timeout=_ENCODE_TIMEOUT_S, trust_env=False
        ) as http:
            for batch in ingest(
                read(lines),
                database_url=settings.database_url,
                http=http,
                collection=settings.collection,
                batch_documents=batch_documents,
            ):
                stored, refused = stored + batch.documents, refused + len(batch.refused)
                for reason in batch.refused:
                    print(f"refused: {reason}", file=sys.stderr)
                print(f"{stored} documents stored, {time.perf_counter() - started:.0f} s", flush=True)
    except (IngestFailed, httpx.TransportError, psycopg.Error) as error:
        print(f"maxsim_retriever: after {stored} documents: {error}", file=sys.stderr)
        return 1
    return 3 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
