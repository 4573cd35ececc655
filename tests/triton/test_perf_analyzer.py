"""Triton's own perf_analyzer against the server."""

from __future__ import annotations

import re
import subprocess

import pytest
from perf_analyzer.export import Runner, provide_program
from perf_analyzer.inputs import REPOSITORY, drive_of

from parley.canaries.models import CANARIES
from parley.launcher.models import read_config
from parley.launcher.options import TINY_PROFILE

LIMIT_S = 60


@pytest.fixture(scope="module", autouse=True)
def program():
    """The program; a machine that cannot have it fails these tests."""
    provide_program()


@pytest.mark.parametrize("model", ["smart_turn", "parakeet_decoder", "espeak", "nemotron_streaming"])
def test_a_model_is_measured(server, tmp_path, model):
    drive = drive_of(model, TINY_PROFILE)
    runner = Runner(server.endpoints.grpc, tmp_path, limit_s=LIMIT_S)
    figures = runner.run(model, drive, 2, scale=0.1)
    assert figures.requests >= 8
    assert bool(figures.sequences) == drive.sequences
    assert figures.per_second > 0
    assert figures.first_p50 is not None
    assert 0 < figures.p50 <= figures.p95 <= figures.p99


SIZES = {"AUDIO": [1_600], "FEATURES": [80, 100]}
"""For dimensions of any size; others are 16."""
SERVED = (
    "smart_turn",
    "parakeet_encoder",
    "parakeet_decoder",
    "parakeet_transcribe",
    "parakeet_tdt",
    "nemotron_streaming",
    "qwen3",
    "espeak",
    "voice_agent",
)


def shapes(model):
    """The options that the program needs where a configuration leaves a size open."""
    options = []
    for tensor in read_config(REPOSITORY / model, TINY_PROFILE).input:
        open_sizes = iter(SIZES.get(tensor.name, []))
        sizes = [next(open_sizes, 16) if size == -1 else size for size in tensor.dims]
        options += ["--shape", f"{tensor.name}:{','.join(map(str, sizes))}"]
    return options


@pytest.mark.parametrize(
    "options", [["--input-data", "zero", "--string-data", "{}"], []], ids=["zero", "random"]
)
@pytest.mark.parametrize("model", SERVED)
def test_generated_data_is_answered_or_refused(server, tmp_path, model, options):
    config = read_config(REPOSITORY / model, TINY_PROFILE)
    streaming = config.HasField("sequence_batching") or config.model_transaction_policy.decoupled
    command = Runner(server.endpoints.grpc, tmp_path, limit_s=LIMIT_S).command(model, 1, streaming=streaming)
    command += [*options, *shapes(model), "--request-count", "4", "--sequence-length", "2"]
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", check=False, timeout=LIMIT_S
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0 or re.search(r"had error: invalid_[a-z]+: \S", said), said
    assert CANARIES[model](server.endpoints.grpc, LIMIT_S)
