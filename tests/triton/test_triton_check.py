"""The probes for other Tritons, on the one of this environment, whose faults are known."""

from __future__ import annotations

import json

from triton_check.cli import main
from triton_check.probes import PROBES

# Faults of timing, which a run may or may not meet; "end-alone" ends the server.
CHANCE = ("together-in-process", "end-alone")


def test_embedded_triton_has_the_expected_behaviour_and_faults(tmp_path, capsys):
    names = [probe.name for probe in PROBES if probe.name not in CHANCE]
    file = tmp_path / "found.json"
    chosen = [part for name in names for part in ("--only", name)]
    status = main([*chosen, "--json", str(file)])
    written = json.loads(file.read_text())
    assert written["triton"] == "2.51.0"
    assert {one["name"]: one["verdict"] for one in written["findings"]} == {
        probe.name: "needed" if probe.is_workaround else "holds" for probe in PROBES if probe.name in names
    }, capsys.readouterr().out
    assert status == 0
