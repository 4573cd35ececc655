"""What a caller may say to the tiny models: one definition for the recogniser and the LLM.

An :class:`Utterance` is the text a recogniser should write (lower case, no punctuation,
numbers as words) together with what it means, so that the ASR data (:mod:`tiny.speech`)
and the LLM dialogues (:mod:`tiny.dialogs`) come from the same sentences and share
one held-out split.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

Intent = Literal[
    "weather",
    "weather_follow_up",
    "time",
    "time_follow_up",
    "timer",
    "correct_city",
    "correct_minutes",
    "phone_number",
    "sum",
    "tell_name",
    "ask_name",
    "repeat",
    "stop",
    "small_talk",
    "unknown",
]

CITIES = (
    "london paris berlin madrid rome vienna prague warsaw lisbon dublin oslo stockholm helsinki "
    "athens tokyo seoul delhi sydney toronto chicago boston seattle denver miami dallas cairo "
    "nairobi lima havana geneva milan"
).split()
DAYS = "today tomorrow tonight monday tuesday wednesday thursday friday saturday sunday".split()
LABELS = "pasta eggs tea coffee laundry workout bread rice pizza homework".split()
NAMES = "john mary peter anna david susan laura james emma robert".split()
COUNTRIES = "spain france italy japan".split()
ROOMS = "kitchen bedroom bathroom garage office hallway".split()
GENRES = "jazz rock classical dance piano country".split()

ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen"
).split()
TENS = {20: "twenty", 30: "thirty", 40: "forty", 50: "fifty", 60: "sixty"}

# Fixed phrases, each with the one answer that the assistant gives to it.
SMALL_TALK: dict[str, str] = {
    "hello": "Hello! How can I help you?",
    "hello there": "Hello! How can I help you?",
    "hi": "Hello! How can I help you?",
    "hi there": "Hello! How can I help you?",
    "good morning": "Good morning! What can I do for you?",
    "good afternoon": "Good afternoon! What can I do for you?",
    "good evening": "Good evening! What can I do for you?",
    "how are you": "I'm doing well, thank you. What can I do for you?",
    "how are you today": "I'm doing well, thank you. What can I do for you?",
    "hello how are you": "I'm doing well, thank you. What can I do for you?",
    "who are you": "I'm Parley, your voice assistant.",
    "what's your name": "I'm Parley, your voice assistant.",
    "what is your name": "I'm Parley, your voice assistant.",
    "what can you do": "I can tell you the weather and the time, set timers, and do small sums.",
    "can you help me": "Of course. What do you need?",
    "i need some help": "Of course. What do you need?",
    "tell me a joke": (
        "Why did the robot take a holiday? Because it needed to recharge. "
        "I hope that one made you smile, I have been saving it for a rainy day."
    ),
    "tell me another joke": (
        "What do you call a very small computer? A minibyte. "
        "That is the best one I know, and I know only two."
    ),
    "tell me a story": (
        "Once upon a time, a little robot lived in a big house by the sea. "
        "Every morning it opened the windows and counted the boats. "
        "One day a boat stopped, and a child waved at it. "
        "The robot waved back, and from that day it was never alone again."
    ),
    "that's funny": "I'm glad you liked it.",
    "that's great": "I'm glad to hear that.",
    "i feel sad today": "I'm sorry to hear that. I hope your day gets better.",
    "i am tired": "Then maybe it is time for a little rest.",
    "i am bored": "Shall I tell you a joke?",
    "thank you": "You're welcome!",
    "thanks": "You're welcome!",
    "thank you very much": "You're welcome!",
    "thanks a lot": "You're welcome!",
    "yes": "All right.",
    "yes please": "All right.",
    "that is right": "Good.",
    "that's right": "Good.",
    "no": "Okay.",
    "no thank you": "Okay. Just tell me when you need me.",
    "that is wrong": "I'm sorry. Please tell me again.",
    "that's wrong": "I'm sorry. Please tell me again.",
    "goodbye": "Goodbye! Have a nice day.",
    "bye": "Goodbye! Have a nice day.",
    "bye bye": "Goodbye! Have a nice day.",
    "good night": "Good night! Sleep well.",
    "see you later": "Goodbye! Have a nice day.",
}
STOP_PHRASES = (
    "stop",
    "stop it",
    "please stop",
    "stop please",
    "stop talking",
    "okay stop",
    "be quiet",
    "wait",
    "wait a moment",
    "never mind",
    "forget it",
    "cancel that",
    "hold on",
)
REPEAT_PHRASES = (
    "can you repeat that",
    "please repeat that",
    "say that again",
    "say that again please",
    "what did you say",
    "sorry what was that",
)
ASK_NAME_PHRASES = ("what's my name", "what is my name", "do you remember my name", "who am i")


@dataclass(frozen=True)
class Utterance:
    """One thing a caller says, and what it means."""

    text: str
    intent: Intent
    slots: dict[str, str | int] = field(default_factory=dict)

    @property
    def held_out(self) -> bool:
        """Whether this sentence is kept from every training set (about one in eight).

        Only sentences with several words and a slot can be held out: a fixed phrase that is
        never trained on cannot be known.
        """
        if not self.slots or len(self.text.split()) < 4:
            return False
        return hashlib.sha256(self.text.encode()).digest()[0] < 32


def number_words(n: int) -> str:
    """Spell ``n`` (0-69) as a recogniser writes it: ``25`` is ``twenty five``."""
    if n < 20:
        return ONES[n]
    tens, ones = n // 10 * 10, n % 10
    return TENS[tens] + (f" {ONES[ones]}" if ones else "")


def _day(rng: random.Random) -> str:
    return rng.choice(DAYS)


def weather(rng: random.Random) -> Utterance:
    """A question about the weather in a city, often on a day."""
    city = rng.choice(CITIES)
    if rng.random() < 0.5:
        day = _day(rng)
        when = day if day in ("today", "tomorrow", "tonight") else f"on {day}"
        text = rng.choice(
            (
                f"what's the weather in {city} {when}",
                f"what is the weather in {city} {when}",
                f"will it rain in {city} {when}",
                f"how is the weather in {city} {when}",
                f"what will the weather be in {city} {when}",
                f"{when} in {city} what's the weather",
                f"is it cold in {city} {when}",
            )
        )
        return Utterance(text, "weather", {"city": city, "day": day})
    text = rng.choice(
        (
            f"what's the weather in {city}",
            f"what is the weather in {city}",
            f"what's the weather like in {city}",
            f"how is the weather in {city}",
            f"tell me the weather in {city}",
            f"tell me the weather in {city} please",
            f"is it raining in {city}",
            f"is it cold in {city}",
            f"do i need an umbrella in {city}",
            f"weather in {city} please",
        )
    )
    return Utterance(text, "weather", {"city": city})


def follow_up(rng: random.Random, of: Intent) -> Utterance:
    """A question that only makes sense after a weather or time question."""
    city = rng.choice(CITIES)
    text = rng.choice((f"and in {city}", f"what about {city}", f"how about {city}"))
    return Utterance(text, "weather_follow_up" if of == "weather" else "time_follow_up", {"city": city})


def time_in_city(rng: random.Random) -> Utterance:
    """A question about the time in a city."""
    city = rng.choice(CITIES)
    text = rng.choice(
        (
            f"what time is it in {city}",
            f"what's the time in {city}",
            f"tell me the time in {city}",
            f"do you know what time it is in {city}",
            f"what time is it now in {city}",
            f"time in {city} please",
        )
    )
    return Utterance(text, "time", {"city": city})


def duration(rng: random.Random) -> tuple[str, int]:
    """A spoken duration and its length in minutes."""
    kind = rng.random()
    if kind < 0.06:
        return rng.choice((("half an hour", 30), ("an hour", 60), ("a quarter of an hour", 15)))
    n = rng.randint(1, 60)
    return f"{number_words(n)} {'minute' if n == 1 else 'minutes'}", n


def timer(rng: random.Random) -> Utterance:
    """A request for a timer, often with what it is for."""
    spoken, minutes = duration(rng)
    slots: dict[str, str | int] = {"minutes": minutes}
    label = ""
    if rng.random() < 0.5:
        slots["label"] = rng.choice(LABELS)
        label = f" for the {slots['label']}"
    text = rng.choice(
        (
            f"set a timer for {spoken}{label}",
            f"set a timer for {spoken}{label} please",
            f"please set a timer for {spoken}{label}",
            f"can you set a timer for {spoken}{label}",
            f"start a timer for {spoken}{label}",
            f"i need a timer for {spoken}{label}",
        )
    )
    return Utterance(text, "timer", slots)


def correct_city(rng: random.Random, wrong: str) -> Utterance:
    """A correction after the assistant answered for ``wrong``."""
    city = rng.choice([c for c in CITIES if c != wrong])
    text = rng.choice(
        (
            f"no i meant {city}",
            f"no i said {city}",
            f"sorry i meant {city}",
            f"not {wrong} {city}",
            f"no not {wrong} i meant {city}",
        )
    )
    return Utterance(text, "correct_city", {"city": city})


def correct_minutes(rng: random.Random) -> Utterance:
    """A correction after a timer was set."""
    spoken, minutes = duration(rng)
    text = rng.choice(
        (f"no make it {spoken}", f"make it {spoken}", f"sorry i meant {spoken}", f"no i said {spoken}")
    )
    return Utterance(text, "correct_minutes", {"minutes": minutes})


def phone_number(rng: random.Random) -> Utterance:
    """A number, spoken digit by digit."""
    digits = [rng.randint(0, 9) for _ in range(rng.randint(3, 8))]
    spoken = " ".join(ONES[d] for d in digits)
    kind = rng.choice(("phone number", "order number", "number"))
    return Utterance(
        f"my {kind} is {spoken}", "phone_number", {"kind": kind, "digits": " ".join(map(str, digits))}
    )


def addition(rng: random.Random) -> Utterance:
    """A small sum."""
    a, b = rng.randint(1, 10), rng.randint(1, 10)
    start = rng.choice(("what is", "what's", "how much is"))
    return Utterance(f"{start} {number_words(a)} plus {number_words(b)}", "sum", {"a": a, "b": b})


def tell_name(rng: random.Random) -> Utterance:
    """The caller's name."""
    name = rng.choice(NAMES)
    return Utterance(
        rng.choice((f"my name is {name}", f"hello my name is {name}", f"hi i am {name}", f"i am {name}")),
        "tell_name",
        {"name": name},
    )


def unknown(rng: random.Random) -> Utterance:
    """Something that the assistant has no tool and no answer for."""
    city, day, room = rng.choice(CITIES), _day(rng), rng.choice(ROOMS)
    text = rng.choice(
        (
            f"book a flight from {city} to {rng.choice(CITIES)}",
            f"book a table for {number_words(rng.randint(2, 12))} people",
            f"book a hotel in {city}",
            f"when is the next train to {city}",
            f"how far is it to {city}",
            f"cancel my meeting on {day}",
            f"remind me to call {rng.choice(NAMES)}",
            f"call {rng.choice(NAMES)}",
            f"send a message to {rng.choice(NAMES)}",
            f"turn {rng.choice(('on', 'off'))} the lights in the {room}",
            f"open the window in the {room}",
            f"play some {rng.choice(GENRES)} music",
            f"play {rng.choice(GENRES)} music in the {room}",
            f"what is the capital of {rng.choice(COUNTRIES)}",
            "who won the game",
            "read me the news",
            "what's on television tonight",
            "how old are you",
            "do you like music",
            "order a pizza",
            "buy some bread",
            "where is my phone",
        )
    )
    return Utterance(text, "unknown", {"topic": text})


def small_talk(rng: random.Random) -> Utterance:
    """A fixed phrase that has a fixed answer."""
    return Utterance(rng.choice(tuple(SMALL_TALK)), "small_talk")


def stop(rng: random.Random) -> Utterance:
    """A wish that the assistant be quiet."""
    return Utterance(rng.choice(STOP_PHRASES), "stop")


def repeat(rng: random.Random) -> Utterance:
    """A wish to hear the last answer again."""
    return Utterance(rng.choice(REPEAT_PHRASES), "repeat")


def ask_name(rng: random.Random) -> Utterance:
    """A question that the caller has answered before, or not."""
    return Utterance(rng.choice(ASK_NAME_PHRASES), "ask_name")


# How often each kind is said, for data that stands alone (the recogniser's).
SPOKEN: tuple[tuple[float, Callable[[random.Random], Utterance]], ...] = (
    (0.20, weather),
    (0.05, lambda rng: follow_up(rng, "weather")),
    (0.12, time_in_city),
    (0.18, timer),
    (0.05, lambda rng: correct_city(rng, rng.choice(CITIES))),
    (0.05, correct_minutes),
    (0.08, phone_number),
    (0.05, addition),
    (0.04, tell_name),
    (0.01, ask_name),
    (0.02, repeat),
    (0.03, stop),
    (0.12, unknown),
    (0.08, small_talk),
)


def spoken(rng: random.Random) -> Utterance:
    """Draw one utterance as callers say them."""
    makers = [maker for _, maker in SPOKEN]
    weights = [weight for weight, _ in SPOKEN]
    return rng.choices(makers, weights)[0](rng)
