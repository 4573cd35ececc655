"""The canary of each model of the repository, and what its answer has to be."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from parley.asr.messages import AsrOptions, AsrReply, AsrRequest, TranscribeReply, TranscribeRequest
from parley.canaries.connection import CanaryAddress, CanaryConnection
from parley.chat import ChatMessage
from parley.embeddings.messages import EmbedReply, EmbedRequest
from parley.errors import (
    DeadlineExceededError,
    OverloadedError,
    ParleyError,
    TooManySessionsError,
)
from parley.inference import (
    ModelRequest,
    ModelResponse,
    SequenceFlags,
    Tensor,
    struct_tensor,
    tensor_bytes,
    tensor_struct,
    text_tensor,
)
from parley.llm.messages import Completed, GenerateRequest, LlmEvent, Sampling
from parley.protocol import CANARY_PREFIX, Closed, Connected, ErrorEvent, Start, decode_event, encode
from parley.runtime.extensions import find_extensions
from parley.speakers.embedding import LEAST
from parley.tts.messages import SpeakRequest, SpeechChunk
from parley.tts.synthesizers import ESPEAK, KNOWN

CanaryCall: TypeAlias = Callable[[CanaryAddress, float], str]
"""Takes an address and a deadline (seconds); returns what it saw, or raises :class:`CanaryError`."""
_WINDOW = 512
_QUERY = EmbedRequest(kind="query")
_LENGTH_ERROR = 1e-3
_LANGUAGE = ""
"""The model chooses: settings and weights say which ones it has."""
_QUEUE_FULL = "Exceeds maximum queue size"  # Triton's words


class CanaryError(RuntimeError):
    """A model answered wrongly, with an error, or not in time."""


class CanaryLateError(CanaryError):
    """A model did not answer in time, or its queue is full: it may have too much to do."""


def require(condition: bool, what: str) -> None:
    """Raise :class:`CanaryError` with ``what`` is wrong unless the condition holds."""
    if not condition:
        raise CanaryError(what)


def _finite(outputs: ModelResponse, name: str, shape: Sequence[int | None]) -> Tensor:
    """An output that is there, has this shape (None: any length above 0), and only numbers in it."""
    values = outputs.get(name)
    if values is None:
        raise CanaryError(f"{name} is missing")
    fits = len(values.shape) == len(shape) and all(
        length == wanted if wanted is not None else length > 0
        for length, wanted in zip(values.shape, shape, strict=True)
    )
    require(fits, f"{name} has shape {list(values.shape)}")
    require(bool(np.isfinite(values).all()), f"{name} has values that are not finite")
    return values


def _probability(outputs: ModelResponse, name: str, shape: Sequence[int | None]) -> float:
    values = _finite(outputs, name, shape)
    require(bool(((values >= 0) & (values <= 1)).all()), f"{name} has values outside 0 to 1")
    return float(values.max())


# --- voice activity, turns, recognition ---------------------------------------------------


def _ask_smart_turn(server: CanaryConnection) -> None:
    request = ModelRequest("smart_turn", {"AUDIO": np.zeros((1, _WINDOW), np.int16)}, ("PROBABILITY",))
    _probability(server.infer(request), "PROBABILITY", (1, 1))


def _ask_parakeet_encoder(server: CanaryConnection) -> None:
    """Sixteen frames, 160 ms; their one band stands for all of the checkpoint's."""
    frames = 16
    outputs = server.infer(
        ModelRequest(
            "parakeet_encoder",
            {"FEATURES": np.zeros((1, 1, frames), np.float32), "LENGTH": np.array([[frames]], np.int64)},
            ("ENCODED", "ENCODED_LENGTH"),
        )
    )
    encoded, length = _finite(outputs, "ENCODED", (1, None, None)), _finite(outputs, "ENCODED_LENGTH", (1, 1))
    require(1 <= length[0, 0] <= encoded.shape[2], f"ENCODED_LENGTH is {length[0, 0]}")


def _ask_parakeet_decoder(server: CanaryConnection) -> None:
    """One encoded frame; its one value stands for all of the checkpoint's."""
    outputs = server.infer(
        ModelRequest(
            "parakeet_decoder",
            {"ENCODED": np.zeros((1, 1, 1), np.float32), "ENCODED_LENGTH": np.ones((1, 1), np.int64)},
            ("TOKENS", "CONFIDENCES", "TOKEN_COUNT"),
        )
    )
    tokens, count = _finite(outputs, "TOKENS", (1, None)), _finite(outputs, "TOKEN_COUNT", (1, 1))
    require(0 <= count[0, 0] <= tokens.shape[1], f"TOKEN_COUNT is {count[0, 0]}")
    _probability(outputs, "CONFIDENCES", (1, None))


def _ask_transcriber(model: str, server: CanaryConnection) -> None:
    request = ModelRequest(
        model,
        {
            "AUDIO": np.zeros((1, 1600), np.int16),
            "REQUEST": struct_tensor(TranscribeRequest(language=_LANGUAGE, words=False), batched=True),
        },
        ("REPLY",),
    )
    reply = read_reply(server.infer(request), "REPLY", TranscribeReply)
    require(reply.duration_ms == 100, f"a recording of 100 ms has {reply.duration_ms} ms")


def _ask_parakeet_features(server: CanaryConnection) -> None:
    """100 ms of silence, in which there is no speech."""
    request = ModelRequest(
        "parakeet_features",
        {
            "AUDIO": np.zeros((1, 1600), np.int16),
            "REQUEST": struct_tensor(TranscribeRequest(language=_LANGUAGE), batched=True),
        },
        ("FEATURES", "LENGTH", "SPAN"),
    )
    outputs = server.infer(request)
    features, length = _finite(outputs, "FEATURES", (1, None, None)), _finite(outputs, "LENGTH", (1, 1))
    require(1 <= length[0, 0] <= features.shape[2], f"LENGTH is {length[0, 0]}")
    span = _finite(outputs, "SPAN", (1, 3))
    require(span[0, 0] == 100, f"a recording of 100 ms has {span[0, 0]} ms")


def _ask_parakeet_text(server: CanaryConnection) -> None:
    nothing = np.full((1, 1), -1, np.int32)
    request = ModelRequest(
        "parakeet_text",
        {
            "TOKENS": nothing,
            "FRAMES": nothing,
            "DURATIONS": np.zeros((1, 1), np.int32),
            "CONFIDENCES": np.zeros((1, 1), np.float32),
            "TOKEN_COUNT": np.zeros((1, 1), np.int32),
            "ALTERNATIVES": nothing[None],
            "SCORES": np.full((1, 1), np.finfo(np.float32).min, np.float32),
            "SPAN": np.array([[100, 0, 100]], np.int64),
            "REQUEST": struct_tensor(TranscribeRequest(), batched=True),
        },
        ("REPLY",),
    )
    reply = read_reply(server.infer(request), "REPLY", TranscribeReply)
    require(not reply.text, f"no token is {reply.text!r}")


def _ask_recognizer(model: str, server: CanaryConnection) -> None:
    """One window of silence: a stream that the same request begins and ends."""
    name = f"{CANARY_PREFIX}{uuid.uuid4().hex}"
    request = ModelRequest(
        model,
        {
            "AUDIO": np.zeros((1, _WINDOW), np.int16),
            "REQUEST": struct_tensor(AsrRequest(options=AsrOptions(language=_LANGUAGE)), batched=True),
        },
        ("REPLY",),
        sequence=SequenceFlags(name, start=True, end=True),
    )
    reply = read_reply(server.infer(request), "REPLY", AsrReply)
    require(reply.stream_ms == _WINDOW // 16, f"a stream of 32 ms has {reply.stream_ms} ms")


# --- the language model -------------------------------------------------------------------


def _ask_qwen3(server: CanaryConnection) -> None:
    name = f"{CANARY_PREFIX}{uuid.uuid4().hex}"
    message = GenerateRequest(
        request_id=name,
        messages=[ChatMessage(role="user", content="Hi")],
        sampling=Sampling(max_tokens=1),
    )
    request = ModelRequest("qwen3", {"REQUEST": struct_tensor(message)}, ("EVENT",), request_id=name)
    last = None
    for outputs in server.stream([request]):
        last = read_reply(outputs, "EVENT", LlmEvent)
    if not isinstance(last, Completed):
        raise CanaryError(f"the answer ended with {last}")
    require(last.finish_reason in ("stop", "length"), f"the answer was ended by {last.finish_reason}")
    require(last.completion_tokens > 0, "the answer has no token")


# --- speech -------------------------------------------------------------------------------


def _ask_espeak(server: CanaryConnection) -> None:
    name = f"{CANARY_PREFIX}{uuid.uuid4().hex}"
    message = SpeakRequest(request_id=name, text="Hi.")
    request = ModelRequest("espeak", {"REQUEST": struct_tensor(message)}, ("CHUNK", "AUDIO"), request_id=name)
    samples, loudest = 0, 0
    for outputs in server.stream([request]):
        require(read_reply(outputs, "CHUNK", SpeechChunk).offset == samples, "audio is missing")
        audio = outputs["AUDIO"].astype(np.int32)
        samples, loudest = samples + audio.size, max(loudest, int(np.abs(audio).max(initial=0)))
    require(samples > 0, "the word has no audio")
    require(loudest > 0, "the word is silent")


def ask_silently(model: str, server: CanaryConnection) -> None:
    """A text without words, which needs the default voice and no audio.

    For chatterbox, t3 and s3gen have checks of their own. Others speak in the thread of their network: a word
    would delay the speech of calls.
    """
    name = f"{CANARY_PREFIX}{uuid.uuid4().hex}"
    message = SpeakRequest(request_id=name)
    request = ModelRequest(model, {"REQUEST": struct_tensor(message)}, ("CHUNK", "AUDIO"), request_id=name)
    for outputs in server.stream([request]):
        read_reply(outputs, "CHUNK", SpeechChunk)
        require(outputs["AUDIO"].size == 0, "a text without words has audio")


# --- the agent ----------------------------------------------------------------------------


def _ask_voice_agent(server: CanaryConnection) -> None:
    """A conversation that is opened and ended at once: ``connected`` … ``closed``."""
    session = f"{CANARY_PREFIX}{uuid.uuid4().hex}"
    nothing = np.zeros((1, 0), np.uint8)
    # Without a prompt there is nothing for the language model to read ahead, and without a greeting nothing
    # is spoken.
    opening = encode(Start(system_prompt="", greeting="", language=_LANGUAGE))
    requests = [
        ModelRequest(
            "voice_agent",
            {"MESSAGE": text_tensor(message, batched=True), "AUDIO": nothing},
            (),
            request_id="start" if start else "end",
            sequence=SequenceFlags(session, start=start, end=not start),
        )
        for message, start in ((opening, True), (b"", False))
    ]
    seen: list[str] = []
    failure: ParleyError | None = None
    for outputs in server.stream(requests):
        event = decode_event(tensor_bytes(outputs["EVENT"]))
        if isinstance(event, ErrorEvent):
            failure = failure or event.to_error()
        seen.append(type(event).__name__)
    if failure is not None:
        raise failure
    if seen[:1] != [Connected.__name__] or seen[-1:] != [Closed.__name__]:
        raise CanaryError(f"it sent {', '.join(seen) or 'nothing'} instead of Connected and Closed")


def read_reply(outputs: ModelResponse, name: str, kind: Any) -> Any:
    """The message of this kind in an output.

    Raises:
        CanaryError: the output is missing.
    """
    if name not in outputs:
        raise CanaryError(f"{name} is missing")
    return tensor_struct(outputs[name], kind)


def _canary(model: str, ask: Callable[[CanaryConnection], None]) -> CanaryCall:
    def call(address: CanaryAddress, deadline_s: float) -> str:
        try:
            with CanaryConnection(address, deadline_s) as server:
                ask(server)
        except (OverloadedError, TooManySessionsError) as refusal:
            # The model's own words for having no place left; Triton's for a full queue are none of them.
            return f"{model} answered, and is full: {refusal}"
        except ParleyError as error:
            late = isinstance(error, DeadlineExceededError) or _QUEUE_FULL in str(error)
            raise (CanaryLateError if late else CanaryError)(f"{error.code}: {error}") from error
        except CanaryError:
            raise
        except Exception as error:
            raise CanaryError(f"its answer cannot be read: {error!r}") from error
        return f"{model} answered"

    return call


_RECOGNIZERS = ("parakeet_tdt", "nemotron_streaming", "moonshine", "whisper", "sherpa_onnx")
_TRANSCRIBERS = ("moonshine_transcribe", "whisper_transcribe", "sherpa_onnx_transcribe")


def _ask_embeddings(server: CanaryConnection) -> None:
    inputs = {"TEXT": text_tensor("word", batched=True), "REQUEST": struct_tensor(_QUERY, batched=True)}
    outputs = server.infer(ModelRequest("embeddings", inputs, ("EMBEDDING", "REPLY")))
    size = read_reply(outputs, "REPLY", EmbedReply).space.dimensions
    vector = _finite(outputs, "EMBEDDING", (1, size))
    require(bool(abs(np.linalg.norm(vector) - 1) < _LENGTH_ERROR), "EMBEDDING has not the length 1")


def _ask_speaker_embedding(server: CanaryConnection) -> None:
    noise = np.random.default_rng(0).integers(-99, 99, (1, LEAST), np.int16)
    vector = _finite(
        server.infer(ModelRequest("speaker_embedding", {"AUDIO": noise}, ("EMBEDDING",))),
        "EMBEDDING",
        (1, None),
    )
    require(bool(abs(np.linalg.norm(vector) - 1) < _LENGTH_ERROR), "EMBEDDING has not the length 1")


_ASK: dict[str, Callable[[CanaryConnection], None]] = {
    "smart_turn": _ask_smart_turn,
    "embeddings": _ask_embeddings,
    "speaker_embedding": _ask_speaker_embedding,
    "parakeet_encoder": _ask_parakeet_encoder,
    "parakeet_decoder": _ask_parakeet_decoder,
    "parakeet_transcribe": partial(_ask_transcriber, "parakeet_transcribe"),
    "parakeet_features": _ask_parakeet_features,
    "parakeet_text": _ask_parakeet_text,
    "parakeet_ensemble": partial(_ask_transcriber, "parakeet_ensemble"),
    **{model: partial(_ask_recognizer, model) for model in _RECOGNIZERS},
    **{model: partial(_ask_transcriber, model) for model in _TRANSCRIBERS},
    "espeak": _ask_espeak,
    **{model: partial(ask_silently, model) for model in KNOWN if model != ESPEAK},
    "qwen3": _ask_qwen3,
    **find_extensions("canaries"),
    "voice_agent": _ask_voice_agent,
}
CANARIES: dict[str, CanaryCall] = {model: _canary(model, ask) for model, ask in _ASK.items()}
"""By model, those that others need first."""

NEEDS: dict[str, tuple[str, ...]] = {
    "parakeet_transcribe": ("parakeet_encoder", "parakeet_decoder"),
    "parakeet_ensemble": ("parakeet_features", "parakeet_encoder", "parakeet_decoder", "parakeet_text"),
    "parakeet_tdt": ("parakeet_encoder", "parakeet_decoder"),
    "voice_agent": _RECOGNIZERS,
}
"""By model, those whose answers its own answer to its canary may wait for, whatever its settings are."""


def called_models(model: str) -> set[str]:
    """The models that a model's canary needs, and those that these need."""
    needed = NEEDS.get(model, ())
    return {*needed, *(other for each in needed for other in called_models(each))}
