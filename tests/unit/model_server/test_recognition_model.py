"""A rail's requests as Triton hands them over."""

import json
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from fake_pb_utils import Request

from parley.asr.checkpoint import Checkpoint, ParakeetConfig
from parley.asr.messages import AsrReply
from parley.asr.service import ChunkResult
from parley.errors import ModelLoadingError
from parley.models.nemotron_streaming import check_languages
from parley.models.recognition import Periodic, RecognitionModel, open_detector, read_languages
from parley.runtime.parameters import Parameters

START = 1


class Counting:
    """Answers each chunk with the number of its stream's chunks so far."""

    def new_stream(self, options):
        return SimpleNamespace(chunks=0)

    def step(self, chunks):
        for chunk in chunks:
            chunk.stream.chunks += 1
        return [ChunkResult(chunk.stream, AsrReply(stream_ms=chunk.stream.chunks)) for chunk in chunks]

    def release(self, stream):
        pass


class Chunk(Request):
    def __init__(self, correlation_id, flags=0):
        request = np.array([[b"{}"]], np.object_)
        super().__init__({"AUDIO": np.zeros((1, 0), np.int16), "REQUEST": request})
        self.correlation_id = lambda: correlation_id
        self.flags = lambda: flags


@pytest.fixture
def model(pb_utils):
    model = RecognitionModel(
        pb_utils, Parameters("rail", {}, sequence_idle_s=60.0, environment={}), Counting()
    )
    yield model
    model.close()


@pytest.mark.parametrize(
    ("setting", "languages"),
    [(None, ("en", "es")), ("all", ("en", "es")), ("es, en-GB", ("es", "en-GB"))],
)
def test_languages_are_those_of_the_weights_or_of_the_setting(setting, languages, caplog):
    values = {} if setting is None else {"languages": setting}
    assert read_languages(Parameters("rail", values, environment={}), ("en", "es")) == languages
    assert not caplog.records


def test_weights_without_languages_count_as_english_with_a_log_line(caplog):
    assert read_languages(Parameters("rail", {"languages": "all"}, environment={}), ()) == ("en",)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "rail" in record.getMessage()
    assert "PARLEY_RAIL_LANGUAGES" in record.getMessage()


def test_languages_of_the_setting_do_without_those_of_the_weights(caplog):
    assert read_languages(Parameters("rail", {"languages": "de,fr"}, environment={}), ()) == ("de", "fr")
    assert not caplog.records


@pytest.mark.parametrize("setting", ["all", "en", "es-MX,en-US"])
def test_a_model_with_prompts_serves_what_it_has_prompts_for(setting):
    checkpoint = prompted({"en-US": 0, "es": 1})
    check_languages(Parameters("rail", {"languages": setting}, environment={}), checkpoint)
    other = Parameters("rail", {"languages": f"{setting},fr"}, environment={})
    with pytest.raises(ModelLoadingError, match=r"has (fr|all); its weights have prompts for en-US, es"):
        check_languages(other, checkpoint)
    check_languages(other, prompted({}))


def prompted(prompts):
    return Checkpoint(None, ParakeetConfig(prompts=prompts), ("<blk>",), 0)


def test_a_number_and_its_digits_are_two_streams(model):
    def send(correlation_id, flags=0):
        (response,) = model.execute([Chunk(correlation_id, flags)])
        assert not response.has_error(), response.error().message()
        (reply,) = response.output_tensors()
        return json.loads(reply.as_numpy()[0, 0])["stream_ms"]

    assert [send(5, START), send(5), send("5", START), send(5), send("5")] == [1, 2, 1, 3, 2]


def test_a_request_without_a_message_is_a_piece_of_audio(model, pb_utils):
    bare = Chunk(7)
    bare.inputs = lambda: [pb_utils.Tensor("AUDIO", np.zeros((1, 160), np.int16))]
    model.execute([Chunk(7, START)])
    (response,) = model.execute([bare])
    assert not response.has_error(), response.error().message()


WINDOWS = (
    np.zeros((1, 1, 512), np.float32),
    np.ones(1, np.int32),
    np.zeros((1, 2, 128), np.float32),
    np.zeros((1, 64), np.float32),
)


def test_voice_activity_is_detected_in_the_process_of_the_recogniser():
    detector = open_detector()
    probabilities, state, context = detector.detect(*WINDOWS)
    assert probabilities.shape == (1, 1)
    assert probabilities[0, 0] < 0.5
    assert state.shape == (1, 2, 128)
    assert context.shape == (1, 64)


DEADLINE_S = 10


def test_step_repeats_also_after_a_failure(caplog):
    seen: list[str] = []
    enough = threading.Event()

    def run():
        seen.append(threading.current_thread().name)
        if len(seen) == 1:
            raise ValueError("once")
        if len(seen) == 3:
            enough.set()

    periodic = Periodic(0.001, run)
    assert enough.wait(DEADLINE_S)
    periodic.close()
    assert "once" in caplog.text
    assert set(seen) == {"periodic"}


def test_closing_ends_the_thread_without_waiting_for_the_interval():
    periodic = Periodic(3600, lambda: None)
    periodic.close()
    assert not periodic._thread.is_alive()
