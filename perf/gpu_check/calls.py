"""How many calls a GPU would hold: what a call asks of each stage, and what the stages were measured to do.

Throughput and memory only: how long an answer takes when so many calls are held, no sum says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from parley.errors import ModelLoadingError
from parley.runtime.gpu_plan import BFLOAT16_CAPABILITY, Gpu, choose_plan, planned_settings
from parley_torch.tts.t3.request import TOKENS_PER_SECOND

FILL = 0.7
"""Of the throughput; the rest is for bursts, as in ``parley capacity``."""


@dataclass(frozen=True)
class Exchange:
    """A question and its answer, over and over: how a call uses the stages."""

    question_s: float
    answer_words: float
    pause_s: float
    """From the end of an answer to the next question."""
    latency_s: float
    """From the end of a question to the first audio."""
    words_per_s: float
    """As the agent speaks."""
    tokens_per_word: float
    call_tokens: float
    """Of calls of tools, for each answer."""
    used: float
    """Share of the answers begun early that are used; the others are written in vain."""

    def __str__(self) -> str:
        return (
            f"the user speaks {self.user_speech:.0%} of the time, the agent {self.agent_speech:.0%}, with "
            f"{60 * self.answer_tokens:.0f} tokens of the language model a minute"
        )

    @property
    def answer_s(self) -> float:
        """Speech of the agent."""
        return self.answer_words / self.words_per_s

    @property
    def length_s(self) -> float:
        """All of it."""
        return self.question_s + self.latency_s + self.answer_s + self.pause_s

    @property
    def user_speech(self) -> float:
        """Seconds in a second of the call."""
        return self.question_s / self.length_s

    @property
    def agent_speech(self) -> float:
        """Seconds in a second of the call."""
        return self.answer_s / self.length_s

    @property
    def spoken_tokens(self) -> float:
        """Tokens of the language model in a second of the agent's speech."""
        return self.words_per_s * self.tokens_per_word

    @property
    def answer_tokens(self) -> float:
        """Tokens of the language model in a second of the call."""
        written = self.answer_words * self.tokens_per_word + self.call_tokens
        return written / self.used / self.length_s


EXCHANGE = Exchange(
    question_s=1.4,  # mean of the questions in tests/data/open_conversation, which make load speaks
    answer_words=8.3,  # mean of the answers of one `make demo`
    pause_s=0.75,  # mean of perf/load_calls.py
    latency_s=0.6,  # median in docs/measurements.md
    words_per_s=2.5,  # assumed, as the next one, for English
    tokens_per_word=1.3,
    call_tokens=8.0,  # three calls of some 25 tokens in nine answers, in README.md
    used=0.87,  # docs/measurements.md
)
"""Of the load profile."""

STAGES: Mapping[str, tuple[str, float]] = {
    "nemotron": ("seconds of audio", EXCHANGE.user_speech),
    "parakeet": ("seconds of audio", EXCHANGE.user_speech),
    "qwen3": ("tokens", EXCHANGE.answer_tokens),
    "t3": ("tokens", EXCHANGE.agent_speech * TOKENS_PER_SECOND),
    "s3gen": ("seconds of audio", EXCHANGE.agent_speech),
}
"""The unit of each stage's throughput, and how many units in a second a call needs."""


@dataclass(frozen=True)
class PlanMemory:
    """Sessions that the memory plan of a GPU has room for."""

    line: str
    """Says so, or why there is no plan."""
    sessions: int | None = None
    """None: there is no plan."""
    without: frozenset[str] = frozenset()
    """Models that the plan leaves out."""


def find_plan_memory(device: torch.device) -> PlanMemory:
    """By the plan that the device's memory decides for; what the models need is computed, not measured."""
    if device.type != "cuda":
        return PlanMemory("no GPU, no memory plan")
    try:
        import memory_plans  # noqa: PLC0415 - reads configurations by packages that a bare image may lack
    except ImportError as error:
        return PlanMemory(f"no memory plan: {error}")
    properties = torch.cuda.get_device_properties(device)
    has_bfloat16 = torch.cuda.get_device_capability(device) >= BFLOAT16_CAPABILITY
    try:
        plan = choose_plan(Gpu(properties.name, properties.total_memory, 0, has_bfloat16))
    except ModelLoadingError as error:
        return PlanMemory(f"no memory plan: {error}")
    needs = memory_plans.needs(plan, has_bfloat16=has_bfloat16)
    needed = sum(need.total for need in needs.values()) / 1e9
    sessions = memory_plans.count_sessions(plan)
    without = f" (without {', '.join(sorted(plan.without))})" if plan.without else ""
    line = f"memory: plan {plan.name}{without}, {sessions} sessions, {needed:.1f} GB by computation"
    return PlanMemory(line, sessions, plan.without)


def read_planned(model: str, device: torch.device) -> dict[str, str]:
    """A model's settings in the GPU's memory plan; none without a GPU or a plan, or where it has no place."""
    if device.type != "cuda":
        return {}
    try:
        return dict(planned_settings(model))
    except ModelLoadingError:
        return {}


@dataclass(frozen=True)
class HeldCalls:
    """Calls of a GPU, by its stages and its memory."""

    alone: Mapping[str, float]
    """If a stage that was measured had the GPU for itself."""
    missing: tuple[str, ...]
    """Stages that were not measured."""
    by_memory: int | None
    """Sessions of the memory plan; None: there is no plan."""
    together: float
    """If the stages that were measured take turns on the GPU."""

    @property
    def held(self) -> int | None:
        """Calls that it holds by all of that; None: something was not measured."""
        if self.missing or self.by_memory is None:
            return None
        return int(min(self.together, self.by_memory))

    def lines(self) -> list[str]:
        """Stage by stage, what they say together, and the least of all."""
        found = [f"{stage}: {calls:.0f}, with the device for itself" for stage, calls in self.alone.items()]
        found += [f"{stage}: not measured" for stage in self.missing]
        if len(self.alone) > 1:
            found.append(f"{', '.join(self.alone)} in turns on one device: {self.together:.0f}")
        unknown = [*self.missing, *(["memory"] if self.by_memory is None else [])]
        all_of_it = f"not known, for want of {', '.join(unknown)}" if self.held is None else f"{self.held}"
        return [*found, f"by all of that: {all_of_it}"]


def count_calls(throughput: Mapping[str, float], plan: PlanMemory) -> HeldCalls:
    """Calls that stages of such throughput hold.

    Args:
        throughput: units in a second of the stages that were measured, each with the GPU for itself, and
            quick enough for speech; 0: it is not.
        plan: sessions that the memory has room for, and stages that the GPU has not.
    """
    stages = [stage for stage in STAGES if stage not in plan.without]
    alone = {stage: FILL * throughput[stage] / STAGES[stage][1] for stage in stages if stage in throughput}
    # Each call takes a share of the GPU's time for each stage.
    shares = [1.0 / calls if calls else float("inf") for calls in alone.values()]
    together = 1.0 / sum(shares) if shares else 0.0
    return HeldCalls(alone, tuple(stage for stage in stages if stage not in alone), plan.sessions, together)
