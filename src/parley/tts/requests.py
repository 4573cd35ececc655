"""What synthesizers of complete texts have in common: admission of a request, and where its audio goes."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from parley.errors import InvalidMessageError, ParleyError
from parley.tts.messages import SpeakRequest, SpeechChunk

MAX_TEXT = 4_000
"""Characters of one request: about four minutes of speech."""


def kept_free(request: SpeakRequest, max_requests: int) -> int:
    """How many of the places a request leaves free: if it is of the background, a quarter, for calls."""
    return max_requests // 4 if request.background else 0


class SpeechSink(Protocol):
    """Receives the audio of one request, in the thread of the synthesizer."""

    @property
    def wanted(self) -> bool:
        """Whether the caller still waits for audio."""
        ...

    def on_begun(self) -> None:
        """The request has waited for its turn until now."""
        ...

    def send(self, chunk: SpeechChunk, audio: NDArray[np.int16]) -> bool:
        """Send a piece; False: the request is over for its caller."""
        ...

    def finish(self) -> None:
        """End a request that was spoken or aborted."""
        ...

    def fail(self, error: ParleyError) -> None:
        """End a request with an error."""
        ...


def check_request(request: SpeakRequest) -> None:
    """Raise InvalidMessageError for a request without an id, of incomplete text, or of too much."""
    if not request.request_id:
        raise InvalidMessageError("request_id is empty")
    if not request.final:
        raise InvalidMessageError("this synthesizer takes all of the text at once")
    if len(request.text) > MAX_TEXT:
        raise InvalidMessageError(f"text of {len(request.text)} characters; at most {MAX_TEXT} are allowed")
