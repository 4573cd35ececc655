"""The model as it is configured, opened with fake models around it."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from types import SimpleNamespace

import pytest
from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2

from parley.errors import ModelLoadingError, WeightsNotFoundError
from parley.launcher.options import ROOT
from parley.models import chatterbox
from parley.runtime.parameters import Parameters
from parley.tts.chatterbox.limits import ChatterboxLimits

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
    """Opens the model without a server, ports and grammars; closes it."""
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
        made.append(chatterbox.ChatterboxModel(None, parameters))
        return seen

    yield opened
    for each in made:
        each.close()


def test_both_profiles_ask_and_answer_alike(config):
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
        ({"PARLEY_WEIGHTS_CHATTERBOX": "/nowhere"}, WeightsNotFoundError),
    ],
)
def test_what_cannot_be_loaded(parameters, environment, error):
    with pytest.raises(error):
        chatterbox.ChatterboxModel(None, parameters(**environment))


def test_a_watch_that_fails_is_not_silent(parameters, opened, monkeypatch, caplog):
    failed = threading.Event()

    async def fail(*_):
        asyncio.current_task().add_done_callback(lambda _: failed.set())  # after those of the model
        raise RuntimeError("unexpected")

    monkeypatch.setattr(chatterbox, "wait_for_stop", fail)
    opened(parameters())
    assert failed.wait(5)
    assert "watch for the server's stop failed" in caplog.text
