"""Conversations with the tiny voice assistant: what it answers, and when it calls a tool.

A :class:`Dialogue` holds the messages as a server would send them, and a :class:`Reply` for
every place where the assistant speaks or calls a tool. What a reply is depends only on the
messages before it, so a dialogue may begin anywhere, as it does when a server drops its
oldest turns:

- A place without a tool of its own ("and in london") asks the last city tool again, with the
  same day; without one, it asks for the weather. A corrected city does the same.
- A corrected duration starts the last timer again, with the same label.
- Anything unknown is refused, and the refusal lists what is possible (:data:`FALLBACK`). Without
  tools it lists nothing, and what needs a tool is refused too (:data:`REFUSAL`). With a part of
  the tools the model must not call the others: a server answers a call of a missing tool with an error.
- An assistant message that ends with "…" was interrupted; "can you repeat that" then brings
  the whole message.
- What the user says before any answer is heard is joined to the user message before it; it may
  correct it, or ask for something else.
"""

from __future__ import annotations

import dataclasses
import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from tiny import callers, domain, words
from tiny.domain import DAYS, NAMES, ONES, TENS, Utterance, number_words
from tiny.settings import PROPERTIES, Message, Setting
from tiny.words import misspell

_NUMBERS = {number_words(n): n for n in range(70)}
_NUMBER = re.compile(rf"\b(?:{'|'.join(sorted(_NUMBERS, key=len, reverse=True))})\b")
_QUESTION = re.compile(
    r"(?:what|how|who|will|is|do|does|can|where|when|why|and|sorry what|\w+ in .* what's|on \w+ in)\b"
)
_PRONOUN = re.compile(r"\bi\b")
_LOST = frozenset(("a", "the", "please", "is", "it", "me", "now", "like", "will", "you"))
_WEEKDAYS = DAYS[3:]
_PROPER_NOUN = re.compile(rf"\b(?:{'|'.join((*_WEEKDAYS, *NAMES))})\b")
Split = Literal["train", "test"]
_Maker = Callable[[random.Random], Utterance]
REFUSAL = "Sorry, I can't help with that."
FALLBACK = f"{REFUSAL} I can tell you the weather and the time, and set timers."
TOOL_FAILED = "Sorry, that did not work. Please try again."
WHICH_CITY = "For which city?"
HOW_LONG = "For how many minutes?"
NAME_UNKNOWN = "You have not told me your name yet."
NOTHING_SAID = "I have not said anything yet."
STOPPED = "Okay."
SKIES = ("sunny", "cloudy", "rainy", "windy", "foggy", "snowy")
_ERRORS = ("timeout", "not found", "service unavailable", "unknown city", "no such city", "too many timers")
# What needs an earlier turn is rare and hard, so training sees more of it than the test does.
_LOOKS_BACK = frozenset(("_follow_up", "_correct_city", "other_day", "correct_minutes", "repeat", "ask_name"))
_OWN_TOOL = {"weather": "get_weather", "time": "get_time", "timer": "set_timer"}


def capitalised(name: str) -> str:
    """``san felipe`` as it is written in arguments and answers: ``San Felipe``."""
    return " ".join(word[:1].upper() + word[1:] for word in name.split(" "))


def typed(utterance: Utterance, rng: random.Random) -> str:
    """Write an utterance as a person types it: capitals, digits and punctuation."""
    text = utterance.text
    if utterance.intent == "phone_number":
        kind, digits = str(utterance.slots["kind"]), str(utterance.slots["digits"])
        text = f"my {kind} is {digits.replace(' ', '') if rng.random() < 0.7 else digits}"
    else:
        text = _NUMBER.sub(lambda match: str(_NUMBERS[match.group()]), text)
    question = bool(_QUESTION.match(text)) and utterance.intent not in ("correct_city", "correct_minutes")
    if rng.random() < 0.7:
        for slot in ("city", "name"):
            value = str(utterance.slots.get(slot, ""))
            if value:
                text = re.sub(rf"\b{re.escape(value)}\b", capitalised(value), text)
        text = _PROPER_NOUN.sub(lambda match: capitalised(match.group()), text)
    text = _PRONOUN.sub("I", text)
    text = text[:1].upper() + text[1:]
    if rng.random() < 0.85:
        text += "?" if question else rng.choice((".", ".", ".", "!")) if len(text.split()) < 4 else "."
    return text


def misheard(utterance: Utterance, rng: random.Random) -> str:
    """Write an utterance with one word lost or misspelt, but never a slot's."""
    kept = {word for value in utterance.slots.values() for word in str(value).split()}
    kept |= set(ONES) | set(TENS.values()) | {"hour", "half", "quarter", "weather", "time", "timer", "not"}
    words = utterance.text.split()
    candidates = [i for i, word in enumerate(words) if word not in kept and len(word) > 1]
    if not candidates or len(words) < 4:
        return utterance.text
    at = rng.choice(candidates)
    if words[at] in _LOST:
        del words[at]
    elif len(words[at]) > 3:
        words[at] = misspell(words[at], rng)
    return " ".join(words)


@dataclass(frozen=True)
class Reply:
    """What the assistant must answer at one place of a dialogue."""

    position: int
    """How many of the dialogue's messages come before this reply."""
    text: str
    """The answer exactly as it is generated; a tool call in its ``<tool_call>`` block."""
    intent: str
    """The intent of the user turn it answers; ``/result`` is added after a tool's result."""
    unseen: bool
    """Whether that turn is a held-out sentence or has an invented or kept-back name."""


@dataclass
class Dialogue:
    """The turns of a conversation, and every reply that they call for."""

    setting: Setting
    messages: list[Message] = field(default_factory=list)
    """The messages after the setting's."""
    replies: list[Reply] = field(default_factory=list)

    def prompt_for(self, reply: Reply) -> list[Message]:
        """The messages that a server sends to get this reply."""
        return self.setting.messages + self.messages[: reply.position]


def tool_call_text(name: str, arguments: dict[str, Any]) -> str:
    """A tool call as Qwen3 writes it."""
    call = f'{{"name": "{name}", "arguments": {json.dumps(arguments, ensure_ascii=False)}}}'
    return f"<tool_call>\n{call}\n</tool_call>"


def _weather_answer(arguments: dict[str, Any], result: dict[str, Any]) -> str:
    degrees = f"minus {-result['temperature']}" if result["temperature"] < 0 else str(result["temperature"])
    weather = f"{degrees} {'degree' if degrees == '1' else 'degrees'} and {result['sky']}"
    day = arguments.get("day")
    if day is None:
        return f"It's {weather} in {arguments['city']}."
    when = day.capitalize() if day in callers.NEAR_DAYS else f"On {day.capitalize()}"
    return f"{when} it will be {weather} in {arguments['city']}."


def _time_answer(arguments: dict[str, Any], result: dict[str, Any]) -> str:
    return f"It's {result['time']} in {arguments['city']}."


def _timer_answer(arguments: dict[str, Any], _result: dict[str, Any]) -> str:
    minutes = f"{arguments['minutes']} {'minute' if arguments['minutes'] == 1 else 'minutes'}"
    label = f" for the {arguments['label']}" if "label" in arguments else ""
    return f"Okay, {minutes}{label}, starting now."


_ANSWERS = {"get_weather": _weather_answer, "get_time": _time_answer, "set_timer": _timer_answer}


@dataclass
class _Writer:
    """Writes one dialogue turn by turn, and remembers what its messages show."""

    rng: random.Random
    split: Split
    dialogue: Dialogue
    style: Literal["spoken", "typed"]
    last: str = ""  # intent of the last turn
    city_call: tuple[str, dict[str, Any]] | None = None
    timer_call: dict[str, Any] | None = None
    asked: tuple[str, dict[str, Any]] | None = None  # the tool that still needs its first argument
    user_name: str | None = None
    answer: str | None = None  # the last answer in full
    interrupted: bool = False
    unseen: bool = False
    cut_in: list[_Maker] = field(default_factory=list)  # what the user may say before any answer

    # --- what the user says ---------------------------------------------------------------

    def turn(self) -> None:
        """Add one user turn and everything that the assistant does about it."""
        drawn = self._choose()
        utterance = self._fresh(drawn)
        self.unseen = drawn.held_out or utterance is not drawn
        text = self._surface(utterance)
        if self.cut_in:
            text = f"{self.dialogue.messages.pop()['content']} {text}"
        self.dialogue.messages.append({"role": "user", "content": text})
        self.interrupted, self.cut_in = False, []
        self.last = utterance.intent
        asked = self.asked
        if utterance.intent != "repeat":
            self.asked = None
        self._reply(utterance, asked)

    def _surface(self, utterance: Utterance) -> str:
        if self.style == "typed" and self.rng.random() < 0.9:
            return typed(utterance, self.rng)
        if self.split == "train" and self.rng.random() < 0.05:
            return misheard(utterance, self.rng)
        return utterance.text

    def _choose(self) -> Utterance:
        """Draw what the user says next, from this split."""
        makers = self._makers()
        if self.split == "train":
            makers = [
                (weight * (3 if maker.__name__ in _LOOKS_BACK else 1), maker) for weight, maker in makers
            ]
        while True:
            maker = self.rng.choices([maker for _, maker in makers], [weight for weight, _ in makers])[0]
            utterance = maker(self.rng)
            if self.split == "test":
                more = (maker(self.rng) for _ in range(24))
                utterance = next((one for one in more if one.held_out), utterance)
            elif utterance.held_out:
                continue
            tool = self._tool_for(utterance)
            if tool is None or not self.offered or tool in self.offered:
                return utterance

    @property
    def offered(self) -> frozenset[str]:
        """The names of the tools."""
        return frozenset(tool["function"]["name"] for tool in self.dialogue.setting.tools)

    def _tool_for(self, utterance: Utterance) -> str | None:
        """The tool that an utterance needs."""
        match utterance.intent:
            case "weather_follow_up" | "time_follow_up" | "correct_city":
                return self.city_call[0] if self.city_call else "get_weather"
            case "correct_minutes":
                return "set_timer"
            case intent:
                return _OWN_TOOL.get(intent)

    def _makers(self) -> list[tuple[float, _Maker]]:
        """What the user may say here, with weights."""
        if self.cut_in:
            return [(1.0, maker) for maker in self.cut_in]
        if self.asked:
            return [(0.85, self._missing), (0.05, domain.stop), (0.05, domain.repeat), (0.05, domain.weather)]
        if self.interrupted and self.rng.random() < 0.6:
            return [(0.8, domain.stop), (0.2, domain.repeat)]
        makers: list[tuple[float, _Maker]] = [
            (0.20, domain.weather),
            (0.12, domain.time_in_city),
            (0.18, domain.timer),
            (0.10, domain.phone_number),
            (0.16, domain.addition),
            (0.04, domain.tell_name),
            (0.02, domain.ask_name),
            (0.02, domain.repeat),
            (0.02, domain.stop),
            (0.12, domain.unknown),
            (0.10, domain.small_talk),
            (0.04, callers.noise),
            (0.05, callers.open_question),
            (0.02, self._follow_up),
            (0.01, self._correct_city),
            (0.01, domain.correct_minutes),
        ]
        if self.city_call:
            fresh = self.last in ("weather", "time", "weather_follow_up", "time_follow_up", "correct_city")
            makers.append((0.30 if fresh else 0.05, self._follow_up))
            makers.append((0.20 if fresh else 0.02, self._correct_city))
            if self.city_call[0] == "get_weather":
                makers.append((0.08 if fresh else 0.01, callers.other_day))
        if self.timer_call:
            fresh = self.last in ("timer", "correct_minutes")
            makers.append((0.25 if fresh else 0.02, domain.correct_minutes))
        if self.last == "phone_number":
            makers.append((0.6, callers.confirmation))
        if self.last == "tell_name" or self.user_name:
            makers.append((0.10, domain.ask_name))
        if self.answer:
            makers.append((0.04, domain.repeat))
        return makers

    def _follow_up(self, rng: random.Random) -> Utterance:
        tool = self.city_call[0] if self.city_call else "get_weather"
        return domain.follow_up(rng, "time" if tool == "get_time" else "weather")

    def _correct_city(self, rng: random.Random) -> Utterance:
        wrong = self.city_call[1]["city"].lower() if self.city_call else rng.choice(domain.CITIES)
        return domain.correct_city(rng, wrong)

    def _missing(self, rng: random.Random) -> Utterance:
        assert self.asked is not None
        if self.asked[0] == "set_timer":
            return callers.missing_minutes(rng)
        return callers.missing_city(rng, "time" if self.asked[0] == "get_time" else "weather")

    def _fresh(self, utterance: Utterance) -> Utterance:
        """Put an unknown name in a slot, so that the model learns to copy."""
        if self.rng.random() < 0.3:
            return utterance
        for slot, invent, unseen in (
            ("city", words.invented_name, words.UNSEEN_CITIES),
            ("label", words.invented_label, words.UNSEEN_LABELS),
            ("name", words.invented_word, words.UNSEEN_NAMES),
        ):
            if slot not in utterance.slots:
                continue
            test_name = self.split == "test" and self.rng.random() < 0.6
            value = self.rng.choice(unseen) if test_name else invent(self.rng)
            old = str(utterance.slots[slot])
            before, after = re.split(rf"\b{re.escape(old)}\b(?!.*\b{re.escape(old)}\b)", utterance.text)
            return dataclasses.replace(
                utterance, text=before + value + after, slots={**utterance.slots, slot: value}
            )
        return utterance

    # --- what the assistant does ----------------------------------------------------------

    def _reply(self, utterance: Utterance, asked: tuple[str, dict[str, Any]] | None) -> None:
        """Answer one utterance; ``asked`` is the call that the assistant just asked about."""
        tool = self._tool_for(utterance)
        given: dict[str, Any]
        match utterance.intent:
            case "weather" | "time" | "timer":
                given = asked[1] if asked and asked[0] == tool else {}
            case "weather_follow_up" | "time_follow_up" | "correct_city":
                given = self.city_call[1] if self.city_call else {}
            case "correct_minutes":
                given = {key: value for key, value in (self.timer_call or {}).items() if key == "label"}
            case _:
                given = {}
        if tool is None:
            self._speak(self._answer(utterance))
        else:
            self._request(tool, {**given, **utterance.slots})

    def _answer(self, utterance: Utterance) -> str:
        """What the assistant says where it needs no tool."""
        slots = utterance.slots
        match utterance.intent:
            case "phone_number":
                answer = f"I heard {slots['digits']}. Is that right?"
            case "sum":
                answer = f"It's {int(slots['a']) + int(slots['b'])}."
            case "tell_name":
                self.user_name = capitalised(str(slots["name"]))
                answer = f"Nice to meet you, {self.user_name}."
            case "ask_name":
                answer = f"Your name is {self.user_name}." if self.user_name else NAME_UNKNOWN
            case "repeat":
                answer = self.answer or NOTHING_SAID
            case "stop":
                answer = STOPPED
            case "small_talk":
                answer = domain.SMALL_TALK[utterance.text]
            case _:
                answer = FALLBACK if self.offered else REFUSAL
        return answer

    def _request(self, name: str, slots: dict[str, Any]) -> None:
        """Call a tool and speak its result, or ask for the argument that it still needs."""
        if not self.offered:
            self._speak(REFUSAL)
            return
        first = "minutes" if name == "set_timer" else "city"
        if first not in slots:
            self.asked = name, slots
            self._speak(HOW_LONG if name == "set_timer" else WHICH_CITY)
            return
        arguments: dict[str, Any] = {key: slots[key] for key in PROPERTIES if key in slots}
        if "city" in arguments:
            arguments["city"] = capitalised(arguments["city"])
            self.city_call = name, arguments
        else:
            self.timer_call = arguments
        if self.rng.random() < 0.015:
            self.cut_in = [self._correct_city if "city" in arguments else domain.correct_minutes]
            return
        self._add_reply(tool_call_text(name, arguments), self.last)
        self.dialogue.messages.append(
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"type": "function", "function": {"name": name, "arguments": arguments}}],
            }
        )
        result = self._result(name)
        compact = self.rng.random() < 0.7
        content = json.dumps(result, ensure_ascii=False, separators=(",", ":") if compact else None)
        self.dialogue.messages.append({"role": "tool", "content": content})
        failed = "error" in result
        self._speak(TOOL_FAILED if failed else _ANSWERS[name](arguments, result), f"{self.last}/result")

    def _result(self, name: str) -> dict[str, Any]:
        rng = self.rng
        if rng.random() < 0.06:
            return {"error": rng.choice(_ERRORS) if rng.random() < 0.7 else words.invented_name(rng)}
        if name == "get_weather":
            sky = rng.choice(SKIES) if rng.random() < 0.97 else words.invented_word(rng)
            return {"temperature": rng.randint(-20, 45), "sky": sky}
        if name == "get_time":
            return {"time": f"{rng.randrange(24):02d}:{rng.randrange(60):02d}"}
        return {"ok": True}

    def _speak(self, text: str, intent: str | None = None) -> None:
        """Answer ``text``; now and then the user cuts in before it, or hears only a part of it."""
        parts = text.split()
        kind = self.rng.random()
        if kind < 0.015 and self.dialogue.messages[-1]["role"] == "user":
            self.asked = None
            self.cut_in = [domain.weather, domain.time_in_city, domain.timer]
            return
        self._add_reply(text, intent or self.last)
        self.answer = text
        shown = text
        if kind < 0.09 and len(parts) > 2 and not self.asked:
            self.interrupted = True
            shown = " ".join(parts[: self.rng.randint(1, len(parts) - 1)]).rstrip(".,!?") + "…"
        self.dialogue.messages.append({"role": "assistant", "content": shown})

    def _add_reply(self, text: str, intent: str) -> None:
        self.dialogue.replies.append(Reply(len(self.dialogue.messages), text, intent, self.unseen))


def dialogue(rng: random.Random, turns: int, chosen: Setting, split: Split = "train") -> Dialogue:
    """Write a dialogue of ``turns`` user turns.

    ``train`` never uses held-out sentences or names of the ``UNSEEN`` lists; ``test`` prefers them.
    """
    result = Dialogue(chosen)
    writer = _Writer(rng, split, result, "typed" if rng.random() < 0.25 else "spoken")
    while turns > 0 or writer.cut_in:
        writer.turn()
        turns -= 1
    return result
