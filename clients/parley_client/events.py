"""The events that a call yields: the protocol's, with audio as samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from parley import protocol
from parley.errors import InvalidMessageError
from parley_client.errors import UnknownEventError
from parley_client.transport import ServerReply


@dataclass(frozen=True, slots=True)
class AgentAudio:
    """A piece of the agent's speech: :class:`parley.protocol.Audio` together with its samples."""

    turn: int
    response_id: str
    offset_ms: int
    """Where this piece begins in the response's audio (milliseconds)."""
    sample_rate: int
    """Hertz."""
    samples: NDArray[np.int16]
    """Shape [n], mono."""
    text: str
    """The words that begin in this piece."""

    @property
    def duration_ms(self) -> float:
        """Length of this piece."""
        return 1000 * len(self.samples) / self.sample_rate


def add_transcript(texts: dict[int, str], transcript: protocol.Transcript) -> str:
    """Add a final transcript to the texts of a turn by utterance, and return the turn's words so far.

    A transcript with ``first`` replaces the texts of the utterances from that one on.
    """
    if transcript.first:
        for number in range(transcript.first, transcript.utterance):
            texts.pop(number, None)
        texts[transcript.first] = transcript.before
    texts[transcript.utterance] = transcript.text
    return " ".join(text for _, text in sorted(texts.items()) if text)


MoveReason: TypeAlias = Literal["lost", "silent", "go_away"]
"""Why a call leaves its server. ``lost``: the session there is gone. ``silent``: the server acknowledges
nothing. ``go_away``: the server will stop."""


@dataclass(frozen=True, slots=True)
class Reconnecting:
    """The call leaves its server and goes on elsewhere; :class:`Reconnected` or the end of the call follows.

    Everything can be sent meanwhile, and audio that has arrived can be played.
    """

    reason: MoveReason


@dataclass(frozen=True, slots=True)
class Reconnected:
    """The call goes on at another server, or at the same one under another session."""

    gap_ms: float
    """How long there was no server (milliseconds)."""
    reason: MoveReason


ServerEvent: TypeAlias = (
    protocol.Connected
    | protocol.Checkpoint
    | protocol.GoAway
    | protocol.Updated
    | protocol.SpeechStarted
    | protocol.SpeechStopped
    | protocol.Transcript
    | protocol.TurnDecision
    | protocol.AgentState
    | protocol.ResponseText
    | protocol.ToolRequest
    | protocol.ToolCancelled
    | protocol.ToolProgress
    | protocol.ToolRun
    | AgentAudio
    | protocol.KnowledgeUsed
    | protocol.StepChanged
    | protocol.DataCollected
    | protocol.Decision
    | protocol.Paused
    | protocol.Resumed
    | protocol.SpeechIgnored
    | protocol.Interrupted
    | protocol.Truncated
    | protocol.ResponseDone
    | protocol.TurnMetrics
    | protocol.ErrorEvent
    | protocol.Closed
)
"""What a server sends: checkpoints and ``go_away`` are for the call itself."""

CallEvent: TypeAlias = ServerEvent | Reconnecting | Reconnected


def format_sources(event: protocol.KnowledgeUsed) -> str:
    """What an answer has of the agent's documents, for people."""
    sources = [" > ".join(filter(None, (one.file, one.heading))) for one in event.sources]
    found = f"reads {'; '.join(sources) or 'nothing of its documents'}"
    earlier = ", found for earlier words" if sources else ""
    return f"{found}{earlier}: the search was not over when the answer began" if event.late else found


def read_event(reply: ServerReply) -> ServerEvent:
    """The event in a reply.

    Raises:
        InvalidMessageError: not an event, or the number of samples does not match it.
        UnknownEventError: the event's type is unknown.
    """
    try:
        event = protocol.decode_event(reply.event)
    except InvalidMessageError:
        if (kind := protocol.unknown_type(reply.event)) is not None:
            raise UnknownEventError(kind) from None
        raise
    if not isinstance(event, protocol.Audio):
        return event
    if len(reply.audio) != event.samples:
        raise InvalidMessageError(f"audio event of {event.samples} samples came with {len(reply.audio)}")
    return AgentAudio(
        turn=event.turn,
        response_id=event.response_id,
        offset_ms=event.offset_ms,
        sample_rate=event.sample_rate,
        samples=reply.audio,
        text=event.text,
    )
