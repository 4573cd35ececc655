"""What a call has of the agent's responses: their text, their audio, and how much of it was played.

Pure bookkeeping: the time is always given by the caller, in seconds of one monotonic clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from parley.checkpoint import ResponseProgress
from parley.played_time import PlayedTime
from parley.protocol import Interrupted, Paused, ResponseDone, ResponseText, Resumed
from parley_client.events import AgentAudio, ServerEvent

_REMEMBERED = 8
"""Responses; only the newest can be under way, and their events do not interleave for long."""


@dataclass
class _Response:
    turn: int
    text: list[str] = field(default_factory=list)
    words: list[tuple[int, str]] = field(default_factory=list)
    audio_ms: float = 0.0
    played: PlayedTime = field(default_factory=PlayedTime)
    paused: bool = False
    done: bool = False
    interrupted: bool = False


class ResponseTracker:
    """Follows the newest responses."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._responses: dict[str, _Response] = {}

    def on_event(self, event: ServerEvent) -> None:
        """Take an event of the server into account."""
        now = self._clock()
        match event:
            case ResponseText():
                self._get(event.turn, event.response_id).text.append(event.text)
            case AgentAudio():
                response = self._get(event.turn, event.response_id)
                response.audio_ms = max(response.audio_ms, event.offset_ms + event.duration_ms)
                response.played.add(event.duration_ms, now)
                if event.text:
                    response.words.append((event.offset_ms, event.text))
            case ResponseDone():
                response = self._get(event.turn, event.response_id)
                response.done = True
                response.audio_ms = max(response.audio_ms, event.audio_ms)
            case Paused():
                response = self._get(event.turn, event.response_id)
                response.paused = True
                response.played.pause(now)
            case Resumed():
                response = self._get(event.turn, event.response_id)
                response.paused = False
                response.played.resume(now)
            case Interrupted():
                response = self._get(event.turn, event.response_id)
                response.interrupted = True
                response.paused = False
            case _:
                pass

    def restore(self, turn: int, progress: ResponseProgress) -> None:
        """Begin with what there is of a response of a session that goes on."""
        response = self._get(turn, progress.response_id)
        response.text, response.words = [progress.text], list(progress.words)
        response.audio_ms, response.done = progress.audio_ms, progress.done
        response.played.restore(progress.audio_ms, progress.played_ms, self._clock())

    def on_playback(self, response_id: str, played_ms: float) -> None:
        """The application has reported how much it played."""
        response = self._responses.get(response_id)
        if response is not None:
            response.played.report(played_ms, self._clock())

    def progress(self, response_id: str) -> ResponseProgress | None:
        """What is there of a response; None: nothing."""
        response = self._responses.get(response_id)
        if response is None or not (response.text or response.audio_ms or response.done):
            return None
        audio_ms = round(response.audio_ms)
        return ResponseProgress(
            response_id=response_id,
            text="".join(response.text),
            audio_ms=audio_ms,
            words=list(response.words),
            # The offsets of pieces are rounded, so that their lengths may add up to a millisecond more.
            played_ms=min(self.played_ms(response_id), audio_ms),
            done=response.done,
        )

    def played_ms(self, response_id: str) -> int:
        """How much of a response was played (milliseconds)."""
        response = self._responses.get(response_id)
        return 0 if response is None else round(response.played.played_ms(self._clock()))

    def is_interrupted(self, response_id: str) -> bool:
        """Whether its ``interrupted`` came."""
        response = self._responses.get(response_id)
        return response is not None and response.interrupted

    def is_open(self, response_id: str) -> bool:
        """Whether more of it may come: its end did not, or nothing of it did."""
        response = self._responses.get(response_id)
        return response is None or not (response.done or response.interrupted)

    def paused(self) -> list[tuple[int, str]]:
        """Turn and id of each response whose playing was paused, and has not gone on."""
        return [(response.turn, name) for name, response in self._responses.items() if response.paused]

    def unfinished(self) -> list[tuple[int, str]]:
        """Turn and id of each response that began and has not ended."""
        return [
            (response.turn, name)
            for name, response in self._responses.items()
            if not response.done and not response.interrupted
        ]

    def _get(self, turn: int, response_id: str) -> _Response:
        response = self._responses.setdefault(response_id, _Response(turn))
        while len(self._responses) > _REMEMBERED:
            del self._responses[next(iter(self._responses))]
        return response
