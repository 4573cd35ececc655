"""Limits of size and time of the model ``chatterbox``."""

from __future__ import annotations

from dataclasses import dataclass, fields

from parley.runtime.parameters import Parameters

_MINIMUM = {"segment_text": 20, "normalize_s": 0.01}


@dataclass(frozen=True)
class ChatterboxLimits:
    """Each field is a parameter of the model of the same name."""

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
    """Tokens of one segment: 40 s."""
    event_tokens: int = 5
    """Tokens in one message from T3: fewer begin a little sooner and cost more messages."""
    idle_s: float = 30.0
    """Without text, while more is expected and everything before has been spoken."""
    voice_s: float = 5.0
    """For reading the voice."""
    normalize_s: float = 1.0
    """For normalising the text; afterwards it is spoken as it is."""
    tokens_s: float = 8.0
    """For T3's next tokens. S3Gen ends an utterance that gets none for 10 s."""
    audio_s: float = 15.0
    """For S3Gen's next audio, which may include the wait for its tokens."""
    push_s: float = 5.0
    """For S3Gen to accept tokens."""
    stop_s: float = 2.0
    """For a model to confirm a stop."""

    @classmethod
    def from_parameters(cls, parameters: Parameters) -> ChatterboxLimits:
        """Read the parameters of a model.

        Raises:
            ModelLoadingError: a value is not allowed.
        """
        values: dict[str, int | float] = {}
        for field in fields(cls):
            name, default = field.name, field.default
            if isinstance(default, int):
                values[name] = parameters.integer(name, default, minimum=int(_MINIMUM.get(name, 1)))
            elif isinstance(default, float):
                values[name] = parameters.number(name, default, minimum=_MINIMUM.get(name, 0.1))
        return cls(**values)  # type: ignore[arg-type] # each has the type of its field's default
