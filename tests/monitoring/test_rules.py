"""The configuration as it lies there: promtool's checks, a runbook for each alert, panels to be read."""

import importlib.util
import re
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "config"
CASES = ROOT / "tests/monitoring/rules/alerts.test.yml"

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian package prometheus)"
)


def generated() -> Any:
    spec = importlib.util.spec_from_file_location("grafana_generate", CONFIG / "grafana/generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def alerts() -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load((CONFIG / "rules/alerts.yml").read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def cases_of(alert: str) -> dict[str, Any]:
    """The file of cases with those of one alert alone."""
    document: dict[str, Any] = yaml.safe_load(CASES.read_text())
    document["tests"] = [
        case
        for case in document["tests"]
        if alert in {expected["alertname"] for expected in case["alert_rule_test"]}
    ]
    return document


def promtool(*arguments: object) -> None:
    done = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr


@needs_promtool
def test_promtool_finds_no_fault_with_configuration_and_rules():
    promtool("check", "config", CONFIG / "prometheus.yml")
    promtool("check", "rules", *sorted((CONFIG / "rules").glob("*.yml")))


@needs_promtool
def test_each_alert_fires_when_it_should_and_only_then():
    promtool("test", "rules", CASES)


@needs_promtool
@pytest.mark.parametrize("name", alerts())
def test_the_cases_notice_an_alert_that_never_fires_and_one_that_always_does(tmp_path, name):
    """A copy of the rules in which this one alert is broken must fail its cases."""
    for number, broken in enumerate(("vector(0) > 1", 'label_replace(vector(1), "instance", "x", "", "")')):
        rules = tmp_path / str(number) / "config/rules"
        shutil.copytree(CONFIG / "rules", rules)
        document = yaml.safe_load((rules / "alerts.yml").read_text())
        for rule in document["groups"][0]["rules"]:
            if rule["alert"] == name:
                rule["expr"] = broken
        (rules / "alerts.yml").write_text(yaml.safe_dump(document))
        cases = tmp_path / str(number) / "tests/monitoring/rules" / CASES.name
        cases.parent.mkdir(parents=True)
        cases.write_text(yaml.safe_dump(cases_of(name)))
        done = subprocess.run(["promtool", "test", "rules", cases], capture_output=True, text=True)
        assert done.returncode != 0
        assert name in done.stdout + done.stderr


def test_each_alert_has_a_case_that_fires_and_one_that_does_not():
    outcomes = defaultdict(set)
    for case in yaml.safe_load(CASES.read_text())["tests"]:
        for expected in case["alert_rule_test"]:
            outcomes[expected["alertname"]].add(bool(expected["exp_alerts"]))
    assert dict(outcomes) == {name: {True, False} for name in alerts()}


def test_each_alert_has_its_paragraph_in_the_runbook():
    for name, rule in alerts().items():
        page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        headings = re.findall(r"^### (.+)$\n\n(.+)", (ROOT / page).read_text(), re.MULTILINE)
        assert anchor == name.lower()
        assert name in [heading for heading, paragraph in headings if len(paragraph) > 40]


def test_the_dashboard_is_the_one_that_is_printed():
    module = generated()
    assert module.OUTPUT.read_text() == module.as_json(), "run `make docs`"


def test_every_panel_has_a_unit_a_description_and_a_name_for_every_line():
    panels = [panel for panel in generated().dashboard()["panels"] if panel["type"] != "row"]
    assert len({panel["title"] for panel in panels}) == len(panels) > 20
    for panel in panels:
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert len(panel["description"]) > 20, panel["title"]
        assert all(target["legendFormat"] and target["expr"] for target in panel["targets"]), panel["title"]


def test_dashboard_and_provisioning_name_the_same_datasource():
    folder = CONFIG / "grafana/provisioning"
    (source,) = yaml.safe_load((folder / "datasources/prometheus.yml").read_text())["datasources"]
    for panel in generated().dashboard()["panels"]:
        for target in panel.get("targets", ()):
            assert target["datasource"]["uid"] == source["uid"]


def test_alerts_and_dashboard_read_only_metrics_that_exist():
    from maxsim_serve.metrics import Metrics

    exported = {"up"}
    for family in Metrics().registry.collect():
        exported |= {family.name} | {family.name + end for end in ("_total", "_bucket", "_sum", "_count")}
    recorded = set()
    expressions = [rule["expr"] for rule in alerts().values()]
    for group in yaml.safe_load((CONFIG / "rules/recording.yml").read_text())["groups"]:
        recorded |= {rule["record"] for rule in group["rules"]}
        expressions += [rule["expr"] for rule in group["rules"]]
    for panel in generated().dashboard()["panels"]:
        expressions += [target["expr"] for target in panel.get("targets", ())]
    read = {name for text in expressions for name in re.findall(r"[\w:]*maxsim[\w:]+", text)}
    assert read - exported - recorded == set()
