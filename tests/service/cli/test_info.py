from importlib.metadata import version
from typing import Any

import pytest

from maxsim_serve import __version__
from maxsim_serve.__main__ import main


def test_a_running_service_describes_itself(service: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--url", service.url]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "status  ready",
        "settings",
        "  encoder  none",
        "  port     1",
    ]


def test_where_none_answers_the_installation_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    assert main(["info", "--url", "http://127.0.0.1:9"]) == 0
    captured = capsys.readouterr()
    assert "no service answers at http://127.0.0.1:9" in captured.err
    lines = {line.split()[0]: line.split()[1:] for line in captured.out.splitlines() if len(line.split()) > 1}
    assert lines["maxsim_serve"] == [__version__]
    assert lines["torch"] == [version("torch")]
    assert lines["threads"] == [str(torch.get_num_threads())]
