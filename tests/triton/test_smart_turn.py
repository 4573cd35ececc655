"""The end-of-turn networks inside the real server."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import soundfile
from rails import serve

from parley.engines.smart_turn import SmartTurnModel
from parley.errors import InferenceError, InvalidAudioError
from parley.inference import ModelRequest
from parley.launcher.options import ROOT
from parley.runtime.onnx import open_session
from parley.turns.smart_turn import SmartTurn, bundled_folder, network_file

CLIPS = sorted((ROOT / "tests/data/conversation").glob("*.wav"))


@pytest.fixture(scope="module")
def turns():
    """Whole turns and beginnings of turns, of different lengths, i16 [n] each."""
    clips = [soundfile.read(path, dtype="int16")[0] for path in CLIPS[:6]]
    silence = np.zeros(4800, np.int16)
    return [np.concatenate([clip[: len(clip) * part // 2], silence]) for clip in clips for part in (1, 2)]


@pytest.fixture(scope="module", params=["tiny", "published"])
def served(request, tmp_path_factory):
    """The server with the profile's own network or with Smart Turn v3.2, and the folder of that network."""
    folder, environment = ROOT / "models/tiny-smart-turn", {}
    if request.param == "published":
        folder = bundled_folder()
        environment = {"PARLEY_WEIGHTS_SMART_TURN": str(folder)}
    with serve(tmp_path_factory.mktemp("smart-turn"), ("smart_turn",), **environment) as running:
        yield running, folder


@pytest.fixture
def server(served):
    return served[0]


async def test_the_server_scores_what_the_network_scores(port, served, turns):
    network = SmartTurn(open_session(network_file(served[1])))
    model = SmartTurnModel(port, timeout_s=10)
    found = [await model.score(turn) for turn in turns]
    assert found == pytest.approx(network.score(turns).tolist(), abs=1e-6)
    # Not all the same; what one clip's score is exactly depends on the processor.
    assert max(found) - min(found) > 0.3


async def test_requests_at_once_get_what_each_gets_alone(port, turns):
    model = SmartTurnModel(port, timeout_s=10)
    alone = [await model.score(turn) for turn in turns[:8]]
    for _ in range(3):
        together = await asyncio.gather(*(model.score(turn) for turn in turns[:8]))
        assert together == pytest.approx(alone, abs=1e-6)


async def test_only_the_last_eight_seconds_are_sent(port, turns):
    model = SmartTurnModel(port, timeout_s=10)
    long = np.concatenate([np.full(16_000 * 9, 1000, np.int16), np.zeros(16_000 * 8, np.int16)])
    long[-len(turns[0]) :] = turns[0]
    assert await model.score(long) == pytest.approx(await model.score(long[-16_000 * 8 :]))


@pytest.mark.parametrize("samples", [0, 16_000 * 8 + 1])
async def test_audio_of_a_wrong_length_is_refused_with_its_code(port, samples):
    request = ModelRequest("smart_turn", {"AUDIO": np.zeros((1, samples), np.int16)}, ("PROBABILITY",))
    with pytest.raises(InvalidAudioError):
        await port.infer(request)


async def test_audio_of_a_wrong_type_is_refused(port):
    request = ModelRequest("smart_turn", {"AUDIO": np.zeros((1, 100), np.float32)}, ("PROBABILITY",))
    with pytest.raises(InferenceError):
        await port.infer(request)


async def test_more_than_can_be_served_in_time_is_refused_at_once(port, turns):
    """The agent goes on without a score."""
    model = SmartTurnModel(port, timeout_s=10)
    scores = await asyncio.gather(*(model.score(turns[0]) for _ in range(60)), return_exceptions=True)
    refused = [score for score in scores if isinstance(score, Exception)]
    assert refused
    assert all(isinstance(error, InferenceError) for error in refused)
    assert len({score for score in scores if isinstance(score, float)}) == 1
    assert 0 <= await model.score(turns[0]) <= 1
