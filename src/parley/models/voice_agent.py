"""``voice_agent`` between Triton and :class:`parley.agent.host.Host`."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import shutil
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from parley.agent.config import NO_MODEL, AgentConfig, why_absent
from parley.agent.defined_agents import AgentOpener
from parley.agent.headroom import CallBoard, Headroom, open_board
from parley.agent.host import Host, Incoming, SessionId
from parley.agent.metrics import FAMILIES, GPU_MEMORY, STORAGE, AgentMetrics
from parley.agent.ports import Engines, Scoring
from parley.agents.registry import AgentRegistry, agents_folder
from parley.calls.folder import open_calls
from parley.calls.writing import CallWriter
from parley.engines.base import ChatModel, Closable, Embedder, Recognizer, SpeakerModel, Synthesizer
from parley.engines.chat_fallback import NamedChat, join_chats
from parley.engines.recognizers import RoutedRecognizer
from parley.engines.registry import (
    CHAT_MODELS,
    EMBEDDERS,
    RECOGNIZERS,
    REMOTE_CHAT,
    SPEAKER_MODELS,
    SYNTHESIZERS,
    TURN_MODELS,
    find_engine,
)
from parley.engines.speech_fallback import FallbackLimits, FallbackSynthesizer, RoutedSynthesizer
from parley.errors import (
    InferenceError,
    ModelLoadingError,
    ModelUnavailableError,
    ShuttingDownError,
    UnsupportedVersionError,
)
from parley.inference import (
    ModelClient,
    ModelRequest,
    ModelResponse,
    SequenceFlags,
    Tensor,
    struct_tensor,
    tensor_bytes,
    text_tensor,
)
from parley.metrics import MetricsRecorder
from parley.protocol import ServerEvent
from parley.replay.course import SteppedLoop
from parley.replay.recording import CallLogs
from parley.runtime.drain import DRAIN_FILE_VARIABLE, follow_drain, server_start_ns
from parley.runtime.gpu_memory import record_gpu_memory
from parley.runtime.parameters import Parameters
from parley.runtime.versions import check_triton
from parley.timeouts import failure_of, first_to_end, log_failure
from parley.tracing import open_tracing
from parley.triton.model_client import TritonModelClient, make_model_client
from parley.triton.model_metrics import ModelMetrics
from parley.triton.request_loop import Heartbeat, LoopThread, wait_for_stop
from parley.triton.response_thread import ResponseThread
from parley.triton.responses import Responder, read_tensors
from parley.triton.server_watch import wait_for_closed_endpoint

if TYPE_CHECKING:
    from parley.tools.toolbox import Toolbox

_OPEN_S = 30.0
_CLOSE_S = 10.0
_WRITE_S = 3.0
"""For what recordings have not written yet."""
_LAST_S = 0.5  # for each thread, where that is over
# The agent keeps its deadlines itself: an engine's own must not come before them.
_ENGINE_MARGIN_S = 2.0
_EMBED_S = 10.0
_log = logging.getLogger(__name__)


class AgentService:
    """Runs all conversations of one model instance on an event loop of its own."""

    def __init__(self, pb_utils: Any, parameters: Parameters) -> None:
        self._pb = pb_utils
        self._model = parameters.model
        # Its clock is less exact, which only recorded calls need.
        make_loop = SteppedLoop if parameters.text("record_debug", "") else asyncio.new_event_loop
        self._loop = LoopThread("conversations", make_loop)
        # Events do not wait behind the ends of requests, of which every chunk of audio has one.
        self._event_thread = ResponseThread("events")
        self._end_thread = ResponseThread("ends of requests")
        self._client: TritonModelClient
        self._host: Host
        self._server_tools: Toolbox | None = None
        self._agents: AgentRegistry | None = None
        self._chat: ChatModel
        self._watch: asyncio.Task[None]
        self._heartbeat = Heartbeat()
        self._beating: asyncio.Task[None]
        self._drain: asyncio.Task[None] | None = None
        self._served = False
        self._is_loading = True
        self._loop.run(self._open(parameters), _OPEN_S)
        self._is_loading = False

    def submit(self, requests: Iterable[Any]) -> None:
        """Take over Triton's requests; called by ``execute``."""
        self._served = True
        for request in requests:
            start = request.flags() & self._pb.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START
            responder = Responder(self._pb, request, thread=self._event_thread if start else self._end_thread)
            try:
                # Copied now: the tensors are gone when execute returns.
                incoming = _read(self._pb, request)
                self._loop.call(self._handle, incoming, responder)
            except Exception as error:  # noqa: BLE001 - logged and answered
                _log.exception("a request was not understood")
                responder.fail(error)

    def close(self) -> None:
        """End all conversations and stop."""
        end = time.monotonic() + _CLOSE_S
        try:
            self._loop.run(self._close(), _CLOSE_S)
        except TimeoutError:
            _log.exception("conversations did not end within %g s", _CLOSE_S)
        finally:
            for stop in (self._event_thread.close, self._end_thread.close, self._loop.stop):
                stop(max(_LAST_S, end - time.monotonic()))

    async def _open(self, parameters: Parameters) -> None:
        config = AgentConfig.from_parameters(parameters)
        _report_absent(config)
        self._client = make_model_client(self._pb, parameters)
        self._metrics = ModelMetrics(self._pb, parameters, FAMILIES)
        recorder = self._metrics.recorder
        self._headroom = make_headroom(config, parameters.instance)
        agent_metrics = AgentMetrics(
            instance=parameters.instance,
            goal_ms=config.answer_goal_ms,
            metrics=recorder,
            on_answer=self._headroom.on_answer,
        )
        engines = make_engines(config, self._client, agent_metrics)
        self._chat = engines.chat
        self._server_tools = await _open_tools(parameters, config)
        self._tracing = open_tracing("parley-voice-agent", parameters.environment)
        engines = dataclasses.replace(
            engines,
            speaker=make_speaker(parameters, config, self._client, agent_metrics),
            server_tools=self._server_tools,
            tracing=self._tracing,
        )
        loaded = _LoadedClient(self._client, lambda: self._is_loading)
        self._agents = await _open_agents(
            parameters,
            engines,
            config,
            self._client,
            agent_metrics,
            embedder=make_embedder(parameters, config, loaded),
        )
        calls = open_calls(parameters.repository.parent / config.calls, config.calls_store, config.calls_list)
        self._calls = CallWriter(calls, agent_metrics.on_recording)
        engines = dataclasses.replace(engines, agents=self._agents, calls=self._calls)
        open_session = None
        if config.record_debug:
            logs = CallLogs(parameters.repository.parent / config.record_debug, self._calls)
            open_session = logs.open_session
        self._host = Host(
            engines, config, self._release, agent_metrics, self._headroom, open_session=open_session
        )
        self._check_version = partial(
            check_version, self._host, parameters.text("oldest_triton", ""), parameters.environment
        )
        if parameters.text("oldest_triton", ""):
            self._host.refuse(ModelUnavailableError("the version of the server is not known yet"))
        recorder.collect_with(self._host.record_sessions)
        recorder.collect_with(lambda: agent_metrics.set_spool(calls.spool_bytes, len(calls.refused)))
        recorder.collect_with(partial(record_gpu_memory, recorder, GPU_MEMORY))
        recorder.collect_with(partial(_record_storage, recorder))
        self._watch = asyncio.create_task(self._follow_server(), name="watch for the server's stop")
        self._watch.add_done_callback(log_failure)
        self._beating = asyncio.create_task(self._heartbeat.run(), name="heartbeat")
        self._beating.add_done_callback(log_failure)
        if drain_file := parameters.environment.get(DRAIN_FILE_VARIABLE):
            drain = follow_drain(
                Path(drain_file),
                self._host.drain,
                self._host.end_drain,
                started_ns=server_start_ns(parameters.environment),
            )
            self._drain = asyncio.create_task(drain, name="drain")
            self._drain.add_done_callback(log_failure)

    async def _close(self) -> None:
        self._watch.cancel()
        if self._drain is not None:
            self._drain.cancel()
        self._metrics.close()
        await self._host.close()
        self._beating.cancel()
        await self._close_engines()
        self._headroom.close()
        await self._client.close()

    async def _follow_server(self) -> None:
        is_open = await self._wait_for_stop()
        await self._host.shut_down(clients_can_end=is_open)
        await self._host.wait_until_released()
        # A model that has a stream to itself is never unloaded, so this cannot wait for `close`.
        await self._close_engines()
        await self._client.close()

    async def _wait_for_stop(self) -> bool:
        """Return when the server stops: whether its gRPC endpoint is still open."""
        async with first_to_end(
            wait_for_stop(self._pb, self._model, lambda: self._served),
            wait_for_closed_endpoint(self._client.server_version, self._check_version, lambda: self._served),
        ) as (stopping, closed):
            pass
        for watch in (stopping, closed):
            if failure := failure_of(watch):
                raise failure
        return closed.cancelled()

    async def _close_engines(self) -> None:
        await asyncio.to_thread(self._calls.close, _WRITE_S)
        if self._agents is not None:
            await self._agents.close()
        if self._server_tools is not None:
            await self._server_tools.close()
        if isinstance(self._chat, Closable):
            await self._chat.close()
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.close)

    def _handle(self, incoming: Incoming, responder: Responder) -> None:
        self._heartbeat.on_progress()
        try:
            self._host.handle(incoming, TritonOutlet(responder))
        except Exception as error:  # noqa: BLE001 - logged and answered
            _log.exception("request of session %s failed", incoming.session_id)
            responder.fail(error)

    async def _release(self, session_id: SessionId, request_id: str) -> None:
        """Send the END that the client never sent: until then the sequence keeps its place."""
        request = ModelRequest(
            self._model,
            {"MESSAGE": text_tensor(b"", batched=True)},
            ("EVENT",),
            request_id=request_id,
            sequence=SequenceFlags(session_id, end=True),
            frees=True,
        )
        try:
            await _last_response(self._client, request)
        except (ModelUnavailableError, ShuttingDownError):
            await self._client.end_decoupled(request)


def check_version(host: Host, oldest: str, environment: Mapping[str, str], version: str) -> None:
    """Let ``host`` refuse sessions of a Triton that is older than ``oldest``, and accept them otherwise."""
    if not oldest:
        return
    try:
        check_triton(oldest, version, environment)
    except UnsupportedVersionError as error:
        _log.error("sessions are refused: %s", error)
        host.refuse(error)
    else:
        host.refuse(None)


def make_headroom(config: AgentConfig, instance: str) -> Headroom:
    """What says whether there is room for one more call."""
    is_remote = any(engine == REMOTE_CHAT for engine, _ in config.chat_models)
    p95_ms = config.answer_goal_ms if config.refuse_when_late and not is_remote else None
    is_limited = p95_ms is not None or config.max_calls
    return Headroom(
        open_board(instance) if is_limited else CallBoard(),
        p95_ms=p95_ms,
        most=config.max_calls,
        typical_call_s=config.typical_call_s,
    )


def make_engines(config: AgentConfig, client: ModelClient, metrics: AgentMetrics) -> Engines:
    """The engines that the settings name, on ``client``; their failures and times go to ``metrics``.

    Raises:
        ModelLoadingError: there is no engine of such a name, or a recogniser or synthesizer is named twice.
    """
    limits = config.deadlines
    turn = None
    if config.turn != NO_MODEL:
        make_turn_model = find_engine(TURN_MODELS, config.turn)
        model = make_turn_model(client, timeout_s=limits.turn_s + _ENGINE_MARGIN_S)
        turn = Scoring(model, metrics.on_pause_unscored)
    return Engines(
        make_recognizers(config, client, timeout_s=limits.asr_s + _ENGINE_MARGIN_S),
        make_chat(config, client, metrics, timeout_s=limits.llm_s + _ENGINE_MARGIN_S),
        make_synthesizer(config, client, metrics, timeout_s=limits.tts_s + _ENGINE_MARGIN_S),
        turn,
        metrics.on_preemptive_answer,
        reads_turns=config.turn_text == "llm" and config.chat_models[0][0] != REMOTE_CHAT,
    )


def make_chat(
    config: AgentConfig, client: ModelClient, metrics: AgentMetrics, *, timeout_s: float
) -> ChatModel:
    """The language models that the settings name, as one; ``timeout_s`` limits the wait for each event.

    Raises:
        ModelLoadingError: there is no language model of such a name, or one is named twice.
    """
    _check_once(config.llm, "language model")
    makers = {engine: find_engine(CHAT_MODELS, engine) for engine in config.llm}
    models = [
        NamedChat(name, makers[engine](client, timeout_s=timeout_s, remote=config.remote_chat))
        for engine, name in config.chat_models
    ]
    return join_chats(models, config.chat_fallback, metrics.on_llm_fallback)


def make_recognizers(
    config: AgentConfig, client: ModelClient, *, timeout_s: float
) -> Callable[[str, str, str], Recognizer]:
    """Makes a recogniser for a stream of a given name, of those that the settings name.

    The other arguments are the models that are asked first and last, instead of in the order of the settings;
    empty: none.
    ``timeout_s`` limits the wait for each reply.

    Raises:
        ModelLoadingError: there is no recogniser of such a name, or one is named twice.
    """
    _check_once(config.asr, "recogniser")
    makers = {name: find_engine(RECOGNIZERS, name) for name in config.asr}
    chosen = [makers[name] for name in config.recognizers]
    streams = SequenceEndingClient(client)

    def make(stream: str, first: str, last: str) -> Recognizer:
        # Sequences of different models may have the same id.
        recognizers = [own(streams, stream, timeout_s=timeout_s) for own in chosen]
        if len(recognizers) == 1:
            return recognizers[0]
        return RoutedRecognizer(recognizers, limit_s=config.deadlines.asr_s, first=first, last=last)

    return make


def _report_absent(config: AgentConfig) -> None:
    absent = config.absent_models
    for models in (config.asr, config.llm, (*config.tts, *config.tts_fallback)):
        reasons = {model: absent[model] for model in models if model in absent}
        refuses = len(reasons) == len(models)
        for model, reason in reasons.items():
            if refuses:
                _log.error("sessions are refused, because %s cannot be used: %s", model, reason)
            else:
                _log.warning("without %s: %s", model, reason)


async def _open_tools(parameters: Parameters, config: AgentConfig) -> Toolbox | None:
    """The tools of the file that the settings name, if they name one.

    Raises:
        ModelLoadingError: the file cannot be used.
    """
    file = parameters.text("tools_file", "")
    if not file:
        return None
    from parley.tools.toolbox import open_toolbox  # noqa: PLC0415 - imports an HTTP client, which few agents need

    # The client's own tools, the conversation and the answer need the rest.
    limit = config.prompt_tokens // 4
    return await open_toolbox(parameters.repository.parent / Path(file), parameters.environment, limit)


class _LoadedClient:
    """Refuses calls while this model is loaded: Triton takes none of them before."""

    def __init__(self, client: ModelClient, is_loading: Callable[[], bool]) -> None:
        self._client = client
        self._is_loading = is_loading

    async def infer(self, request: ModelRequest) -> ModelResponse:
        """The single response of a model that is not decoupled."""
        if self._is_loading():
            raise ModelUnavailableError(f"{request.model} cannot be called yet: voice_agent is being loaded")
        return await self._client.infer(request)

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelResponse, None]:
        """The responses of a decoupled model."""
        return self._client.stream(request)

    async def close(self) -> None:
        """Does nothing: the caller owns the client."""


def make_embedder(parameters: Parameters, config: AgentConfig, client: ModelClient) -> Embedder | None:
    """What represents documents by vectors; None: it cannot be used, which is logged.

    Raises:
        ModelLoadingError: there is no such engine, or ``knowledge_store`` cannot be used.
    """
    if config.embedder == NO_MODEL:
        return None
    if reason := why_absent(parameters, config.embedder):
        _log.warning("without %s, documents are searched by words alone: %s", config.embedder, reason)
        return None
    embedder = find_engine(EMBEDDERS, config.embedder)(client, timeout_s=_EMBED_S)
    if not config.knowledge_store:
        return embedder
    from parley.engines.shared_embeddings import SharedEmbedder  # noqa: PLC0415 - imports a client of PostgreSQL

    return SharedEmbedder(embedder, config.knowledge_store)


def make_speaker(
    parameters: Parameters, config: AgentConfig, client: ModelClient, metrics: AgentMetrics
) -> Scoring[SpeakerModel] | None:
    """What represents voices; None: it cannot be used, which is logged.

    Raises:
        ModelLoadingError: there is no such engine.
    """
    if config.speaker == NO_MODEL:
        return None
    if reason := why_absent(parameters, config.speaker):
        _log.log(
            logging.WARNING if config.one_caller else logging.DEBUG,
            "without %s, all speech is the caller's: %s",
            config.speaker,
            reason,
        )
        return None
    make = find_engine(SPEAKER_MODELS, config.speaker)
    model = make(client, timeout_s=config.deadlines.turn_s + _ENGINE_MARGIN_S)
    return Scoring(model, metrics.on_voice_unjudged)


async def _open_agents(
    parameters: Parameters,
    engines: Engines,
    config: AgentConfig,
    client: ModelClient,
    metrics: AgentMetrics,
    *,
    embedder: Embedder | None,
) -> AgentRegistry | None:
    """The agents of the folder that the settings name, or of ``agents`` beside the model repository.

    Raises:
        ModelLoadingError: the settings name a folder that is not there, or it has too many agents.
    """
    folder = agents_folder(parameters.repository, config.agents)
    if not folder.is_dir():
        if config.agents:
            raise ModelLoadingError(f"the folder of agents {folder} is not there")
        return None
    opener = AgentOpener(
        engines.synthesizer,
        engines.server_tools,
        config,
        parameters,
        client,
        on_fallback=metrics.on_llm_fallback,
        llm_timeout_s=config.deadlines.llm_s + _ENGINE_MARGIN_S,
        on_webhook=metrics.on_webhook,
        embedder=embedder,
    )
    registry = AgentRegistry(folder, opener.open)
    await registry.open()
    return registry


class SequenceEndingClient:
    """Ends open sequences in a way that a stopping server still allows.

    From the moment at which it stops, Triton 24.10 refuses ordinary in-process calls, the END of a
    sequence among them; it then waits for exactly that END until its exit timeout. Streams go
    over gRPC, where the requests of open sequences are still accepted. A later Triton closes gRPC first:
    there the END goes in process.

    Args:
        client: carries all calls; its streams also serve models that answer once.
    """

    def __init__(self, client: ModelClient) -> None:
        self._client = client

    async def infer(self, request: ModelRequest) -> ModelResponse:
        """The single response of a model that is not decoupled."""
        if request.sequence is not None and request.sequence.end and not request.sequence.start:
            try:
                last = await _last_response(self._client, request)
            except (ModelUnavailableError, ShuttingDownError):
                return await self._client.infer(request)
            if not last:
                raise InferenceError(f"{request.model} ended its stream without an answer")
            return last
        return await self._client.infer(request)

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelResponse, None]:
        """The responses of a decoupled model."""
        return self._client.stream(request)

    async def close(self) -> None:
        """Does nothing: the caller owns the client."""


async def _last_response(client: ModelClient, request: ModelRequest) -> ModelResponse:
    last: ModelResponse = {}
    async with aclosing(client.stream(request)) as responses:
        async for response in responses:
            last = response
    return last


class TritonOutlet:
    """:class:`parley.agent.ports.Outlet` on one Triton request."""

    def __init__(self, responder: Responder) -> None:
        self._responder = responder

    def send(self, event: ServerEvent, audio: NDArray[np.int16] | None = None) -> None:
        """Send one event: ``EVENT`` [1, 1], and ``AUDIO`` [1, n] if there is audio."""
        outputs: dict[str, Tensor] = {"EVENT": struct_tensor(event, batched=True)}
        if audio is not None:
            outputs["AUDIO"] = audio.reshape(1, -1)
        self._responder.send(outputs)

    def finish(self, last: ServerEvent | None = None) -> None:
        """End the session's responses; ``last`` is sent together with the end."""
        if last is None:
            self._responder.finish()
        else:
            self._responder.answer({"EVENT": struct_tensor(last, batched=True)})

    async def is_cancelled(self) -> bool:
        """Whether the client has disconnected."""
        return await self._responder.is_cancelled()


def _read(pb_utils: Any, request: Any) -> Incoming:
    tensors: Mapping[str, Tensor] = read_tensors(request.inputs())
    message, audio = tensors.get("MESSAGE"), tensors.get("AUDIO")
    flags = request.flags()
    return Incoming(
        session_id=request.correlation_id(),
        message=b"" if message is None else tensor_bytes(message),
        audio=b"" if audio is None else audio.tobytes(),
        start=bool(flags & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START),
        end=bool(flags & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END),
        request_id=request.request_id(),
    )


def make_synthesizer(
    config: AgentConfig, client: ModelClient, metrics: AgentMetrics, *, timeout_s: float
) -> Synthesizer:
    """The synthesizers that the settings name, as one that has the voices of all.

    ``timeout_s`` limits the wait for each engine's first audio and each next piece.

    Raises:
        ModelLoadingError: there is no synthesizer of such a name, or one is named twice.
    """
    _check_once(config.tts, "synthesizer")
    _check_once(config.tts_fallback, "synthesizer")
    fallbacks = _present(config.tts_fallback, config.absent_models)
    names = _present(config.tts, config.absent_models) or fallbacks or config.tts
    engines = {
        name: find_engine(SYNTHESIZERS, name)(client, timeout_s=timeout_s) for name in (*names, *fallbacks)
    }
    limits = FallbackLimits(
        first_audio_s=config.deadlines.tts_first_audio_s,
        # The agent itself waits for `tts_s`: a replacement must have time to begin before that.
        next_audio_s=config.deadlines.tts_s / 2,
        abort_s=config.deadlines.abort_s,
    )

    def with_fallback(name: str) -> Synthesizer:
        chain = [name, *(other for other in fallbacks if other != name)]
        lineup = [(one, engines[one]) for one in chain]
        return FallbackSynthesizer(lineup, limits, metrics.on_tts_fallback)

    return RoutedSynthesizer([(name, with_fallback(name)) for name in names], metrics.on_first_audio)


def _present(names: Sequence[str], absent: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(name for name in names if name not in absent)


def _check_once(names: Sequence[str], kind: str) -> None:
    if len(set(names)) < len(names):
        raise ModelLoadingError(f"a {kind} is named twice: {', '.join(names)}")


def _record_storage(metrics: MetricsRecorder) -> None:
    """Record what is free of the folders without which models fail: shared memory and temporary files."""
    for folder in ("/dev/shm", tempfile.gettempdir()):  # noqa: S108 - looked at, not written to
        with suppress(OSError, ZeroDivisionError):  # a file system without a limit has no size
            usage = shutil.disk_usage(folder)
            metrics.set(STORAGE, usage.free / usage.total, folder=folder)
