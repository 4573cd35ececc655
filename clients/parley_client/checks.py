"""What the protocol can never accept, found before anything is sent."""

from __future__ import annotations

import math

from parley.errors import InvalidMessageError
from parley.protocol import MAX_MESSAGE_BYTES, Start

_KEYS = frozenset("0123456789*#ABCD")
EXAGGERATION = (0.0, 2.0)
GUIDANCE = (0.0, 1.0)
TEMPERATURE = (0.0, 2.0)
_NOT_NEGATIVE = (0.0, math.inf)


def check_start(start: Start) -> None:
    """Check the numbers and texts of a session's options; the server knows more about some of them.

    Raises:
        InvalidMessageError: one is out of its range.
    """
    sampling, barge_in, silence = start.sampling, start.barge_in, start.silence
    ranges: tuple[tuple[str, float | None, tuple[float, float]], ...] = (
        ("exaggeration", start.exaggeration, EXAGGERATION),
        ("guidance_weight", start.guidance_weight, GUIDANCE),
        ("sampling.temperature", sampling.temperature, TEMPERATURE),
        ("sampling.top_p", sampling.top_p, (0, 1)),
        ("sampling.max_tokens", sampling.max_tokens, (1, math.inf)),
        ("barge_in.min_speech_ms", barge_in.min_speech_ms, _NOT_NEGATIVE),
        ("barge_in.min_words", barge_in.min_words, _NOT_NEGATIVE),
        ("silence.prompt_after_ms", silence.prompt_after_ms, _NOT_NEGATIVE),
        ("silence.hang_up_after_ms", silence.hang_up_after_ms, _NOT_NEGATIVE),
    )
    for name, value, (least, most) in ranges:
        if value is not None and not least <= value <= most:
            wanted = f"at least {least:g}" if most == math.inf else f"{least:g} to {most:g}"
            raise InvalidMessageError(f"{name} is {value}; it must be {wanted}")
    if sampling.top_p == 0:
        raise InvalidMessageError("sampling.top_p is 0; it must be above 0")
    for prompt in silence.prompts or ():
        check_text("a text of silence.prompts", prompt)


def check_text(name: str, text: str) -> None:
    """Check what is to be said or answered.

    Raises:
        InvalidMessageError: there are no words in it.
    """
    if not text.strip():
        raise InvalidMessageError(f"{name} is empty")


def check_keys(digits: str) -> None:
    """Check keys of a telephone.

    Raises:
        InvalidMessageError: no keys, or something that is none.
    """
    if not digits:
        raise InvalidMessageError("no keys were given")
    wrong = sorted(set(digits) - _KEYS)
    if wrong:
        raise InvalidMessageError(f"{''.join(wrong)!r} in {digits!r}: keys are 0-9, *, # and A-D")


def check_size(message: bytes) -> None:
    """Check a message as it is sent.

    Raises:
        InvalidMessageError: the server takes none of this size.
    """
    if len(message) > MAX_MESSAGE_BYTES:
        raise InvalidMessageError(f"message of {len(message)} bytes; at most {MAX_MESSAGE_BYTES} are allowed")
