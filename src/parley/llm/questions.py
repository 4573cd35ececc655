"""Questions about a conversation: the log probabilities of their answers, in one step of the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from parley.llm.engine import Engine, EngineRequest, Progress
from parley.llm.messages import compare
from parley.llm.prompt import QuestionPrompt


@dataclass(frozen=True)
class Comparison:
    """What came of the questions of one request."""

    probabilities: list[list[float]]
    """Of the choices of each; empty: the model gave none that can be used."""
    cached_tokens: int
    aborted: bool


class QuestionEngine:
    """Asks all questions of a request at once, and those of one request at a time.

    So they take no more places in the engine's steps than one request has questions, however many sessions
    ask. ``is_aborted``: whether a request was aborted.
    """

    def __init__(self, engine: Engine[EngineRequest], is_aborted: Callable[[str], bool]) -> None:
        self._engine = engine
        self._is_aborted = is_aborted
        self._running: dict[str, list[str]] = {}
        self._turn = asyncio.Lock()

    async def ask(self, template: EngineRequest, prompts: Sequence[QuestionPrompt]) -> Comparison:
        """Compare the choices of each prompt; ``template`` has the rest of the engine's requests.

        Raises:
            ParleyError: the engine has failed.
        """
        name = template.request_id
        requests = [
            EngineRequest(
                f"{name}-{number}",
                prompt.ids,
                1,
                priority=template.priority,
                cache_salt=template.cache_salt,
                traceparent=template.traceparent,
                scored=tuple(prompt.choices),
            )
            for number, prompt in enumerate(prompts)
        ]
        self._running[name] = [request.request_id for request in requests]
        try:
            async with self._turn:
                if self._is_aborted(name):
                    return Comparison([], 0, aborted=True)
                # All end before the first failure is raised: none is left in the engine.
                answers = (first_report(self._engine, request) for request in requests)
                found = await asyncio.gather(*answers, return_exceptions=True)
        finally:
            del self._running[name]
        reports: list[Progress] = []
        for report in found:
            if isinstance(report, BaseException):
                raise report
            reports.append(report)
        return Comparison(
            [
                compare([report.logprobs.get(token) for token in prompt.choices])
                for report, prompt in zip(reports, prompts, strict=True)
            ],
            sum(report.cached_tokens for report in reports),
            aborted=self._is_aborted(name),
        )

    async def abort(self, request_id: str) -> None:
        """End the questions of a request within one step; unknown ids are not an error."""
        for name in self._running.get(request_id, ()):
            await self._engine.abort(name)


async def first_report(engine: Engine[EngineRequest], request: EngineRequest) -> Progress:
    """What comes of a request for one token.

    Raises:
        ParleyError: the engine has failed.
    """
    whole = Progress()
    async with aclosing(engine.generate(request)) as steps:
        async for step in steps:
            whole += step
    return whole
