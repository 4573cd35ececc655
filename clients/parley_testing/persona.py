"""Callers whose words are a language model's, and a model that judges calls."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass

from parley.chat import ChatMessage
from parley.engines.base import ChatModel, Closable
from parley.llm.messages import GenerateRequest, Sampling, TextDelta
from parley_testing.caller import Improvise
from parley_testing.criteria import Check, spoken_text
from parley_testing.log import CallLog
from parley_testing.scenario import Exchange, Persona, Sentence, StartCue
from parley_testing.turns import read_turns

_HANG_UP = re.compile(r"\[\s*hang[\s_-]?up\s*\]", re.IGNORECASE)
_MOST_TOKENS = 120
_MOST_CHARACTERS = 600
"""Of one line of a caller, whatever the model writes."""
_RULES = """You play a caller on the telephone; the user is the agent who takes the call. Who you are:

{persona}

Say one or two short sentences at a time, as people speak: no lists, no stage directions, no quotation marks.
Stay in your role, and answer what you are asked. When you have what you called for, or cannot get it, say
goodbye and write [hang up] at the end."""
_JUDGE = """You check one statement about a telephone call between a caller and an agent. Answer with "yes" if
it is true, else with "no", and a reason in one sentence."""
_SILENCE = "(silence)"


@dataclass(frozen=True)
class ChatClient:
    """A model that plays a caller or judges."""

    model: ChatModel

    async def close(self) -> None:
        """Close its connections."""
        if isinstance(self.model, Closable):
            await self.model.close()

    async def complete(self, messages: Sequence[ChatMessage], sampling: Sampling) -> str:
        """The whole answer.

        Raises:
            InferenceError: the server cannot be reached, or refused.
        """
        request = GenerateRequest(messages=list(messages), sampling=sampling)
        async with aclosing(self.model.generate(request)) as events:
            return "".join([event.text async for event in events if isinstance(event, TextDelta)]).strip()


def improvise(persona: Persona, client: ChatClient, seed: int) -> Improvise:
    """The caller that a model plays."""
    sampling = Sampling(temperature=0.7, max_tokens=_MOST_TOKENS, seed=seed)
    spoken = 0
    is_over = False

    async def next_exchange(log: CallLog) -> Exchange | None:
        nonlocal spoken, is_over
        if is_over or spoken >= persona.max_turns:
            return None
        spoken += 1
        rules = ChatMessage(role="system", content=_RULES.format(persona=persona.prompt))
        written = await client.complete([rules, *_dialogue(log)], sampling)
        line, hang_ups = _HANG_UP.subn(" ", written)
        is_over = hang_ups > 0
        line = " ".join(line.split())[:_MOST_CHARACTERS].strip('"“” ')
        return _exchange(log, line, is_last=is_over) if line else None

    return next_exchange


def _exchange(log: CallLog, line: str, *, is_last: bool) -> Exchange:
    is_text = log.scenario.start.output == "text"
    caller = log.scenario.caller
    return Exchange(
        index=len(log.acts),
        kind="text" if is_text else "say",
        cue=StartCue("idle", 0),
        sentence=None if is_text else Sentence(tuple(line.split())),
        content=line if is_text else "",
        words=line.lower(),
        voice=caller.voice,
        rate=caller.rate,
        tools=None,
        answered="maybe" if is_last else True,
    )


def dialogue(log: CallLog) -> list[tuple[str, str]]:
    """Who said what: ``caller`` or ``agent``, and the text, in order."""
    acts = [
        (act.began_s, "caller", exchange.sentence.text if exchange.sentence else exchange.content)
        for act in log.acts
        if (exchange := act.exchange).is_turn and act.staged
    ]
    answers = [(answer.began_s, "agent", spoken_text(answer).strip()) for answer in read_turns(log).answers]
    lines = sorted([*acts, *answers], key=lambda line: line[0])
    return [(who, text) for _, who, text in lines if text]


def _dialogue(log: CallLog) -> list[ChatMessage]:
    """As the model of the caller sees it: the agent is its user."""
    messages = [
        ChatMessage(role="assistant" if who == "caller" else "user", content=text)
        for who, text in dialogue(log)
    ]
    if not messages or messages[-1].role == "assistant":
        messages.append(ChatMessage(role="user", content=_SILENCE))
    return messages


async def judge(log: CallLog, client: ChatClient) -> list[Check]:
    """Let a model confirm the statements of a scenario about its call, each by itself."""
    calls = [
        f"(the agent called {call.name} with {call.arguments})"
        for answer in read_turns(log).answers
        for _, call in answer.tools
    ]
    call = "\n".join([*(f"{who}: {text}" for who, text in dialogue(log)), *calls])
    checks = []
    for statement in log.scenario.expect.judge:
        asked = f"The call:\n{call}\n\nThe statement: {statement}"
        messages = [ChatMessage(role="system", content=_JUDGE), ChatMessage(role="user", content=asked)]
        answer = await client.complete(messages, Sampling(max_tokens=_MOST_TOKENS))
        is_true = answer.casefold().lstrip('*"“ ').startswith("yes")
        checks.append(Check(f"judged: {statement}", "" if is_true else answer or "the judge said nothing"))
    return checks
