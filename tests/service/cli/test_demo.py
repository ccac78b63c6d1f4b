import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from maxsim_serve.__main__ import main
from maxsim_serve.cli import local
from maxsim_serve.cli.bm25 import BM25
from maxsim_serve.cli.docstrings import Docstring, docstrings
from maxsim_serve.cli.local import LocalService, ServiceDied


@pytest.fixture(scope="module")
def corpus() -> list[Docstring]:
    return docstrings(300)


def test_docstrings_are_many_distinct_and_the_same_each_time(corpus: list[Docstring]) -> None:
    assert len(corpus) == 300
    assert len({document.text for document in corpus}) == 300
    assert len({document.name for document in corpus}) == 300
    assert all(60 <= len(document.text) <= 500 for document in corpus)
    assert corpus[:200] == docstrings(200)
    assert {"argparse", "tempfile.mkdtemp", "difflib.unified_diff"} <= {document.name for document in corpus}


def test_docstrings_are_read_without_importing() -> None:
    code = (
        "import sys; from maxsim_serve.cli.docstrings import docstrings; assert len(docstrings(300)) == 300;"
        "print([name for name in ('getpass', 'shelve', 'smtplib', 'webbrowser') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_the_first_sentence_is_one_line(corpus: list[Docstring]) -> None:
    (argparse,) = [document for document in corpus if document.name == "argparse"]
    assert argparse.first_sentence == "Command-line parsing library"


def test_bm25_is_the_textbook_formula() -> None:
    texts = ["red fox", "Red, red; RED!", "a blue bird sings here", "nothing of it"]
    retriever = BM25(texts)
    assert retriever.top("red", 10) == [1, 0]
    assert retriever.top("red fox", 10) == [0, 1]
    assert retriever.top("red fox", 1) == [0]
    assert retriever.top("green", 10) == []
    rarity = math.log(1 + (4 - 2 + 0.5) / (2 + 0.5))
    mean = (2 + 3 + 5 + 3) / 4
    expected = rarity * 3 * 2.2 / (3 + 1.2 * (1 - 0.75 + 0.75 * 3 / mean))
    assert retriever._score(["red"], 1) == pytest.approx(expected)


FAKE_SERVICE = """
import http.server, signal, sys, threading
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b'{"status": "ready"}'
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler)
signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
print("arguments:", *sys.argv[1:], flush=True)
server.serve_forever()
"""


@pytest.fixture
def as_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let a script stand in for `python -m maxsim_serve serve`."""

    def use(script: str) -> None:
        path = tmp_path / "python"
        (tmp_path / "fake.py").write_text(script)
        path.write_text(f'#!/bin/sh\nshift 2\nexec "{sys.executable}" "{tmp_path / "fake.py"}" "$@"\n')
        path.chmod(0o755)
        monkeypatch.setattr(local.sys, "executable", str(path))

    return use


def test_a_service_of_ones_own_starts_and_stops(as_service: Any) -> None:
    as_service(FAKE_SERVICE)
    waits: list[float] = []
    with LocalService(encoder="minilm", on_wait=waits.append) as service:
        assert service.is_running
        log = service._log_tail()
        directory = service._directory
    assert not service.is_running
    assert not directory.exists()
    assert waits == sorted(waits) and waits
    assert f"serve --host 127.0.0.1 --port {service.port} --data-dir" in log
    assert "--encoder minilm" in log


def test_sigterm_stops_the_service_too(as_service: Any) -> None:
    as_service(FAKE_SERVICE)
    before = signal.getsignal(signal.SIGTERM)
    with (
        pytest.raises(KeyboardInterrupt),
        LocalService(encoder="none", on_wait=lambda _: None) as service,
    ):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)
    assert not service.is_running
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_service_that_does_not_start_shows_its_log(
    as_service: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    as_service("import sys; sys.exit('no such encoder')")
    assert main(["demo"]) == 1
    assert re.search(r"exit status 1:\n  \| no such encoder", capsys.readouterr().err)


def test_a_service_that_fails_while_stopping_is_an_error(as_service: Any) -> None:
    as_service(FAKE_SERVICE + "sys.exit('the last write failed')")
    with (
        pytest.raises(ServiceDied, match="the last write failed"),
        LocalService(encoder="none", on_wait=lambda _: None),
    ):
        pass


def test_a_service_that_is_never_ready_is_given_up(as_service: Any) -> None:
    as_service("import time; time.sleep(60)")
    started = time.monotonic()
    with (
        pytest.raises(ServiceDied, match="not ready after"),
        LocalService(encoder="none", start_timeout_s=0.5, on_wait=lambda _: None),
    ):
        pass
    assert time.monotonic() - started < 10
