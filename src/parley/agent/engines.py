"""The three engines that an agent is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from parley.engines.base import ChatModel, Recognizer, Synthesizer


@dataclass(frozen=True)
class Engines:
    """Shared by all sessions of an instance."""

    recognizer: Callable[[str], Recognizer]
    """Makes a recogniser for one stream; its argument names the stream and is used only once."""
    chat: ChatModel
    synthesizer: Synthesizer
