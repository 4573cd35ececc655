"""What the services expect of an inference engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar


class PrioritizedRequest(Protocol):
    """Any request to an engine.

    Apart because the packages that define requests (text here, T3's in :mod:`parley.tts`) share no base.
    """

    @property
    def request_id(self) -> str:
        """Unique among the requests that run."""
        ...

    @property
    def priority(self) -> int:
        """The lower goes first where not all fit, if the engine's scheduling policy has priorities."""
        ...


RequestT_contra = TypeVar("RequestT_contra", bound=PrioritizedRequest, contravariant=True)


@dataclass(frozen=True)
class EngineRequest:
    """One prompt of text to be continued."""

    request_id: str
    prompt: Sequence[int]
    """Token ids."""
    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    priority: int = 0
    structural_tag: str | None = None
    """Constrains the text, in the form of vLLM's structured outputs; None: anything."""
    skip_special_tokens: bool = True
    """Whether tokens that are no text are left out of the text."""


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

    def __add__(self, later: Progress) -> Progress:
        """Join two reports into one."""
        return Progress(
            self.text + later.text,
            self.tokens + later.tokens,
            max(self.cached_tokens, later.cached_tokens),
            later.finish_reason,
            self.token_ids + later.token_ids,
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
