"""The steps of a session: parts of its conversation, each with instructions and tools of its own.

A step that is to begin is :attr:`OutcomeState.next_step` until :meth:`Steps.enter` is called: never while the
language model writes, so that the prompt of an answer changes only between two of its requests.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec

from parley.agent.memory import ToolRound
from parley.agent.outcomes import OutcomeEvent, Outcomes
from parley.errors import InvalidMessageError
from parley.names import check_known, check_names
from parley.protocol import Decision, Start, Step, StepChanged, Tool, Transition
from parley.tools.base import InstantTools, ToolOutcome

GO_TO_STEP = "go_to_step"
_DESCRIPTION = (
    "Goes on to another part of the conversation, with instructions and tools of its own. Possible are: {}"
)


class Steps(InstantTools):
    """The steps of a session's options, and :class:`parley.tools.base.ServerTools` to change them.

    ``on_due`` is called when a step is to begin for another reason than a call of the tool.
    """

    def __init__(self, steps: Sequence[Step], outcomes: Outcomes, on_due: Callable[[], None]) -> None:
        self._steps = {step.name: step for step in steps}
        self._outcomes = outcomes
        self._on_due = on_due
        self.names = tool_names(steps)
        """Names of the tools of all steps."""
        outcomes.on_change = self._on_outcome

    @property
    def current(self) -> Step | None:
        """The step that the prompts belong to; None: the session has none."""
        return self._steps.get(self._outcomes.state.step or next(iter(self._steps), ""))

    def begin(self) -> None:
        """Enter the first step, unless the session goes on in one."""
        if self.current is not None and not self._outcomes.state.step:
            self._outcomes.set_step(self.current.name)

    def enter(self) -> list[Step]:
        """Enter the step that is to begin, and those behind it whose data are collected already.

        None of them is entered twice, so that it ends.
        """
        entered: list[Step] = []
        while (step := self._steps.get(self._outcomes.state.next_step)) is not None and step not in entered:
            self._outcomes.set_step(step.name)
            entered.append(step)
            self._follow_data()
        self._outcomes.request_step("")
        return entered

    # --- what makes a step begin ----------------------------------------------------------

    def _on_outcome(self, event: OutcomeEvent) -> None:
        if isinstance(event, StepChanged):
            return
        if isinstance(event, Decision):
            self._follow(lambda way: _decides(event, way))
        else:
            self._follow_data()
        if self._outcomes.state.next_step:
            self._on_due()

    def _follow_data(self) -> None:
        collected = self._outcomes.state.collected
        self._follow(lambda way: bool(way.collected) and all(name in collected for name in way.collected))

    def _follow(self, holds: Callable[[Transition], bool]) -> None:
        """Let the first step begin whose condition holds, unless another one is to begin already."""
        step = self.current
        if step is not None and not self._outcomes.state.next_step:
            found = next((way for way in step.next if holds(way)), None)
            if found is not None:
                self._outcomes.request_step(found.to)

    # --- the tool ---------------------------------------------------------------------------

    @property
    def tools(self) -> Sequence[Tool]:
        """The tool for the ways of the current step."""
        ways = [way for way in self.current.next if way.when] if self.current is not None else []
        return [_make_tool(ways)] if ways else []

    def act(self, arguments: Mapping[str, Any]) -> ToolOutcome:
        """Let a step begin behind the calls of this round."""
        step = arguments["step"]
        if self._outcomes.state.next_step not in ("", step):
            return ToolOutcome.failed(f"the step {self._outcomes.state.next_step} begins now")
        self._outcomes.request_step(step)
        return ToolOutcome({"step": step})


def forget_transitions(rounds: Sequence[ToolRound], built_in: Collection[str]) -> None:
    """Take the calls out of rounds by which steps have begun, but for those behind words to the user.

    The language model then answers the user, and does not report the result of a call.
    """
    for answer in rounds:
        if answer.said or GO_TO_STEP not in built_in:
            continue
        for call in [call for call in answer.calls if call.name == GO_TO_STEP]:
            accepted = msgspec.json.encode({"step": call.arguments.get("step", "")}).decode()
            if answer.results.get(call.id) == accepted:
                answer.calls.remove(call)
                del answer.results[call.id]


def tool_names(steps: Sequence[Step]) -> frozenset[str]:
    """Names of the tools that steps need."""
    return frozenset({GO_TO_STEP} if any(way.when for step in steps for way in step.next) else ())


def _decides(event: Decision, way: Transition) -> bool:
    wanted = way.decision
    if wanted is None or (wanted.name, wanted.value) != (event.name, event.value):
        return False
    return event.probabilities[event.value] >= wanted.probability


def _make_tool(ways: Sequence[Transition]) -> Tool:
    names = list(dict.fromkeys(way.to for way in ways))
    listed = "; ".join(f"{way.to} ({way.when})" for way in ways)
    parameters = {
        "type": "object",
        "properties": {"step": {"type": "string", "enum": names}},
        "required": ["step"],
    }
    return Tool(name=GO_TO_STEP, description=_DESCRIPTION.format(listed), parameters=parameters)


def check_steps(start: Start, tools: Collection[str]) -> None:
    """Refuse steps with names that nothing has, and steps that cannot be reached.

    Raises:
        InvalidMessageError: the text names the field.
    """
    names, fields = [step.name for step in start.steps], [field.name for field in start.collect]
    answers = {question.name: question.answers for question in start.decisions}
    check_names(names, "steps", "steps")
    for number, step in enumerate(start.steps):
        at = f"steps[{number}]"
        for tool in step.tools or ():
            check_known(tool, tools, f"{at}.tools: no tool")
        for field in step.collect or ():
            check_known(field, fields, f"{at}.collect: no field")
        others = [name for name in names if name != step.name]
        for index, way in enumerate(step.next):
            check_known(way.to, others, f"{at}.next[{index}].to: no other step")
            _check_condition(way, fields, answers, f"{at}.next[{index}]")
    if names:
        _check_reached(start.steps)


def _check_condition(
    way: Transition, fields: Collection[str], answers: Mapping[str, Sequence[str]], at: str
) -> None:
    if sum(map(bool, (way.when.strip(), way.collected, way.decision))) != 1:
        raise InvalidMessageError(f"{at}: it must have one of when, collected and decision")
    for field in way.collected:
        check_known(field, fields, f"{at}.collected: no field")
    if way.decision is not None:
        check_known(way.decision.name, answers, f"{at}.decision.name: no question")
        check_known(way.decision.value, answers[way.decision.name], f"{at}.decision.value: no answer")


def _check_reached(steps: Sequence[Step]) -> None:
    ways = {step.name: [way.to for way in step.next] for step in steps}
    reached, waiting = {steps[0].name}, [steps[0].name]
    while waiting:
        found = [name for name in ways[waiting.pop()] if name not in reached]
        reached.update(found)
        waiting += found
    for number, step in enumerate(steps):
        if step.name not in reached:
            raise InvalidMessageError(f"steps[{number}]: no way leads to the step {step.name!r}")
