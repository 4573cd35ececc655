"""Settings of the APIs that use single stages."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from parley.errors import InvalidInputError
from parley_client.stages.lineup import AUTO, read_names
from parley_client.transcription import MAX_SECONDS
from parley_gateway.kinds import Count, Seconds


class StageSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the APIs of single stages use: those of OpenAI's and Deepgram's interfaces."""

    recognizer: Literal["auto", "parakeet_tdt", "nemotron_streaming", "moonshine"] = "auto"
    """The model that streams of speech go to. `auto`: the first that the server has of `parakeet_tdt`,
    `moonshine` and `nemotron_streaming`."""
    synthesizer: str = AUTO
    """The model that speaks: `espeak`, `piper`, `kokoro` or `chatterbox`. Several with commas, in order of
    preference: the one that has the voice speaks. `auto`: those of the server's conversations, as the
    parameter `tts` of `voice_agent` says."""
    requests: Count = 64
    """Requests and streams at once, of each of these APIs; more are answered with 429. A key, or of callers
    without one an address, gets at most three times what is still free, so that others always get in."""
    retry_after_s: Seconds = 1.0
    """What a client that is refused is told to wait (seconds)."""
    recording_s: Annotated[int, Meta(ge=1, le=MAX_SECONDS)] = MAX_SECONDS
    """The longest recording (seconds)."""
    transcribe_s: Seconds = 300.0
    """Longest wait for the transcript of a recording (seconds)."""
    speech_characters: Count = 4_096
    """The longest text that is spoken at once."""
    answer_tokens: Count = 1_024
    """How long answers may become where a client does not say."""
    temperature: Annotated[float, Meta(ge=0, le=2)] = 0.0
    """How freely answers are written where a client does not say."""
    idle_s: Seconds = 60.0
    """A stream of speech whose client sends nothing for so long is closed (seconds)."""
    voice_idle_s: Seconds = 60.0
    """A voice that is given no text, and says nothing, for so long is closed (seconds)."""
    stall_s: Seconds = 15.0
    """A client that does not read its answer for so long loses it (seconds)."""

    def __post_init__(self) -> None:
        try:
            read_names(self.synthesizer)
        except InvalidInputError as error:
            raise ValueError(str(error)) from error
