"""What the services expect of an inference engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

from parley.tracing import Trace


class PrioritizedRequest(Protocol):
    """Any request to an engine."""

    @property
    def request_id(self) -> str:
        """Unique among the requests that run."""
        ...

    @property
    def priority(self) -> int:
        """The lower goes first where not all fit, if the engine's scheduling policy has priorities."""
        ...

    @property
    def traceparent(self) -> str:
        """Span of the request (W3C Trace Context), for spans of the engine's own; empty: there is none."""
        ...


RequestT_contra = TypeVar("RequestT_contra", bound=PrioritizedRequest, contravariant=True)


@dataclass(frozen=True)
class EngineRequest:
    """One prompt of text to be continued."""

    request_id: str
    prompt: Sequence[int]
    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    priority: int = 0
    structural_tag: str | None = None
    """Constrains the text, in the form of vLLM's structured outputs; None: anything."""
    skip_special_tokens: bool = True
    """Whether tokens that are no text are left out of the text."""
    cache_salt: str = ""
    """The prefix cache is shared with requests of the same salt only. Empty: with all that have none."""
    traceparent: str = ""
    scored: tuple[int, ...] = ()
    """Tokens whose log probabilities are wanted, as the first of the answer."""
    scored_at: tuple[int, ...] = ()
    """Indices of the prompt's tokens in whose places they are wanted instead; not every engine can."""


@dataclass(frozen=True)
class EngineTimes:
    """What an engine has done with a request so far. Times are seconds of the monotonic clock."""

    queued_at: float
    begun_at: float
    """When the first step with the request began."""
    first_token_at: float
    last_token_at: float
    preemptions: int = 0
    """How often the request was put back into the queue."""

    def record(self, span: Trace) -> None:
        """Add the stages to the request's span, as spans below it."""
        span.child("queue", start_s=self.queued_at).end(self.begun_at)
        span.child("prefill", start_s=self.begun_at).end(self.first_token_at)
        span.child("decode", start_s=self.first_token_at).end(self.last_token_at)
        span.set({"parley.preemptions": self.preemptions})


@dataclass(frozen=True)
class Progress:
    """What an engine has written since the last report."""

    text: str = ""
    """Whole characters only: bytes of an unfinished character wait for the rest."""
    tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens served from the prefix cache; the same in every report of a request."""
    finish_reason: Literal["stop", "length", "abort"] | None = None
    """Set in the last report."""
    token_ids: tuple[int, ...] = ()
    """The tokens themselves."""
    times: EngineTimes | None = None
    """None: the engine does not measure them."""
    logprobs: Mapping[int, float] = field(default_factory=dict)
    """Of the tokens that are scored, before sampling parameters change them; in the report of the first
    token. Empty: the engine has none."""
    prompt_logprobs: tuple[Mapping[int, float], ...] = ()
    """Those of the places in ``scored_at``, in the first report; NaN where one is in the prefix cache."""

    def __add__(self, later: Progress) -> Progress:
        """Join two reports into one."""
        return Progress(
            self.text + later.text,
            self.tokens + later.tokens,
            max(self.cached_tokens, later.cached_tokens),
            later.finish_reason,
            self.token_ids + later.token_ids,
            later.times or self.times,
            self.logprobs or later.logprobs,
            self.prompt_logprobs or later.prompt_logprobs,
        )


class Translation(Protocol[RequestT_contra]):
    """Between one kind of request and vLLM's own types; needs vLLM imported."""

    def prompt(self, request: RequestT_contra) -> Any:
        """The prompt, as vLLM's ``add_request`` takes it."""
        ...

    def sampling(self, request: RequestT_contra) -> Any:
        """The ``SamplingParams``."""
        ...

    def read(self, output: Any) -> Progress:
        """The progress in a ``RequestOutput``; raises ``InferenceError`` if it reports a failure."""
        ...


class Engine(Protocol[RequestT_contra]):
    """Continues prompts, many at a time. Used from one event loop."""

    @property
    def busy(self) -> bool:
        """Whether it has requests; may be read from any thread."""
        ...

    def generate(self, request: RequestT_contra) -> AsyncGenerator[Progress, None]:
        """Report progress until it has a finish reason; raises a ``ParleyError`` on failure.

        Closing the generator early frees what the request holds in the engine.
        """
        ...

    async def abort(self, request_id: str) -> None:
        """End a request within one step; unknown ids are not an error."""
        ...

    async def shutdown(self) -> None:
        """Fail what is running and free the engine."""
        ...
