"""The vLLM models on the runner V1, token for token against a plain loop.

One engine at a time serves sixteen utterances that come while others run, in pieces (chunked
prefill), with too little cache for all of them (preemption) and with voices that repeat (prefix
cache): guidance weights 0, 0.24, 0.5 and 1, penalties 1, 1.2 and 2, greedy and drawn with seeds.
``tests/kernels/test_t3_runner.py`` has the runner V2, which needs the Triton compiler.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("run_engine.py")
CACHE = Path(__file__).parents[4] / ".cache" / "vllm"


# One test: every process of pytest-xdist would repeat the run of the engines, which takes 20 s.
@pytest.mark.timeout(320)
def test_engines_say_what_the_plain_loop_says(tmp_path):
    command = [sys.executable, str(SCRIPT), str(tmp_path), str(CACHE), "v1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    runs = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [ran["variant"] for ran in runs] == ["original", "turbo"]
    for ran in runs:
        check(ran)


def check(ran):
    assert not ran["is_v2"]
    together, expected = ran["together"], ran["expected"]
    assert together["tokens"] == expected, ran["variant"]
    # The batch was a hard one.
    assert together["preempted"] > 0
    assert max(together["cached"].values()) > 0
    assert ran["longest_prompt"] > 2 * 48, "prompts must come in several pieces"
    assert ran["margin"] > 1e-4, "the best token must be clear of rounding"
    assert set(together["reasons"].values()) == {"stop", "length"}
    # What the prefix cache serves changes nothing.
    for again in (ran["again"], ran["twice"]):
        assert again["tokens"] == {name: expected[name] for name in again["tokens"]}
    assert max(ran["again"]["cached"].values()) > 0
    assert ran["twice"]["cached"]["r0"] >= 64
    # An aborted utterance ends within one step and leaves nothing.
    assert ran["aborted"] == {"after_the_abort": 0, "other": expected["r0"], "cache_in_use": 0.0}
