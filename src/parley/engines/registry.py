"""The engines that an agent can be configured with: a new one is a file and a line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias, TypeVar

from parley.engines.base import ChatModel, Recognizer, Synthesizer
from parley.engines.espeak import EspeakSpeaker
from parley.engines.parakeet import ParakeetRecognizer
from parley.engines.qwen3 import Qwen3ChatModel
from parley.errors import ModelLoadingError
from parley.inference import InferencePort

MakeRecognizer: TypeAlias = Callable[[InferencePort, str], Recognizer]
"""The second argument is a correlation id that no other open stream has."""
MakeChatModel: TypeAlias = Callable[[InferencePort], ChatModel]
MakeSynthesizer: TypeAlias = Callable[[InferencePort], Synthesizer]

RECOGNIZERS: Mapping[str, MakeRecognizer] = {
    "parakeet_tdt": ParakeetRecognizer,
}
CHAT_MODELS: Mapping[str, MakeChatModel] = {
    "qwen3": Qwen3ChatModel,
}
SYNTHESIZERS: Mapping[str, MakeSynthesizer] = {
    "espeak": EspeakSpeaker,
}

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
