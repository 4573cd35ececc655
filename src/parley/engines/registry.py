"""The engines that agents, clients and the gateway's interfaces know: a new one is a file and a line here.

The order is that of preference where several are loaded and none is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Protocol, TypeVar

from parley.engines.base import ChatModel, Embedder, Recognizer, RemoteChat, SpeakerModel, TurnModel
from parley.engines.embeddings import EMBEDDINGS, ModelEmbedder
from parley.engines.qwen3 import Qwen3ChatModel
from parley.engines.recognizers import ModelRecognizer
from parley.engines.smart_turn import SmartTurnModel
from parley.engines.speaker_embedding import SPEAKER_EMBEDDING, SpeakerEmbeddingModel
from parley.engines.speech import ChatterboxSpeaker, KnownSpeaker, ModelSpeaker
from parley.errors import ModelLoadingError
from parley.inference import ModelClient
from parley.languages import primary_language
from parley.tts.synthesizers import KNOWN

EngineT_co = TypeVar("EngineT_co", covariant=True)


class MakeRecognizer(Protocol):
    """Makes a recogniser for one stream."""

    def __call__(self, client: ModelClient, correlation_id: str, *, timeout_s: float) -> Recognizer:
        """``correlation_id``: no other open stream has it; ``timeout_s``: for each answer (seconds)."""
        ...


class MakeChatModel(Protocol):
    """Makes a chat model."""

    def __call__(self, client: ModelClient, *, timeout_s: float, remote: RemoteChat) -> ChatModel:
        """``timeout_s``: for the first event, and for each that follows (seconds).

        ``remote``: where the model is, if it is none of this server's.
        """
        ...


class MakeEngine(Protocol[EngineT_co]):
    """Makes a synthesizer, an end-of-turn model, a model of speakers or an embedder."""

    def __call__(self, client: ModelClient, *, timeout_s: float) -> EngineT_co:
        """``timeout_s``: for the first answer, and for each piece that follows (seconds)."""
        ...


def _qwen3(client: ModelClient, *, timeout_s: float, remote: RemoteChat) -> ChatModel:  # noqa: ARG001
    return Qwen3ChatModel(client, timeout_s=timeout_s)


def _openai_chat(client: ModelClient, *, timeout_s: float, remote: RemoteChat) -> ChatModel:  # noqa: ARG001
    from parley.engines.openai_chat import OpenAiChatModel  # noqa: PLC0415 - only this engine needs an HTTP client

    return OpenAiChatModel(remote, timeout_s=timeout_s)


REMOTE_CHAT = "openai_chat"
"""The chat model that is none of this server's."""
RECOGNIZERS: Mapping[str, MakeRecognizer] = {
    # All are asked and answer in the same way.
    model: partial(ModelRecognizer, model=model)
    for model in ("parakeet_tdt", "moonshine", "whisper", "nemotron_streaming", "sherpa_onnx")
}
ENGLISH = "en"
MULTILINGUAL_RECOGNIZERS = ("whisper",)
"""Those of more than English, the first choice for other languages."""
CHAT_MODELS: Mapping[str, MakeChatModel] = {
    "qwen3": _qwen3,
    REMOTE_CHAT: _openai_chat,
}
SYNTHESIZERS: Mapping[str, MakeEngine[ModelSpeaker]] = {
    **{model: partial(KnownSpeaker, model=model) for model in KNOWN},
    "chatterbox": ChatterboxSpeaker,
}
TURN_MODELS: Mapping[str, MakeEngine[TurnModel]] = {
    "smart_turn": SmartTurnModel,
}
SPEAKER_MODELS: Mapping[str, MakeEngine[SpeakerModel]] = {
    SPEAKER_EMBEDDING: SpeakerEmbeddingModel,
}
EMBEDDERS: Mapping[str, MakeEngine[Embedder]] = {
    EMBEDDINGS: ModelEmbedder,
}


def recognizers_for(language: str) -> list[str]:
    """Names of the recognisers that may understand a language, in the order of preference."""
    if primary_language(language) == ENGLISH:
        return list(RECOGNIZERS)
    return sorted(RECOGNIZERS, key=lambda name: name not in MULTILINGUAL_RECOGNIZERS)


MakerT = TypeVar("MakerT")


def find_engine(engines: Mapping[str, MakerT], name: str) -> MakerT:
    """The engine called ``name`` in one of the tables above.

    Raises:
        ModelLoadingError: there is none of this name.
    """
    try:
        return engines[name]
    except KeyError:
        raise ModelLoadingError(f"no engine {name!r}; there are {', '.join(engines)}") from None
