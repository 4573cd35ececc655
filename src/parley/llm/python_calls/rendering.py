"""The conversation for a model that writes Python."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from parley.chat import ChatMessage, ToolCall
from parley.llm.guidance import ToolSetCache
from parley.llm.prompt import Rendered, plain_message
from parley.llm.python_calls.functions import SAY, Function, as_functions
from parley.protocol import Tool

_INSTRUCTIONS = f"""\
You are a voice assistant written in Python. For each line the caller says, write one line of Python: a call \
of the function the caller asks for, or {SAY}("...") with a short spoken answer.
```python
{{}}
def {SAY}(text: str):
    \"\"\"Say something: greetings, answers, small talk\"\"\"
```"""
# Without examples the model calls functions for small talk, and answers what a function would find out. None
# of the functions that are called here is defined: with definitions, calls for small talk were many.
_EXAMPLES: tuple[tuple[str, str | tuple[str, dict[str, Any]]], ...] = (
    ("Hello!", "Hi! How can I help?"),
    ("Could you put on some jazz?", ("play_music", {"query": "jazz"})),
    ("I really like this song.", "Me too, it is lovely."),
    ("Do I have any mail from my brother?", ("check_mail", {"sender": "brother"})),
    ("My brother writes a lot.", "That is nice of him!"),
    ("Who painted the Mona Lisa?", "Leonardo da Vinci."),
    ("Tape channel four at 5 pm.", ("record_show", {"channel": 4, "time": "5 pm"})),
    ("Sorry, at half past five.", ("record_show", {"channel": 4, "time": "half past five"})),
    ("I got up late yesterday.", "Oh no! Did you miss anything?"),
    ("We're out of stamps, eight would do.", ("order_stamps", {"count": 8})),
    ("How does a stamp stick?", "There is glue on its back."),
    (
        "Is the pharmacy on Hill Street still open?",
        ("check_shop", {"name": "pharmacy", "street": "Hill Street"}),
    ),
    ("My street is very quiet.", "That sounds peaceful."),
    ("How are you?", "I am fine, thank you."),
    ("I don't need ticket 4410 after all.", ("give_back_ticket", {"number": "4410"})),
    ("Oh, it is 4401.", ("give_back_ticket", {"number": "4401"})),
    ("The concert was great.", "I am glad you liked it!"),
    ("The letters are tiny, make them eighteen.", ("set_letters", {"points": 18})),
    ("How long is a marathon?", "About forty two kilometres."),
    ("Did the Rovers win?", ("get_score", {"team": "Rovers"})),
    ("I never watch football.", "What do you like to watch?"),
    ("What is a goalkeeper?", "The player who guards the goal."),
    ("How high is the ferry fare to Malta?", ("ferry_fare", {"port": "Malta"})),
    ("I was on Malta once.", "How did you like it?"),
    ("Say hello to my neighbour Mrs. Doyle at the door.", ("greet", {"person": "Mrs. Doyle"})),
    ("My neighbour has a dog.", "What is its name?"),
    ("The plants by the door look dry, two cups each.", ("water_plants", {"place": "door", "cups": 2})),
    ("I like plants.", "They make a room friendly."),
    ("We want to see the whales, there are seven of us.", ("book_boat", {"people": 7})),
    ("Whales are huge.", "Yes, they are the largest animals."),
    ("How many calories does a mango have?", ("look_up_food", {"name": "mango"})),
    ("What is a mango?", "A sweet fruit with a large stone."),
    ("Ten points for the blue team.", ("add_points", {"team": "blue", "points": 10})),
    ("Blue is my favourite colour.", "It is a calm colour."),
    ("What does my diary say for Sunday?", ("read_diary", {"day": "Sunday"})),
    ("Sundays are boring.", "What do you do then?"),
    ("I've finished chapter nine, remember that.", ("save_progress", {"chapter": 9})),
    ("Thank you.", "You are welcome!"),
)
# What some of the calls return, and the answer to it. Without them the model may answer that a result means
# nothing to it.
_RESULTS = {
    "play_music": ('{"playing": "So What"}', "Here is So What."),
    "check_mail": (
        '{"unread": 2, "newest": "Holiday plans"}',
        "You have two, the newest is about holiday plans.",
    ),
    "order_stamps": ('{"ok": true}', "Okay, eight stamps are on their way."),
    "check_shop": ('{"open": false}', "No, it is closed."),
    "get_score": ('{"rovers": 2, "albion": 1}', "Yes, the Rovers won two to one."),
    "ferry_fare": ('{"price": 24, "currency": "euro"}', "The ferry to Malta costs 24 euros."),
}
# Where there are no functions. Without these it writes lists, goes on and on, and invents more.
_TALK = (
    ("Hello!", "Hi! How can I help?"),
    ("Who painted the Mona Lisa?", "Leonardo da Vinci."),
    ("I really like this song.", "Me too, it is lovely."),
    ("Is the shop still open?", "I do not know, I cannot look that up."),
    ("How do I make tea?", "Pour boiling water over the leaves, and wait three minutes."),
    ("I am sad today.", "I am sorry to hear that. Do you want to tell me about it?"),
    ("Are you real?", "I am a computer program, but I like to talk."),
    ("What day is it?", "I do not know, I have no calendar."),
    ("What is a glacier?", "A large mass of ice that moves slowly down a valley."),
    ("How tall am I?", "I do not know, you have not told me."),
    ("Book me a train.", "I am sorry, I cannot do that."),
    ("Tell me about cats.", "Cats sleep most of the day, and they can see very well in the dark."),
    ("Thank you.", "You are welcome!"),
)


class PythonRendering:
    """:class:`parley.llm.prompt.Rendering` of tools as Python functions.

    Conversations without tools are of plain text; calls that they had are written into their results.

    Args:
        examples: whether the prompt shows how to answer, which a model needs that was not trained for it. The
            examples are some 900 tokens.
    """

    def __init__(self, *, examples: bool) -> None:
        self._instructions = ToolSetCache(_instructions)
        self._examples = _examples() if examples else ()
        self._talk = _talk() if examples else ()

    def render(self, messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> Rendered:
        """The messages as the chat template takes them, with examples behind the system prompt."""
        system = ""
        if messages and messages[0].role == "system":
            system, messages = messages[0].content, messages[1:]
        if not tools:
            opening = [{"role": "system", "content": system}] if system else []
            return Rendered([*opening, *self._talk, *_without_functions(messages)], examples=self._talk)
        instructions = self._instructions(tools)
        content = "\n\n".join(filter(None, (system, instructions)))
        rendered = [{"role": "system", "content": content}, *self._examples]
        return Rendered(rendered + _with_functions(messages, as_functions(tools)), examples=self._examples)

    def open(self, text: str, tools: Sequence[Tool]) -> str:
        """The text, with tools as the beginning of a call of ``say``."""
        return said(text)[: -len('")')] if tools else text

    def calls(self, tools: Sequence[Tool]) -> Sequence[str]:
        """The functions up to the bracket."""
        return [f"{function.name}(" for function in as_functions(tools)]


def said(text: str) -> str:
    """The assistant's words as a call of ``say``."""
    return f"{SAY}({json.dumps(text, ensure_ascii=False)})"


def _instructions(tools: Sequence[Tool]) -> str:
    return _INSTRUCTIONS.format("\n".join(function.definition() for function in as_functions(tools)))


@cache
def _examples() -> tuple[dict[str, str], ...]:
    rendered = []
    for number, (asked, answer) in enumerate(_EXAMPLES):
        if isinstance(answer, str):
            answered = said(answer)
        else:
            name, arguments = answer
            answered = _call(ToolCall(id=str(number), name=name, arguments=arguments), {})
        rendered += [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]
        if not isinstance(answer, str) and answer[0] in _RESULTS:
            result, spoken = _RESULTS[answer[0]]
            rendered += [
                {"role": "user", "content": f"{answered} returned {result}"},
                {"role": "assistant", "content": said(spoken)},
            ]
    return tuple(rendered)


@cache
def _talk() -> tuple[dict[str, str], ...]:
    turns = [
        ({"role": "user", "content": asked}, {"role": "assistant", "content": answered})
        for asked, answered in _TALK
    ]
    return tuple(message for turn in turns for message in turn)


def _with_functions(messages: Sequence[ChatMessage], functions: Sequence[Function]) -> list[dict[str, Any]]:
    by_tool = {function.tool.name: function for function in functions}
    calls: dict[str, str] = {}
    rendered = []
    for message in messages:
        if message.role == "assistant":
            lines = [said(message.content)] if message.content else []
            for call in message.tool_calls:
                calls[call.id] = _call(call, by_tool)
                lines.append(calls[call.id])
            rendered.append({"role": "assistant", "content": "\n".join(lines)})
        elif message.role == "tool":
            rendered.append(_result(message, calls))
        else:
            rendered.append(plain_message(message))
    return rendered


def _without_functions(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    calls: dict[str, str] = {}
    rendered = []
    for message in messages:
        for call in message.tool_calls:
            calls[call.id] = _call(call, {})
        if message.role == "tool":
            rendered.append(_result(message, calls))
        elif message.role != "assistant" or message.content:
            rendered.append({"role": message.role, "content": message.content})
    return rendered


def _call(call: ToolCall, functions: dict[str, Function]) -> str:
    # The parameters of a removed tool are the arguments of its calls.
    gone = Tool(name=call.name, parameters={"properties": {name: {} for name in call.arguments}})
    function = functions.get(call.name) or as_functions([gone])[0]
    return function.call(call.arguments)


def _result(message: ChatMessage, calls: dict[str, str]) -> dict[str, Any]:
    # What a web page says is no more than what the caller says, and in one line: the next one could be the
    # result of another call.
    result = " ".join(message.content.splitlines())
    return {"role": "user", "content": f"{calls.get(message.tool_call_id, 'It')} returned {result}"}
