"""How tokens are drawn when a request does not say so, and what it may say."""

from __future__ import annotations

from parley.errors import InvalidMessageError
from parley.tts.t3.checkpoint import Variant
from parley.tts.t3.messages import SpeechSampling
from parley.tts.t3.request import Drawing

# Of the published code.
_DEFAULTS: dict[Variant, Drawing] = {
    "original": Drawing(0.8, 1.0, 0, 0.05, 1.2),
    "multilingual": Drawing(0.8, 1.0, 0, 0.05, 2.0),
    "turbo": Drawing(0.8, 0.95, 1000, 0.0, 1.2),
}


def drawing(sampling: SpeechSampling, variant: Variant) -> Drawing:
    """What a request asks for, completed by what its checkpoint was published with."""
    default = _DEFAULTS[variant]
    return Drawing(
        default.temperature if sampling.temperature is None else sampling.temperature,
        default.top_p if sampling.top_p is None else sampling.top_p,
        default.top_k if sampling.top_k is None else sampling.top_k,
        default.min_p if sampling.min_p is None else sampling.min_p,
        default.repetition_penalty if sampling.repetition_penalty is None else sampling.repetition_penalty,
        sampling.seed,
    )


def check_drawing(drawing: Drawing, *, guided: bool) -> None:
    """Refuse what cannot be drawn by.

    Raises:
        InvalidMessageError: a value is out of range, or the checkpoint does not know it.
    """
    # Written so that NaN fails.
    if not 0.0 <= drawing.temperature <= 2.0:
        raise InvalidMessageError(f"temperature {drawing.temperature} is not between 0 and 2")
    if not 0.0 < drawing.top_p <= 1.0:
        raise InvalidMessageError(f"top_p {drawing.top_p} is not above 0 and at most 1")
    if drawing.top_k < 0:
        raise InvalidMessageError(f"top_k {drawing.top_k} is negative")
    if not 0.0 <= drawing.min_p <= 1.0:
        raise InvalidMessageError(f"min_p {drawing.min_p} is not between 0 and 1")
    if drawing.min_p and not guided:
        raise InvalidMessageError("this checkpoint does not know min_p")
    if not 1.0 <= drawing.repetition_penalty <= 4.0:
        raise InvalidMessageError(f"repetition_penalty {drawing.repetition_penalty} is not between 1 and 4")
    if drawing.seed is not None and not 0 <= drawing.seed < 2**63:
        raise InvalidMessageError(f"seed {drawing.seed} is negative or too large")
