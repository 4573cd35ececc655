"""The vLLM models, token for token against a plain loop.

One engine at a time serves sixteen utterances that come while others run, in pieces (chunked
prefill), with too little cache for all of them (preemption) and with voices that repeat (prefix
cache): guidance weights 0, 0.24, 0.5 and 1, penalties 1, 1.2 and 2, greedy and drawn with seeds.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("run_engine.py")
CACHE = Path(__file__).parents[4] / ".cache" / "vllm"


@pytest.fixture(scope="module", params=["original", "turbo"])
def ran(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("engine")
    command = [sys.executable, str(SCRIPT), str(folder), request.param, str(CACHE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.mark.timeout(320)
def test_utterances_in_one_batch_are_those_of_the_plain_loop(ran):
    assert ran["together"]["tokens"] == ran["expected"]


def test_the_batch_was_a_hard_one(ran):
    """Or the test above says little."""
    assert ran["together"]["preempted"] > 0
    assert max(ran["together"]["cached"].values()) > 0
    assert ran["longest_prompt"] > 2 * 48, "prompts must come in several pieces"
    assert ran["margin"] > 1e-4, "the best token must be clear of rounding"
    assert set(ran["together"]["reasons"].values()) == {"stop", "length"}


def test_what_the_prefix_cache_serves_changes_nothing(ran):
    for again in (ran["again"], ran["twice"]):
        for name, tokens in again["tokens"].items():
            assert tokens == ran["expected"][name]
    assert max(ran["again"]["cached"].values()) > 0
    assert ran["twice"]["cached"]["r0"] >= 64


def test_an_aborted_utterance_ends_within_one_step_and_leaves_nothing(ran):
    assert ran["aborted"] == {"after_the_abort": 0, "other": ran["expected"]["r0"], "cache_in_use": 0.0}
