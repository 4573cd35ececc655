import asyncio
import logging
import os
import threading
from contextlib import aclosing
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import msgspec
import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from parley.agent.config import AgentConfig, AgentDeadlines
from parley.agent.host import Host
from parley.agent.metrics import LLM_FALLBACKS, TTS_FALLBACKS, UNMEASURED, AgentMetrics
from parley.asr.messages import AsrOptions
from parley.chat import ChatMessage
from parley.engines.base import RemoteChat
from parley.engines.openai_chat import OpenAiChatModel
from parley.errors import (
    InferenceError,
    ModelLoadingError,
    UnsupportedLanguageError,
    UnsupportedVersionError,
)
from parley.launcher import liveness
from parley.launcher.liveness import HeartbeatWatch
from parley.launcher.restarts import SupervisorLimits
from parley.llm.messages import GenerateRequest
from parley.metrics import MetricsRecorder
from parley.models.voice_agent import AgentService, check_version, make_embedder, make_engines
from parley.runtime.drain import DRAIN_FILE_VARIABLE, SERVER_START_VARIABLE, ask_to_drain
from parley.runtime.parameters import LOADED_MODELS_VARIABLE, Parameters
from parley.triton import request_loop
from parley.triton.model_control import FOLDER_VARIABLE
from parley.triton.request_loop import heartbeat_path
from parley.tts.messages import SpeakRequest


class SilentPort:
    """Writes down how long each model is waited for; answers nothing."""

    def __init__(self):
        self.timeouts = {}

    async def infer(self, request):
        self.timeouts[request.model] = request.timeout_s
        raise InferenceError("no answer")

    async def stream(self, request):
        self.timeouts.setdefault(request.model, request.timeout_s)  # later ones stop the first
        raise InferenceError("no answer")
        yield


async def ask_all(engines):
    with pytest.raises(InferenceError):
        await engines.recognizer("stream", "", "").start(AsrOptions())
    chat = GenerateRequest(request_id="c", messages=[ChatMessage(role="user", content="hello")])
    for answer in (
        engines.chat.generate(chat),
        engines.synthesizer.speak(SpeakRequest(request_id="s", text="hello")),
    ):
        async with aclosing(answer):
            with pytest.raises(InferenceError):
                await anext(answer)


@pytest.mark.parametrize(("asr_s", "llm_s", "tts_s"), [(0.5, 0.6, 0.7), (100.0, 200.0, 300.0)])
async def test_no_engine_gives_up_before_the_agent_does(asr_s, llm_s, tts_s):
    port = SilentPort()
    await ask_all(
        make_engines(
            AgentConfig(deadlines=AgentDeadlines(asr_s=asr_s, llm_s=llm_s, tts_s=tts_s)),
            port,
            UNMEASURED,
        )
    )
    margins = {"parakeet_tdt": asr_s, "qwen3": llm_s, "espeak": tts_s}
    for model, deadline_s in margins.items():
        assert deadline_s < port.timeouts[model] <= deadline_s + 5


@pytest.mark.parametrize("kind", ["asr", "llm", "tts", "turn"])
def test_an_engine_that_does_not_exist_is_named(kind):
    with pytest.raises(ModelLoadingError, match="no engine 'nope'"):
        make_engines(AgentConfig(**{kind: ("nope",) if kind != "turn" else "nope"}), SilentPort(), UNMEASURED)


async def test_synthesizers_replace_each_other():
    port, metrics = SilentPort(), MetricsRecorder((TTS_FALLBACKS,))
    agent_metrics = AgentMetrics(instance="", goal_ms=1_000.0, metrics=metrics)
    config = AgentConfig(tts=("chatterbox",), tts_fallback=("espeak",))
    synthesizer = make_engines(config, port, agent_metrics).synthesizer
    with pytest.raises(InferenceError):
        _ = [piece async for piece in synthesizer.speak(SpeakRequest(request_id="s", text="hello"))]
    assert {"chatterbox", "espeak"} <= set(port.timeouts)
    labels = {"from_engine": "chatterbox", "to_engine": "espeak", "reason": "inference_failed"}
    assert metrics.drain().counts[TTS_FALLBACKS, tuple(labels.items())] == 1


async def test_language_models_replace_each_other():
    metrics = MetricsRecorder((LLM_FALLBACKS,))
    agent_metrics = AgentMetrics(instance="", goal_ms=1_000.0, metrics=metrics)
    config = AgentConfig(
        llm=("openai_chat", "qwen3"),
        llm_weights=("large", ""),
        remote_chat=RemoteChat("http://127.0.0.1:9", "m"),
    )
    chat = make_engines(config, SilentPort(), agent_metrics).chat
    with pytest.raises(InferenceError, match="no answer"):
        _ = [event async for event in chat.generate(GenerateRequest(messages=[]))]
    labels = {"from_model": "large", "to_model": "qwen3", "reason": "model_unavailable"}
    assert metrics.drain().counts[LLM_FALLBACKS, tuple(labels.items())] == 1
    await chat.close()


def test_language_model_that_is_named_twice_or_absent_is_not_asked():
    with pytest.raises(ModelLoadingError, match="a language model is named twice: qwen3, qwen3"):
        make_engines(AgentConfig(llm=("qwen3", "qwen3")), SilentPort(), UNMEASURED)
    config = AgentConfig(llm=("openai_chat", "qwen3"), absent_models={"qwen3": "it is not loaded"})
    remote = msgspec.structs.replace(config, remote_chat=RemoteChat("http://127.0.0.1:9", "m"))
    assert isinstance(make_engines(remote, SilentPort(), UNMEASURED).chat, OpenAiChatModel)


def settings_of(tts, fallback="", loaded=None):
    environment = {} if loaded is None else {"PARLEY_LOADED_MODELS": loaded}
    values = {"tts": tts, "tts_fallback": fallback}
    return AgentConfig.from_parameters(Parameters("voice_agent", values, environment=environment))


async def asked_for(config, voice):
    """The models that are asked to speak with a voice, all of which fail."""
    port = SilentPort()
    synthesizer = make_engines(config, port, UNMEASURED).synthesizer
    with pytest.raises(InferenceError):
        _ = [piece async for piece in synthesizer.speak(SpeakRequest(request_id="s", text="hi", voice=voice))]
    return list(port.timeouts)


async def test_the_synthesizer_that_has_the_voice_speaks_and_has_its_own_fallbacks():
    config = settings_of("espeak, chatterbox", "chatterbox,espeak")
    assert await asked_for(config, None) == ["espeak", "chatterbox"]
    assert await asked_for(config, "woman-1") == ["espeak", "chatterbox"]
    assert await asked_for(config, "anna") == ["chatterbox", "espeak"]


def open_profile():
    file = Path(__file__).parents[3] / "model_repository/voice_agent/configs/open.pbtxt"
    config = text_format.Parse(file.read_text(), ModelConfig())
    return [config.parameters[name].string_value for name in ("tts", "tts_fallback")]


OPEN, OPEN_FALLBACK = open_profile()


@pytest.mark.parametrize(
    ("tts", "fallback", "loaded", "asked"),
    [
        # One that is not loaded is left out unless it is the only one.
        ("chatterbox,espeak", "", "voice_agent,espeak", ["espeak"]),
        ("chatterbox,espeak", "", "espeak,chatterbox", ["chatterbox"]),
        ("chatterbox,espeak", "", None, ["chatterbox"]),
        ("chatterbox", "", "voice_agent", ["chatterbox"]),
        # Its fallbacks speak where no other one is loaded.
        ("chatterbox", "kokoro,piper,espeak", "voice_agent,espeak,piper", ["piper", "espeak"]),
        ("chatterbox", "kokoro,piper,espeak", "voice_agent,espeak,chatterbox", ["chatterbox", "espeak"]),
        # One that is also a fallback is not its own: another default voice needs no other list.
        ("espeak", "kokoro,piper,espeak", "espeak,piper", ["espeak", "piper"]),
        # The profile open replaces a voice by the other loaded one before espeak.
        (OPEN, OPEN_FALLBACK, "piper,kokoro,espeak", ["piper", "kokoro", "espeak"]),
        ("kokoro,piper", OPEN_FALLBACK, "piper,kokoro,espeak", ["kokoro", "piper", "espeak"]),
        (OPEN, OPEN_FALLBACK, "piper,espeak", ["piper", "espeak"]),
    ],
)
async def test_synthesizers_are_asked_in_order_without_unloaded_ones(tts, fallback, loaded, asked):
    assert await asked_for(settings_of(tts, fallback, loaded), None) == asked


def test_list_of_synthesizers_with_a_duplicate_is_refused():
    for config in (settings_of("espeak,espeak"), settings_of("espeak,chatterbox", "espeak,espeak")):
        with pytest.raises(ModelLoadingError, match="twice"):
            make_engines(config, SilentPort(), UNMEASURED)


class Deaf:
    """Understands English only, whatever the model."""

    def __init__(self):
        self.asked = []

    async def infer(self, request):
        self.asked.append(request.model)
        raise UnsupportedLanguageError("only en")


@pytest.mark.parametrize(
    ("loaded", "first", "last", "asked"),
    [
        ("voice_agent,whisper,moonshine", "", "", ["moonshine", "whisper"]),
        ("voice_agent,whisper,moonshine", "whisper", "", ["whisper", "moonshine"]),
        ("voice_agent,whisper,moonshine", "", "moonshine", ["whisper", "moonshine"]),
        ("voice_agent,whisper", "", "", ["whisper"]),
        (None, "", "", ["moonshine", "whisper"]),
    ],
)
async def test_recognisers_are_asked_in_order_without_unloaded_ones(loaded, first, last, asked):
    environment = {} if loaded is None else {"PARLEY_LOADED_MODELS": loaded}
    parameters = Parameters("voice_agent", {"asr": "moonshine, whisper"}, environment=environment)
    port = Deaf()
    engines = make_engines(AgentConfig.from_parameters(parameters), port, UNMEASURED)
    recognizer = engines.recognizer("stream", first, last)
    with pytest.raises(UnsupportedLanguageError):
        await recognizer.check(AsrOptions(language="es"))
    assert port.asked == asked


def test_a_recogniser_may_be_named_once_and_must_exist():
    for names, words in (
        (("whisper", "whisper"), "recogniser is named twice"),
        (("whisper", "x"), "no engine 'x'"),
    ):
        with pytest.raises(ModelLoadingError, match=words):
            make_engines(AgentConfig(asr=names), SilentPort(), UNMEASURED)


def make_service(values=None, environment=None, **triton):
    """A service with these parameters in a process of Triton."""
    usual = {
        "InferenceRequest": MagicMock(),
        "TritonModelException": LookupError,
        "MetricFamily": MagicMock(),
    }
    parameters = Parameters("voice_agent", values or {}, environment=environment or {})
    return AgentService(SimpleNamespace(**usual | triton), parameters)


@pytest.fixture
def serve():
    services = []

    def make(**options):
        services.append(make_service(**options))
        return services[-1]

    yield make
    for service in services:
        service.close()


class Records(logging.Handler):
    """Keeps what is logged, and notices when a record has the words ``awaited``."""

    def __init__(self, awaited):
        super().__init__()
        self.awaited, self.came = awaited, threading.Event()

    def emit(self, record):
        if self.awaited in record.getMessage():
            self.came.set()


def test_a_watch_that_fails_is_not_silent(serve):
    def refuse(**_):
        raise RuntimeError("unexpected")

    records = Records("watch for the server's stop")
    logger = logging.getLogger("parley.timeouts")
    logger.addHandler(records)
    try:
        serve(InferenceRequest=refuse)
        assert records.came.wait(5)
    finally:
        logger.removeHandler(records)


def test_connections_to_a_chat_server_end_with_the_service(monkeypatch):
    closed = []

    async def close(chat):
        closed.append(chat)

    monkeypatch.setattr(OpenAiChatModel, "close", close)
    make_service({"llm": "openai_chat", "llm_url": "http://127.0.0.1:9/v1", "llm_model": "m"}).close()
    assert closed
    assert all(isinstance(chat, OpenAiChatModel) for chat in closed)


class Request:
    """A request of a client, as far as the service reads it before the host does."""

    def flags(self):
        return 0

    def inputs(self):
        return []

    def correlation_id(self):
        return "call"

    def request_id(self):
        return ""

    def get_response_sender(self):
        return MagicMock()


class WatchedHost:
    """Handles requests, each of which takes 70 seconds of a clock and all of a processor.

    Before each and in the last one the launcher looks at the heartbeat.
    """

    def __init__(self, folder, requests):
        self.now = 0.0
        self.silent = []
        self.over = threading.Event()
        self._folder = folder
        self._left = requests
        self._watch = HeartbeatWatch(folder, os.getpid(), SupervisorLimits(silent_s=8.0, working_s=60.0))

    def demand_s(self, _processes):
        return self.now

    def look(self):
        return self._watch.is_silent(self.now)

    def handle(self, _incoming, outlet):
        self.silent.append(self.look())
        os.utime(heartbeat_path(self._folder, os.getpid()), ns=(0, 0))  # so that the next touch is seen
        self.look()
        self._left -= 1
        for passed_s in (5.0, 65.0):
            self.now += passed_s
            if not self._left:
                self.silent.append(self.look())
        outlet.finish()
        if not self._left:
            self.over.set()


def test_event_loop_with_a_backlog_is_alive_and_one_held_by_a_request_is_not(serve, tmp_path, monkeypatch):
    host = WatchedHost(tmp_path, requests=5)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setattr(request_loop, "time", SimpleNamespace(monotonic=lambda: host.now))
    monkeypatch.setattr(liveness, "processor_demand_s", host.demand_s)
    monkeypatch.setattr(Host, "handle", host.handle)
    service = serve(TRITONSERVER_REQUEST_FLAG_SEQUENCE_START=1, TRITONSERVER_REQUEST_FLAG_SEQUENCE_END=2)
    service.submit(Request() for _ in range(5))
    assert host.over.wait(10)
    assert host.silent == [False] * 6 + [True]


@pytest.mark.parametrize(("written_s", "accepts"), [(1_000.0, True), (3_000.0, False)])
async def test_a_drain_file_of_the_container_before_drains_nothing(
    serve, tmp_path, monkeypatch, written_s, accepts
):
    file = tmp_path / "drain.json"
    ask_to_drain(file, 60.0)
    os.utime(file, (written_s, written_s))
    drained = threading.Event()
    monkeypatch.setattr(Host, "drain", lambda *_: drained.set())
    serve(environment={DRAIN_FILE_VARIABLE: str(file), SERVER_START_VARIABLE: "2000"})
    if accepts:
        await asyncio.sleep(0.1)
    else:
        assert await asyncio.to_thread(drained.wait, 5)
    assert drained.is_set() != accepts


class FakeHost:
    def __init__(self):
        self.refusals = []

    def refuse(self, error):
        self.refusals.append(error)


@pytest.mark.parametrize(
    ("oldest", "environment", "refused"),
    [
        ("2.71.0", {}, "Triton is 2.51.0; 2.71.0 or later"),
        ("2.71.0", {"TRITON_SERVER_VERSION": "2.75.0"}, "Triton is 2.51.0; 2.71.0 or later"),
        ("2.71.0", {"PARLEY_ANY_VERSION": "true"}, ""),
        ("2.51.0", {}, ""),
    ],
)
def test_sessions_are_refused_by_the_version_of_the_server_s_metadata(oldest, environment, refused):
    host = FakeHost()
    check_version(host, oldest, environment, "2.51.0")
    (refusal,) = host.refusals
    if refused:
        assert isinstance(refusal, UnsupportedVersionError)
        assert refused in str(refusal)
    else:
        assert refusal is None


@pytest.mark.parametrize(
    ("embedder", "loaded", "has_one", "logged"),
    [
        ("embeddings", "qwen3,embeddings", True, ""),
        ("embeddings", "qwen3", False, "without embeddings, documents are searched by words alone"),
        ("none", "qwen3,embeddings", False, ""),
    ],
)
def test_documents_are_searched_by_words_alone_without_the_embedder(
    embedder, loaded, has_one, logged, caplog
):
    parameters = Parameters("voice_agent", {}, environment={LOADED_MODELS_VARIABLE: loaded})
    found = make_embedder(parameters, AgentConfig(embedder=embedder), SilentPort())
    assert (found is not None) == has_one
    assert logged in caplog.text
    assert bool(caplog.text) == bool(logged)
