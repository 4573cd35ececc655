"""How the language model ends a call: the tools ``end_call`` and ``transfer``.

Such a call takes effect at the end of its turn, when the user has heard the answer. Until then it is nothing
but a call with the result :data:`ACCEPTED` in a round of the turn: so a turn that goes on at another server
ends the call there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from parley.agent.memory import ToolRound
from parley.chat import ToolCall
from parley.protocol import Closed, EndingOptions, Tool, Transfer, TransferTarget
from parley.tools.base import InstantTools, ToolOutcome

END_CALL = "end_call"
TRANSFER = "transfer"
_NAMES = frozenset((END_CALL, TRANSFER))
_MAX_TEXT = 1_000
"""Characters of a reason or a summary; the rest is cut off."""
_OUTCOME = {"accepted": True}
ACCEPTED = msgspec.json.encode(_OUTCOME).decode()
"""Result of a call that ends the conversation with its turn."""
_CANCELLED = '{"error":"cancelled: the user spoke before the end of your answer, and the call goes on"}'
_NOT_ALONE = (
    '{"error":"not done: call it alone, in an answer of its own, after the results of your other tools"}'
)
_END_DESCRIPTION = (
    "Ends the call. Use it when the user says goodbye or needs nothing more. Write your goodbye in the same "
    "answer: it is spoken, then the call ends."
)
_TRANSFER_DESCRIPTION = (
    "Connects the user with a person and ends your part of the call. Write in the same answer that you "
    "connect the user: it is spoken first. Possible are: {}"
)
END_NOTE = "The call ends after your answer. Say goodbye to the user in one short sentence."
"""For the language model, which has written no words with its call of ``end_call``."""
TRANSFER_NOTE = "The user is connected after your answer. Say so to the user in one short sentence."
"""For the language model, which has written no words with its call of ``transfer``."""


class EndingTools(InstantTools):
    """The tools of a session's options; see :class:`parley.tools.base.ServerTools`.

    ``language``: what the agent speaks.
    """

    def __init__(self, options: EndingOptions, language: str = "") -> None:
        self._language = language
        self._targets = {target.name: target for target in options.transfers}
        tools = [_end_tool()] if options.end_call else []
        if self._targets:
            tools.append(_transfer_tool(options.transfers))
        self.tools: Sequence[Tool] = tuple(tools)
        """Those that are on."""
        self.names = frozenset(tool.name for tool in tools)
        """Their names."""

    def act(self, arguments: Mapping[str, Any]) -> ToolOutcome:  # noqa: ARG002 - of the base class
        """Accept a call; :meth:`closed` is what comes of it."""
        return ToolOutcome(_OUTCOME)

    def closed(self, call: ToolCall) -> Closed | None:
        """The session's last event after an accepted call; None: its tool or target is not there."""
        if call.name not in self.names:
            return None
        if call.name == END_CALL:
            return Closed(reason="agent_ended", agent_reason=_text_of(call, "reason"))
        target = self._targets.get(_text_of(call, "to"))
        if target is None:
            return None
        return Closed(
            reason="transferred",
            transfer=Transfer(
                name=target.name,
                to=target.to,
                summary=_text_of(call, "summary"),
                language=self._language,
                warm=target.warm,
            ),
        )


@dataclass(frozen=True)
class Ending:
    """An accepted call, and the round that has made it."""

    answer: ToolRound
    call: ToolCall

    @property
    def note(self) -> str:
        """Asks the language model for the words that it has not written."""
        return END_NOTE if self.call.name == END_CALL else TRANSFER_NOTE

    def cancel(self) -> None:
        """The conversation goes on: the language model reads so in the result of its call."""
        self.answer.results[self.call.id] = _CANCELLED


def find_ending(rounds: Sequence[ToolRound], built_in: Collection[str]) -> Ending | None:
    """The call with which a turn ends the conversation.

    ``built_in``: the names that are on; a tool of the client may have one that is off.
    """
    for answer in rounds:
        for call in _ending_calls(answer, built_in):
            if answer.results.get(call.id) == ACCEPTED:
                return Ending(answer, call)
    return None


def refuse_ending(answer: ToolRound, built_in: Collection[str]) -> None:
    """Refuse calls that end the conversation, but for the first, and for one among calls of other tools.

    Their results would come after the end.
    """
    calls = _ending_calls(answer, built_in)
    for call in calls if len(calls) < len(answer.calls) else calls[1:]:
        answer.results.setdefault(call.id, _NOT_ALONE)


def _ending_calls(answer: ToolRound, built_in: Collection[str]) -> list[ToolCall]:
    return [call for call in answer.calls if call.name in _NAMES and call.name in built_in]


def _text_of(call: ToolCall, name: str) -> str:
    # The schema was checked, but not where another server has accepted the call.
    value = call.arguments.get(name, "")
    return value.strip()[:_MAX_TEXT] if isinstance(value, str) else ""


def _end_tool() -> Tool:
    reason = {"type": "string", "description": "Why the call ends, in a few words."}
    return _tool(END_CALL, _END_DESCRIPTION, {"reason": reason}, ["reason"])


def _transfer_tool(targets: Sequence[TransferTarget]) -> Tool:
    listed = "; ".join(
        f"{target.name} ({target.description})" if target.description else target.name for target in targets
    )
    to = {"type": "string", "enum": [target.name for target in targets]}
    summary = {"type": "string", "description": "For the person: who calls, and what was said so far."}
    description = _TRANSFER_DESCRIPTION.format(listed)
    return _tool(TRANSFER, description, {"to": to, "summary": summary}, ["to", "summary"])


def _tool(name: str, description: str, properties: dict[str, Any], required: list[str]) -> Tool:
    parameters = {"type": "object", "properties": properties, "required": required}
    return Tool(name=name, description=description, parameters=parameters)
