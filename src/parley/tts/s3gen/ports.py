"""What the service of ``s3gen`` needs of those around it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from parley.errors import ParleyError
from parley.tts.s3gen.messages import AudioChunk
from parley.tts.s3gen.synthesizer import Job
from parley.tts.s3gen.utterance import Utterance


class AudioSink(Protocol):
    """Where the audio of one utterance goes."""

    def send(self, chunk: AudioChunk, audio: NDArray[np.int16]) -> bool:
        """Take a piece; False: no more is wanted."""
        ...

    def finish(self) -> None:
        """All was sent, or the utterance was stopped."""
        ...

    def fail(self, error: ParleyError) -> None:
        """The utterance failed."""
        ...


class Steps(Protocol):
    """The part of :class:`parley.tts.s3gen.synthesizer.Synthesizer` that is used."""

    @property
    def vocabulary(self) -> int:
        """Tokens are smaller than this."""
        ...

    def begin(self) -> None:
        """Called first by the thread that will call the rest."""
        ...

    def prepare(self, utterances: Sequence[Utterance]) -> None:
        """Make what can be made before their tokens have come."""
        ...

    def step(self, jobs: Sequence[Job]) -> list[NDArray[np.int16] | ParleyError]:
        """Make what the jobs ask for."""
        ...
