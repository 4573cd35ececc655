"""A recogniser whose networks hang."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
from leftovers import ANY_PORTS

from parley.asr.messages import AsrOptions
from parley.engines.parakeet import ParakeetRecognizer
from parley.errors import DeadlineExceededError, ModelUnavailableError
from parley.launcher import EmbeddedServer, ServerOptions
from parley.triton.grpc_client import LoopbackClient

MODELS = ("silero_vad", "parakeet_tdt")
AUDIO = np.zeros(1600, np.int16)


async def push_until_heard(recognizer):
    """The reply to the first audio that the networks take in time, which on a slow machine they may not."""
    while True:
        try:
            return await recognizer.push(AUDIO)
        except (DeadlineExceededError, ModelUnavailableError):
            continue


async def test_a_network_that_hangs_fails_each_stream_in_time_and_is_used_again(tmp_path):
    options = ServerOptions(
        load_models=MODELS,
        state_dir=tmp_path / "state",
        # Less than the second after which Triton notices by itself that a process is stopped.
        environment={"PARLEY_PARAKEET_TDT_TIMEOUT_S": "0.5", "PARLEY_PARAKEET_TDT_VAD": "silero_vad"},
        **ANY_PORTS,
    )
    with EmbeddedServer(options, limits=None) as server:  # nothing is replaced
        port = LoopbackClient(server.endpoints.grpc)
        recognizer = ParakeetRecognizer(port, "caller", timeout_s=10)
        await recognizer.start(AsrOptions())
        assert (await push_until_heard(recognizer)).stream_ms == 100
        (network,) = [process.pid for process in server.usage() if process.name.startswith("silero_vad")]
        os.kill(network, signal.SIGSTOP)
        try:
            with pytest.raises(DeadlineExceededError, match="silero_vad"):
                await recognizer.push(AUDIO)
            with pytest.raises(ModelUnavailableError, match="silero_vad"):
                await recognizer.push(AUDIO)
        finally:
            os.kill(network, signal.SIGCONT)
        assert (await push_until_heard(recognizer)).stream_ms == 200  # what failed was not heard
        await recognizer.close()
        await port.close()
