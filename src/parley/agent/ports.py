"""What an agent is connected to: the engines, and the client of a session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from parley.agents.registry import AgentRegistry
from parley.calls.writing import CallWriter
from parley.engines.base import ChatModel, Recognizer, SpeakerModel, Synthesizer, TurnModel
from parley.knowledge.passages import KnowledgeSearch
from parley.protocol import ServerEvent
from parley.tools.base import ServerTools
from parley.tracing import Tracing

ModelT = TypeVar("ModelT")


@dataclass(frozen=True)
class Scoring(Generic[ModelT]):
    """A model without which calls go on, and a callback for its failures."""

    model: ModelT
    failed: Callable[[str], None]
    """Called with the error code of every pause without a score, or of speech that was not judged."""


@dataclass(frozen=True)
class Engines:
    """Shared by all sessions of an instance."""

    recognizer: Callable[[str, str, str], Recognizer]
    """Makes a recogniser for one stream. The first argument names the stream and is used only once; the
    others are the models that are asked first and last, or empty."""
    chat: ChatModel
    synthesizer: Synthesizer
    turn: Scoring[TurnModel] | None = None
    """None: turns end by silence and words alone."""
    speculated: Callable[[str], None] = lambda _: None
    """Called with the outcome of each answer that was prepared before the end of the user's turn: ``used`` or
    ``discarded``."""
    reads_turns: bool = False
    """Whether the language model is asked how likely the user's words end a sentence."""
    speaker: Scoring[SpeakerModel] | None = None
    """None: all speech is the caller's."""
    server_tools: ServerTools | None = None
    tracing: Tracing | None = None
    agents: AgentRegistry | None = None
    knowledge: KnowledgeSearch | None = None
    calls: CallWriter | None = None
    """Records calls of agents that ask for it; None: calls are not recorded."""


class Outlet(Protocol):
    """Answers one request of a client; the one with START belongs to its session."""

    def send(self, event: ServerEvent, audio: NDArray[np.int16] | None = None) -> None:
        """Send one event; never waits for the client."""
        ...

    def finish(self, last: ServerEvent | None = None) -> None:
        """End the session's responses; ``last`` is sent together with the end.

        A client may leave as soon as it has the last event. If Triton 24.10 learns of that while the end
        still follows by itself, its gRPC front end may use the memory of this stream for another one.
        """
        ...

    async def is_cancelled(self) -> bool:
        """Whether the request was cancelled."""
        ...
