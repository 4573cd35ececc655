"""How a session wants tokens to be drawn."""

from __future__ import annotations

from parley.errors import InvalidMessageError
from parley.llm.messages import Sampling
from parley.protocol import SamplingOptions


def choose_sampling(options: SamplingOptions, default: Sampling) -> Sampling:
    """What a session asks for, and the server's choice where it asks for nothing.

    Args:
        options: of the session.
        default: the server's choice; its ``max_tokens`` is also the most that a session may ask for.

    Raises:
        InvalidMessageError: an option is out of range; the text names it.
    """
    chosen = Sampling(
        temperature=default.temperature if options.temperature is None else options.temperature,
        top_p=default.top_p if options.top_p is None else options.top_p,
        max_tokens=default.max_tokens if options.max_tokens is None else options.max_tokens,
        seed=default.seed,
    )
    check_sampling(chosen, "sampling.")
    if chosen.max_tokens > default.max_tokens:
        raise InvalidMessageError(
            f"sampling.max_tokens is {chosen.max_tokens}; it must be at most {default.max_tokens}"
        )
    return chosen


def check_sampling(sampling: Sampling, where: str = "") -> None:
    """Refuse values that no engine can draw with.

    Args:
        sampling: to be checked.
        where: is put before the names of fields.

    Raises:
        InvalidMessageError: a value is out of range; the text names it.
    """
    # Written so that NaN fails.
    if not 0.0 <= sampling.temperature <= 2.0:
        raise InvalidMessageError(f"{where}temperature is {sampling.temperature}; it must be 0 to 2")
    if not 0.0 < sampling.top_p <= 1.0:
        raise InvalidMessageError(f"{where}top_p is {sampling.top_p}; it must be above 0 and at most 1")
    if sampling.max_tokens < 1:
        raise InvalidMessageError(f"{where}max_tokens is {sampling.max_tokens}; it must be at least 1")
    if sampling.seed is not None and not 0 <= sampling.seed < 2**63:
        raise InvalidMessageError(f"{where}seed is {sampling.seed}; it must be 0 to 2^63 - 1")
