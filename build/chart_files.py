"""Copies into the Helm chart what it packages of other folders; run it after changing one of those.

Helm reads no file outside a chart. A test compares the copies with their originals.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "deploy" / "helm" / "parley"


def copies() -> dict[Path, Path]:
    """Path of each copy, and of its original."""
    files = CHART / "files"
    found = {files / "alerts.yaml": ROOT / "deploy" / "prometheus" / "alerts.yaml"}
    for dashboard in sorted((ROOT / "deploy" / "grafana").glob("*.json")):
        found[files / "dashboards" / dashboard.name] = dashboard
    for model in ("qwen3", "t3"):
        engine = ROOT / "model_repository" / model / "1" / "model.json"
        found[files / "engines" / f"{model}.json"] = engine
    return found


if __name__ == "__main__":
    for copy, original in copies().items():
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(original.read_bytes())
