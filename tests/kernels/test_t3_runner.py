"""T3 on vLLM's runner V2, token for token against a plain loop; its kernels run in an interpreter.

The engine is that of ``tests/torch/tts/t3/test_t3_engine.py``, with fewer and shorter utterances: vLLM's own
kernels take most of the time. One of them, which excludes unlikely tokens, cannot be interpreted: vLLM's code
for processors takes its place.
"""

import importlib.util
import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv" / "bin" / "python"


@pytest.mark.timeout(1_800)
@pytest.mark.skipif(not PYTHON.exists(), reason="vLLM is in .venv (make setup)")
def test_engines_say_what_the_plain_loop_says(tmp_path):
    compiler = importlib.util.find_spec("triton").submodule_search_locations[0]
    # Of this environment vLLM's process gets the compiler alone.
    (tmp_path / "compiler").mkdir()
    (tmp_path / "compiler" / "triton").symlink_to(compiler)
    script = ROOT / "tests" / "torch" / "tts" / "t3" / "run_engine.py"
    command = [PYTHON, script, tmp_path, ROOT / ".cache" / "vllm", "v2", tmp_path / "compiler"]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, timeout=1_700, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    runs = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [ran["variant"] for ran in runs] == ["original", "turbo"]
    for ran in runs:
        check(ran)


def check(ran):
    assert ran["is_v2"]
    together, expected = ran["together"], ran["expected"]
    assert together["tokens"] == expected, ran["variant"]
    assert ran["margin"] > 1e-4, "the best token must be clear of rounding"
    assert ran["longest_prompt"] > 2 * 48, "prompts must come in several pieces"
    for again in (ran["again"], ran["twice"]):
        assert again["tokens"] == {name: expected[name] for name in again["tokens"]}
    assert max(ran["again"]["cached"].values()) > 0
    assert ran["aborted"] == {"after_the_abort": 0, "other": expected["r0"], "cache_in_use": 0.0}
