"""The model: requests in and audio out, its normaliser, its configuration."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from types import SimpleNamespace

import fake_pb_utils
import fake_pb_utils as pb
import numpy as np
import pytest
from chatterbox_fakes import PER_TOKEN, Rig
from google.protobuf import json_format, text_format
from recorded_spans import PARENT, Spans, traceparent
from tritonclient.grpc import model_config_pb2

from parley.errors import (
    InvalidMessageError,
    ModelLoadingError,
    WeightsNotFoundError,
)
from parley.inference import struct_tensor, tensor_struct, text_tensor
from parley.launcher.options import ROOT
from parley.runtime.parameters import Parameters
from parley.triton.model_traces import ModelTraces
from parley.triton.responses import Responder
from parley.tts.messages import AbortSpeech, MoreText, SpeakRequest, SpeechChunk
from parley.tts.normalization.normalizer import TextNormalizer
from parley_torch.models import chatterbox
from parley_torch.models.chatterbox import ChatterboxHandler, ThreadNormalizer
from parley_torch.tts.chatterbox.limits import ChatterboxLimits


class Answers:
    """A responder."""

    def __init__(self):
        self.sent = []
        self.begun = asyncio.Event()

    def send(self, outputs):
        self.sent.append((tensor_struct(outputs["CHUNK"], SpeechChunk), outputs["AUDIO"]))
        self.begun.set()
        return True

    @property
    def samples(self):
        return sum(len(audio) for _, audio in self.sent)


@pytest.fixture
def rig():
    return Rig()


@pytest.fixture
def handle(rig):
    handler = ChatterboxHandler(rig.service, ModelTraces("chatterbox", None))

    async def handle(message):
        answers = Answers()
        await handler(answers, {"REQUEST": struct_tensor(message)})
        return answers

    handle.handler = handler
    return handle


async def test_a_whole_text(handle):
    answers = await handle(SpeakRequest(request_id="a", text="Hello there."))
    assert answers.samples == 24 * PER_TOKEN
    assert {audio.dtype for _, audio in answers.sent} == {np.dtype(np.int16)}
    assert len([mark for chunk, _ in answers.sent for mark in chunk.words]) == 2


async def test_both_models_work_below_the_span_of_the_request(rig):
    spans = Spans()
    handler = ChatterboxHandler(rig.service, ModelTraces("chatterbox", spans.tracing))
    message = SpeakRequest(request_id="a", text="Hello there.", traceparent=PARENT)
    with Responder(pb, pb.Request()) as responder:
        await handler(responder, {"REQUEST": struct_tensor(message)})
    span = spans.one("speak chatterbox")
    assert f"{span.parent.span_id:016x}" == PARENT.split("-")[2]
    asked = [*rig.tokens.requests, *rig.audio.opened]
    assert len(asked) == 2
    assert {request.traceparent for request in asked} == {traceparent(span)}


async def test_texts_without_an_id_are_spoken_at_once(handle):
    both = await asyncio.gather(*(handle(SpeakRequest(text="Hello there.")) for _ in range(2)))
    assert [answers.samples for answers in both] == 2 * [24 * PER_TOKEN]


async def test_text_that_arrives_in_parts(handle):
    answers = Answers()
    request = {"REQUEST": struct_tensor(SpeakRequest(request_id="a", final=False))}
    speaking = asyncio.create_task(handle.handler(answers, request))
    await answers.begun.wait()
    assert (await handle(MoreText(request_id="a", text="Hello", first=0))).sent == []
    with pytest.raises(InvalidMessageError):
        await handle(MoreText(request_id="a", text=" there", first=4))
    assert (await handle(MoreText(request_id="a", text=" there", first=5, final=True))).sent == []
    await speaking
    assert answers.samples == 2 * (len("Hello") + len("there")) * PER_TOKEN


async def test_a_stop(handle, rig):
    rig.tokens.token_s = 1.0
    answers = Answers()
    request = {"REQUEST": struct_tensor(SpeakRequest(request_id="a", text="Hello there."))}
    speaking = asyncio.create_task(handle.handler(answers, request))
    await answers.begun.wait()
    assert (await handle(AbortSpeech(request_id="a"))).sent == []
    await speaking
    assert 0 < answers.samples < 24 * PER_TOKEN
    rig.assert_idle()


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff", b'{"op": "fly"}', b'{"op": "more"}', b"[" * 10_000])
async def test_garbage(handle, raw):
    with pytest.raises(InvalidMessageError):
        await handle.handler(Answers(), {"REQUEST": text_tensor(raw)})


class TestThreadNormalizer:
    """These run threads: real time passes, though the loop's does not."""

    def test_writes_out(self):
        normalizer = ThreadNormalizer(
            TextNormalizer({"en": lambda _: "five"}, tags=False), limit_s=5, on_late=pytest.fail
        )
        spoken = asyncio.run(normalizer.normalize("5", "en"))
        normalizer.close()
        assert spoken.text == "five"

    def test_texts_full_of_figures_take_turns(self):
        seen = []
        normalizer = ThreadNormalizer(
            TextNormalizer({"en": lambda text: seen.append(text) or text}, tags=False),
            limit_s=5,
            on_late=pytest.fail,
        )
        texts = ["1234 " * 24, "abcd5 " * 40]

        async def both():
            return await asyncio.gather(*(normalizer.normalize(text, "en") for text in texts))

        for text, spoken in zip(texts, asyncio.run(both()), strict=True):
            assert spoken.text == text.strip()
            assert [text[word.start : word.end] for word in spoken.words] == text.split()
            assert [word.spoken for word in spoken.words] == text.split()
        normalizer.close()
        assert max(sum(map(str.isdecimal, text)) for text in seen) <= 32
        assert "a" in seen[1] + seen[2], "the second text does not wait for all of the first"

    def test_a_slow_text_is_spoken_as_it_is(self, caplog):
        release = threading.Event()

        def grammar(text):
            release.wait(10)
            return text

        late = []
        normalizer = ThreadNormalizer(
            TextNormalizer({"en": grammar}, tags=False), limit_s=0.01, on_late=lambda: late.append(1)
        )
        spoken = asyncio.run(normalizer.normalize("5 [laugh] cats", "en"))
        release.set()
        normalizer.close()
        assert spoken.text == "5 cats"
        assert len(spoken.words) == 3
        assert "as it is written" in caplog.text
        assert len(late) == 1
        assert "cats" not in caplog.text


FOLDER = ROOT / "model_repository" / "chatterbox"
CONFIGS = [FOLDER / "config.pbtxt", FOLDER / "configs" / "tiny.pbtxt"]


@pytest.fixture(params=CONFIGS, ids=["gpu", "tiny"])
def config(request):
    return text_format.Parse(request.param.read_text(), model_config_pb2.ModelConfig())


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    sys.path.insert(0, str(ROOT / "build"))
    from chatterbox_export.small_t3 import write_small_t3

    folder = tmp_path_factory.mktemp("weights")
    for variant in ("original", "turbo"):
        write_small_t3(folder / variant, variant, layers=1)
    return folder


@pytest.fixture
def parameters(config, tmp_path, weights):
    def make(variant="original", **environment):
        return Parameters.from_args(
            {
                "model_name": "chatterbox",
                "model_repository": str(FOLDER),
                "model_version": "1",
                "model_config": json.dumps(
                    json_format.MessageToDict(config, preserving_proto_field_name=True)
                ),
            },
            environment={"PARLEY_WEIGHTS_CHATTERBOX": str(weights / variant), **environment},
        )

    return make


@pytest.fixture
def opened(monkeypatch):
    """Opens the model without a server, clients and grammars; closes it."""
    made, seen = [], SimpleNamespace(grammars=None, normalizers=[])

    async def never(*_):
        await asyncio.Event().wait()

    def load_grammars(languages, cache):
        seen.grammars = languages
        return {}

    class Port:
        async def close(self):
            pass

    monkeypatch.setattr(chatterbox, "wait_for_stop", never)
    monkeypatch.setattr(chatterbox, "load_grammars", load_grammars)
    monkeypatch.setattr(chatterbox, "make_model_client", lambda *_: Port())
    make_normalizer = chatterbox.TextNormalizer

    def normalizer(grammars, *, tags):
        seen.normalizers.append(make_normalizer(grammars, tags=tags))
        return seen.normalizers[-1]

    monkeypatch.setattr(chatterbox, "TextNormalizer", normalizer)

    def opened(parameters):
        made.append(chatterbox.ChatterboxModel(fake_pb_utils, parameters))
        return seen

    yield opened
    for each in made:
        each.close()


def test_both_profiles_have_the_same_tensors(config):
    assert (config.max_batch_size, config.model_transaction_policy.decoupled) == (0, True)
    assert [entry.name for entry in config.input] == ["REQUEST"]
    assert [entry.name for entry in config.output] == ["CHUNK", "AUDIO"]
    assert sum(group.count for group in config.instance_group) == 1, "an utterance's requests must meet"
    assert config.parameters["optional"].string_value == "true"


def test_every_parameter_is_read(config, parameters, opened):
    """A name with a mistake in it would silently do nothing."""
    asked = set()

    class Noted(Parameters):
        def _raw(self, name):
            asked.add(name)
            return super()._raw(name)

    read = parameters()
    read.__class__ = Noted
    opened(read)
    others = {"optional", "weights", "bls_max_streams"}
    assert set(config.parameters) <= asked | others


@pytest.mark.parametrize(("variant", "text"), [("original", "Well."), ("turbo", "[laugh] Well.")])
def test_turbo_alone_gets_tags(parameters, opened, variant, text):
    seen = opened(parameters(variant))
    assert seen.normalizers[0].normalize("[laugh] Well.", "en").text == text
    assert seen.grammars == ("en",)


def test_settings_are_those_of_the_environment(parameters):
    environment = {
        "PARLEY_CHATTERBOX_IDLE_S": "3",
        "PARLEY_CHATTERBOX_MAX_TEXT": "9",
        "PARLEY_CHATTERBOX_MAX_UTTERANCES": "5",
    }
    limits = ChatterboxLimits.from_parameters(parameters(**environment))
    assert (limits.idle_s, limits.max_text, limits.max_utterances) == (3.0, 9, 5)


@pytest.mark.parametrize(
    ("environment", "error"),
    [
        ({"PARLEY_CHATTERBOX_SAMPLE_RATE": "96000"}, ModelLoadingError),
        ({"PARLEY_CHATTERBOX_EVENT_TOKENS": "0"}, ModelLoadingError),
        ({"PARLEY_CHATTERBOX_SEGMENT_TEXT": "19"}, ModelLoadingError),
        ({"PARLEY_CHATTERBOX_STOP_S": "0.09"}, ModelLoadingError),
        ({"PARLEY_WEIGHTS_CHATTERBOX": "/nowhere"}, WeightsNotFoundError),
    ],
)
def test_unusable_settings(parameters, environment, error):
    with pytest.raises(error):
        chatterbox.ChatterboxModel(fake_pb_utils, parameters(**environment))


def test_a_failed_watch_is_logged(parameters, opened, monkeypatch, caplog):
    failed = threading.Event()

    async def fail(*_):
        asyncio.current_task().add_done_callback(lambda _: failed.set())  # after those of the model
        raise RuntimeError("unexpected")

    monkeypatch.setattr(chatterbox, "wait_for_stop", fail)
    opened(parameters())
    assert failed.wait(5)
    assert "watch for the server's stop failed" in caplog.text
