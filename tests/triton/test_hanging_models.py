"""A recogniser whose networks hang."""

from __future__ import annotations

import os
import signal

import soundfile
from leftovers import ANY_PORTS

from parley.asr.messages import AsrOptions
from parley.engines.recognizers import ModelRecognizer
from parley.errors import DeadlineExceededError, ModelUnavailableError
from parley.launcher import EmbeddedServer, ServerOptions
from parley.launcher.options import ROOT
from parley.triton.grpc_client import LoopbackClient

MODELS = ("parakeet_encoder", "parakeet_decoder", "parakeet_tdt")
PIECE = 1_600


async def push_until_heard(recognizer, piece):
    """The reply to the first audio that the networks take in time, which on a slow machine they may not."""
    while True:
        try:
            return await recognizer.push(piece)
        except (DeadlineExceededError, ModelUnavailableError):
            continue


async def push_until_failure(recognizer, pieces, kind):
    """Push until the network is needed; returns how many pieces were heard."""
    for heard in range(len(pieces)):
        try:
            await recognizer.push(pieces[heard])
        except kind as error:
            if "parakeet_encoder" in str(error):
                return heard
            raise
    raise AssertionError("the network was not needed")


async def test_a_network_that_hangs_fails_each_stream_in_time_and_is_used_again(tmp_path):
    speech, _ = soundfile.read(ROOT / "tests/data/conversation/02-weather.wav", dtype="int16")
    pieces = [speech[start : start + PIECE] for start in range(0, len(speech) - PIECE, PIECE)]
    options = ServerOptions(
        load_models=MODELS,
        state_dir=tmp_path / "state",
        # Less than the second after which Triton notices by itself that a process is stopped.
        environment={"PARLEY_PARAKEET_TDT_TIMEOUT_S": "0.5"},
        **ANY_PORTS,
    )
    with EmbeddedServer(options, limits=None) as server:  # nothing is replaced
        port = LoopbackClient(server.endpoints.grpc)
        recognizer = ModelRecognizer(port, "caller", model="parakeet_tdt", timeout_s=10)
        await recognizer.start(AsrOptions())
        assert (await push_until_heard(recognizer, pieces[0])).stream_ms == 100
        name = "parakeet_encoder"
        (network,) = [process.pid for process in server.usage() if process.name.startswith(name)]
        os.kill(network, signal.SIGSTOP)
        try:
            heard = 1 + await push_until_failure(recognizer, pieces[1:], DeadlineExceededError)
            heard += await push_until_failure(recognizer, pieces[heard:], ModelUnavailableError)
        finally:
            os.kill(network, signal.SIGCONT)
        # What failed was not heard.
        reply = await push_until_heard(recognizer, pieces[heard])
        assert reply.stream_ms == 100 * (heard + 1)
        await recognizer.close()
        await port.close()
