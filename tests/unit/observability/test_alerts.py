"""Alerts and dashboards, without a server."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys

import observe
import pytest
from observe import ALERTS, find_program, render_config

from parley.launcher.options import ROOT

GRAFANA = ROOT / "deploy" / "grafana"


def load(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "build" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def promtool():
    try:
        return find_program("promtool")
    except FileNotFoundError:
        if shutil.which("apt-get"):
            raise
        pytest.skip("this machine has no package of Prometheus")


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, **options)


def test_every_alert_fires_when_it_should_and_not_before(promtool):
    done = run(promtool, "test", "rules", "alerts_test.yaml", cwd=ALERTS.parent)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_test():
    alerts = set(re.findall(r"- alert: (\w+)", ALERTS.read_text()))
    fired = set(
        re.findall(r"alertname: (\w+)\n\s+exp_alerts", (ALERTS.parent / "alerts_test.yaml").read_text())
    )
    assert alerts
    assert alerts == fired


def test_prometheus_accepts_the_configuration(promtool, tmp_path):
    key = tmp_path / "key"
    key.write_text("secret")
    config = tmp_path / "prometheus.yaml"
    config.write_text(json.dumps(render_config("a:8002", "b:8080", interval="5s", key_file=key)))
    done = run(promtool, "check", "config", str(config))
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboards_are_up_to_date(tmp_path):
    made = {file.name: file.read_text() for file in load("dashboards").write(tmp_path)}
    kept = {file.name: file.read_text() for file in GRAFANA.glob("*.json")}
    assert made == kept, "run .venv/bin/python build/dashboards.py"


def test_dashboards_and_alerts_name_only_metrics_that_exist():
    docs = load("metrics_docs")
    known = {row[0] for rows in docs.sections().values() for row in rows}
    texts = [file.read_text() for file in GRAFANA.glob("*.json")] + [ALERTS.read_text()]
    named = {name for text in texts for name in re.findall(r"\b(?:voice_agent|parley)_[a-z0-9_]+", text)}
    assert {re.sub("_(bucket|count|sum)$", "", name) for name in named} <= known


def test_the_page_of_metrics_is_up_to_date():
    page = (ROOT / "docs" / "observability.md").read_text()
    assert load("metrics_docs").with_tables(page) == page, "run .venv/bin/python build/metrics_docs.py"


def test_missing_phoenix_prints_its_command(monkeypatch, tmp_path):
    monkeypatch.setattr(observe, "PHOENIX", tmp_path / "phoenix")
    assert "scripts/setup --phoenix" in observe.explain_traces("127.0.0.1:6006")
    (tmp_path / "phoenix").touch()
    assert "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:6006" in observe.explain_traces("127.0.0.1:6006")
    assert "docs/observability.md#traces" in observe.explain_traces("")
