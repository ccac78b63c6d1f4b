"""What is killed: a process that uses the store as a library, or the service."""

import contextlib
import http.client
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torture_load import COLLECTION, DEAD_SHARE, DIM, SEGMENT_BYTES, WORKERS, HttpTarget, Record, work

from maxsim_serve.cli.local import free_port

__all__ = ["HttpSubject", "Observation", "StoreSubject"]

_START_S = 120


@dataclass(frozen=True)
class Observation:
    """What a fresh process finds in the directory."""

    digests: dict[str, str]
    documents: int
    segments: int


class StoreSubject:
    def __init__(self, data_dir: Path, seed: int) -> None:
        self._data_dir, self._seed = data_dir, seed

    def start(self, round: int, record: Record) -> int:
        """Begin the load; the id of the process to kill."""
        self._process = self._child("load", "--round", str(round), "--seed", str(self._seed))
        self._reader = threading.Thread(target=self._read, args=(record,))
        self._reader.start()
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()

    def kill_while_opening(self, delay_s: float) -> None:
        with self._child("dump") as process:
            process.stdout.readline()
            time.sleep(delay_s)
            process.kill()

    def observe(self, ids: Sequence[str]) -> Observation:
        with self._child("dump") as process:
            process.stdout.readline()
            found = process.stdout.read()
        if process.returncode:
            raise SystemExit(f"the directory does not open: exit status {process.returncode}")
        return Observation(**json.loads(found))

    def close(self) -> None:
        pass

    def _read(self, record: Record) -> None:
        # What a killed process had written to the pipe is still in it.
        for line in self._process.stdout:
            if line.endswith("\n"):
                record(*json.loads(line))

    def _child(self, role: str, *flags: str) -> subprocess.Popen[str]:
        program = Path(__file__).with_name("torture_load.py")
        command = [sys.executable, str(program), role, str(self._data_dir), *flags]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


class HttpSubject:
    def __init__(self, data_dir: Path, seed: int) -> None:
        self._data_dir, self._seed = data_dir, seed
        self._server: subprocess.Popen[bytes] | None = None

    def start(self, round: int, record: Record) -> int:
        server = self._running()
        HttpTarget(self._port).call("PUT", f"/collections/{COLLECTION}", {"dim": DIM, "dtype": "float16"})
        self._stop = threading.Event()
        self._failures: list[BaseException] = []
        self._clients = [
            threading.Thread(target=self._client, args=(worker, round, record)) for worker in range(WORKERS)
        ]
        for client in self._clients:
            client.start()
        return server.pid

    def kill(self) -> None:
        self._end_server()
        self._stop.set()
        for client in self._clients:
            client.join()
        if self._failures:
            raise self._failures[0]

    def kill_while_opening(self, delay_s: float) -> None:
        self._launch("/livez")  # answers while the store is loading
        time.sleep(delay_s)
        self._end_server()

    def observe(self, ids: Sequence[str]) -> Observation:
        self._running()
        target = HttpTarget(self._port)
        digests = {id: found for id in ids if (found := target.get(id))}
        info = target.call("GET", f"/collections/{COLLECTION}")
        return Observation(digests, info["documents"], info["segments"])

    def close(self) -> None:
        self._end_server()

    def _client(self, worker: int, round: int, record: Record) -> None:
        try:
            work(worker, round, self._seed, HttpTarget(self._port), record, self._stop)
        except (OSError, http.client.HTTPException):
            pass  # the service was killed under this request
        except BaseException as failure:
            self._failures.append(failure)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._server is None:
            self._launch("/readyz")
        assert self._server is not None
        return self._server

    def _launch(self, until: str) -> None:
        self._port = free_port()
        command = [sys.executable, "-m", "maxsim_serve", "serve", "--port", str(self._port)]
        settings = {
            "DATA_DIR": self._data_dir,
            "SEGMENT_BYTES": SEGMENT_BYTES,
            "COMPACT_DEAD_SHARE": DEAD_SHARE,
            "ENCODER": "none",
            "LOG_LEVEL": "warning",
        }
        environment = os.environ | {f"MAXSIM_{key}": str(value) for key, value in settings.items()}
        self._server = subprocess.Popen(command, env=environment)
        deadline = time.monotonic() + _START_S
        while not self._answers(until):
            if self._server.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("the service did not start; its log is above")
            time.sleep(0.02)

    def _answers(self, path: str) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException, AssertionError):
            HttpTarget(self._port).call("GET", path)
            return True
        return False

    def _end_server(self) -> None:
        if self._server is not None:
            self._server.kill()
            self._server.wait()
            self._server = None
