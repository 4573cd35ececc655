"""What the model takes on, and how long it waits."""

from __future__ import annotations

from dataclasses import dataclass

from parley.runtime.parameters import Parameters


@dataclass(frozen=True)
class ChatterboxLimits:
    """Seconds, unless a field says otherwise."""

    max_utterances: int = 64
    """Open at once; more are refused."""
    max_text: int = 4_000
    """Characters of one request."""
    max_utterance_text: int = 20_000
    """Characters of one utterance."""
    max_waiting: int = 64
    """Segments of one utterance that wait to be spoken."""
    segment_text: int = 250
    """Characters of a segment: longer text is cut at the ends of its sentences."""
    max_tokens: int = 1_000
    """Of one segment: 40 s."""
    event_tokens: int = 5
    """Tokens that T3 sends together: fewer begin a little sooner and cost more messages."""
    idle_s: float = 30.0
    """Without text, while more is expected and all that came has been spoken."""
    voice_s: float = 5.0
    """For the voice's conditionals."""
    normalize_s: float = 1.0
    """For the text to be written out; it is then spoken as it is."""
    tokens_s: float = 8.0
    """For T3's next tokens. S3Gen gives an utterance up that gets none for 10 s."""
    audio_s: float = 15.0
    """For S3Gen's next audio; what it needs tokens for may wait for them first."""
    push_s: float = 5.0
    """For S3Gen to take tokens."""
    stop_s: float = 2.0
    """For a model to confirm that it has stopped."""

    @classmethod
    def from_parameters(cls, parameters: Parameters) -> ChatterboxLimits:
        """Read the settings of a model.

        Raises:
            ModelLoadingError: a setting has a value that it cannot have.
        """
        default = cls()
        return cls(
            max_utterances=parameters.integer("max_utterances", default.max_utterances, minimum=1),
            max_text=parameters.integer("max_text", default.max_text, minimum=1),
            max_utterance_text=parameters.integer(
                "max_utterance_text", default.max_utterance_text, minimum=1
            ),
            max_waiting=parameters.integer("max_waiting", default.max_waiting, minimum=1),
            segment_text=parameters.integer("segment_text", default.segment_text, minimum=20),
            max_tokens=parameters.integer("max_tokens", default.max_tokens, minimum=1),
            event_tokens=parameters.integer("event_tokens", default.event_tokens, minimum=1),
            idle_s=parameters.number("idle_s", default.idle_s, minimum=0.1),
            voice_s=parameters.number("voice_s", default.voice_s, minimum=0.1),
            normalize_s=parameters.number("normalize_s", default.normalize_s, minimum=0.01),
            tokens_s=parameters.number("tokens_s", default.tokens_s, minimum=0.1),
            audio_s=parameters.number("audio_s", default.audio_s, minimum=0.1),
            push_s=parameters.number("push_s", default.push_s, minimum=0.1),
            stop_s=parameters.number("stop_s", default.stop_s, minimum=0.1),
        )
