"""Copies into the Helm chart what it packages of other folders; run it after changing one of those.

Helm reads no file outside a chart, and not every version reads TOML: memory plans, features and sessions are
copied as JSON. A test compares the copies with their originals.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "deploy" / "helm" / "parley"


def copies() -> dict[Path, bytes]:
    """Path and content of each copy."""
    files = CHART / "files"
    originals = {files / "alerts.yaml": ROOT / "deploy" / "prometheus" / "alerts.yaml"}
    for dashboard in sorted((ROOT / "deploy" / "grafana").glob("*.json")):
        originals[files / "dashboards" / dashboard.name] = dashboard
    found = {copy: original.read_bytes() for copy, original in originals.items()}
    return {
        **found,
        files / "gpu-plans.json": _plans(),
        files / "features.json": _table("features"),
        files / "sessions.json": _table("sessions"),
    }


def _plans() -> bytes:
    """What the chart reads of the memory plans, by the name of a GPU."""
    plans = tomllib.loads((ROOT / "src" / "parley" / "runtime" / "gpu_plans.toml").read_text())["plan"]
    by_gpu = {
        gpu: {"sessions": plan["settings"]["voice_agent"]["max_sessions"], "without": plan["without"]}
        for plan in plans
        for gpu in plan["gpus"]
    }
    return (json.dumps(by_gpu, indent=2, sort_keys=True) + "\n").encode()


def _table(name: str) -> bytes:
    """A table by profile, as it stands."""
    table = tomllib.loads((ROOT / "src" / "parley" / "runtime" / f"{name}.toml").read_text())
    return (json.dumps(table, indent=2, sort_keys=True) + "\n").encode()


if __name__ == "__main__":
    for copy, content in copies().items():
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(content)
