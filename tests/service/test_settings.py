"""Settings: where a value comes from, and how a wrong one is named."""

from pathlib import Path

import pytest

from maxsim_serve.errors import InvalidInput
from maxsim_serve.settings import Settings, as_markdown, as_yaml, load

ROOT = Path(__file__).parents[2]


def test_flag_beats_environment_beats_file_beats_default(tmp_path):
    config = tmp_path / "c.yaml"
    config.write_text("port: 1\nqueue_depth: 2\nhost: a\n")
    settings = load(config, {"MAXSIM_PORT": "3", "MAXSIM_HOST": "b"}, {"host": "c", "encoder": None})
    assert (settings.queue_depth, settings.port, settings.host, settings.encoder) == (2, 3, "c", "none")


def test_numbers_paths_and_booleans_are_read_from_the_environment():
    settings = load(
        None, {"MAXSIM_DATA_DIR": "/x", "MAXSIM_METRICS_PUBLIC": "false", "MAXSIM_DEADLINE_S": "1.5"}
    )
    assert (settings.data_dir, settings.metrics_public, settings.deadline_s) == (Path("/x"), False, 1.5)


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"MAXSIM_PROT": "1"}, ["unknown setting 'prot'", "environment MAXSIM_PROT"]),
        ({"MAXSIM_PORT": "http"}, ["port = 'http'", "environment MAXSIM_PORT", "integer"]),
        ({"MAXSIM_DEVICE": "tpu"}, ["device = 'tpu'", "'auto', 'cpu' or 'cuda'"]),
        ({"MAXSIM_QUEUE_DEPTH": "0"}, ["queue_depth = '0'", "greater than or equal to 1"]),
        ({"MAXSIM_PORT": "x", "MAXSIM_DEVICE": "y"}, ["port = 'x'", "device = 'y'"]),
    ],
    ids=["unknown-key", "not-a-number", "not-a-choice", "out-of-range", "two-at-once"],
)
def test_a_wrong_key_or_value_is_named(environ, words):
    with pytest.raises(InvalidInput) as caught:
        load(None, environ)
    for word in words:
        assert word in caught.value.message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("prot: 1", ["unknown setting 'prot'", "c.yaml"]),
        ("- 1", ["must be a mapping"]),
        ("a: [", ["is not YAML"]),
    ],
    ids=["unknown-key", "a-list", "not-yaml"],
)
def test_a_wrong_file_is_named(tmp_path, text, words):
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(InvalidInput) as caught:
        load(tmp_path / "c.yaml", {})
    for word in words:
        assert word in caught.value.message


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InvalidInput, match=r"nowhere\.yaml"):
        load(tmp_path / "nowhere.yaml", {})


def test_an_api_key_is_never_shown():
    with pytest.raises(InvalidInput) as caught:
        load(None, {"MAXSIM_API_KEY": "s3cret", "MAXSIM_PORT": "x"})
    assert "s3cret" not in caught.value.message


def test_the_default_file_is_the_defaults():
    assert (ROOT / "config/default.yaml").read_text() == as_yaml()
    assert load(ROOT / "config/default.yaml", {}) == Settings()


def test_the_readme_holds_the_settings_table():
    assert as_markdown() in (ROOT / "README.md").read_text()
