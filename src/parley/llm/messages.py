"""What ``qwen3`` (and every other chat model) is asked and answers.

Tensors: in ``REQUEST`` TYPE_STRING [1] (:class:`GenerateRequest` or :class:`AbortRequest`);
out, decoupled, ``EVENT`` TYPE_STRING [1] (:data:`LlmEvent`). A failed request ends with a Triton
error whose text is :meth:`parley.errors.ParleyError.to_wire`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Literal, TypeAlias

import msgspec

from parley.chance import random_hex
from parley.chat import ChatMessage, ToolCall
from parley.errors import InvalidMessageError
from parley.protocol import SamplingOptions, Tool

CUT = "…"
"""Marks, for the language model, an answer that the user cut short."""


def cut_short(played: str) -> str:
    """The played part of an answer, marked as cut short there; empty if that is nothing."""
    cut = played.rstrip(" .,!?;:")
    return f"{cut}{CUT}" if cut else ""


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How tokens are sampled. Temperature 0 is greedy."""

    temperature: float = 0.0
    """0: always the likeliest token."""
    top_p: float = 1.0
    """Sampled from the likeliest tokens of this joint probability."""
    max_tokens: int = 256
    seed: int | None = None


class Priority(IntEnum):
    """The order of requests where not all fit: the lower first, then the earlier."""

    ANSWER = 0
    """A user waits for it."""
    SPECULATION = 1
    """A user may be about to wait for it."""
    WARM_UP = 2
    """For a request that makes a later answer quicker."""
    BACKGROUND = 3
    """No user waits for it."""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A question about the conversation, whose answers are compared by their probability."""

    text: str
    choices: list[str]
    """Its answers. The first token in which they differ stands for each."""


MAX_QUESTIONS = 16
"""Of one request."""


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="generate"):
    """Ask for the assistant's next message."""

    request_id: str = ""
    """For an abort. Empty: the model chooses one."""
    messages: list[ChatMessage]
    tools: list[Tool] = []
    must_call: str = ""
    """Name of a tool, or :data:`parley.protocol.ANY_TOOL`: the message is one call of it, without text.
    Empty: the model chooses."""
    json_schema: dict[str, Any] | None = None
    """The message is JSON of this schema, without tools. None: it is text."""
    sampling: Sampling = Sampling()
    prefix: str = ""
    """Text that the message begins with. The model goes on behind it, and the events have only what is
    new."""
    questions: list[Question] = []
    """Not empty: nothing is generated; the events are :class:`Choices` and ``Completed``. At most 16."""
    turn_end: bool = False
    """Nothing is generated: the events are :class:`TurnEnd`, about the last message, and ``Completed``."""
    reads_turn: bool = False
    """The first event is :class:`TurnEnd` too, unless the answer is over at once."""
    priority: Priority = Priority.ANSWER
    cache_salt: str = ""
    """Requests with one salt share the prefix cache. Empty: the request shares it with no other."""
    traceparent: str = ""
    """Span of the caller (W3C Trace Context): those of the model are below it. Empty: there is none."""


class AbortRequest(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag="abort"):
    """Stop a request, running or queued; unknown ids are not an error. Answered by nothing."""

    request_id: str


LlmRequest: TypeAlias = GenerateRequest | AbortRequest


class TextDelta(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="text"):
    """The next piece of the answer's text."""

    text: str


class ToolCalled(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="tool_call"):
    """The model calls a tool; sent when the call is complete."""

    call: ToolCall


class Choices(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="choices"):
    """The answers to the questions of a request."""

    probabilities: list[list[float]]
    """For each question those of its choices, 0-1, together 1. Empty: the model has none to use."""


class TurnEnd(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="turn_end"):
    """How the model continues the words of the last message, which is the user's."""

    probability: float | None
    """That a sentence or the message ends behind them, 0-1, whatever signs they end with. None: the answer
    that follows does not say it."""


class Completed(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="completed"):
    """The last event of a request that did not fail."""

    finish_reason: Literal["stop", "length", "tool_calls", "abort"]
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens served from the part of the prefix cache that has the request's salt."""
    example_tokens: int = 0
    """Prompt tokens of examples that the model is shown in every conversation."""
    completion_tokens: int = 0
    model: str = ""
    """Name of the model that has answered in the place of another. Empty: none has."""


LlmEvent: TypeAlias = TextDelta | ToolCalled | Choices | TurnEnd | Completed


def compare(logprobs: Sequence[float | None]) -> list[float]:
    """Probabilities of choices, together 1, out of their log probabilities.

    Empty: one is missing (None) or is not a number, or all are impossible.
    """
    known = [value for value in logprobs if value is not None and not math.isnan(value) and value < math.inf]
    if len(known) < len(logprobs) or (most := max(known, default=-math.inf)) == -math.inf:
        return []
    weights = [math.exp(value - most) for value in known]
    return [weight / sum(weights) for weight in weights]


def new_cache_salt() -> str:
    """A salt that no other request has."""
    return random_hex(16)


def choose_sampling(options: SamplingOptions, default: Sampling) -> Sampling:
    """The session's options, and where they are not set the server's, whose ``max_tokens`` is the limit too.

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
    """Check the ranges; ``where`` is put before the names of fields in errors.

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
