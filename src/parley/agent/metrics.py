"""What the agent measures, under the names of the ``voice_agent`` metrics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Literal, TypeAlias, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from parley.agent.decisions import DecisionOutcome
from parley.agent.turn import TurnOutcome, TurnRecord
from parley.calls.settings import Delivery
from parley.engines.chat_fallback import ChatFallback
from parley.errors import Stage
from parley.metrics import LATENCY_BUCKETS_S, Family, MetricsRecorder
from parley.protocol import Audio, CloseReason, Connected, ErrorEvent, HeldBack, KnowledgeUsed, ServerEvent
from parley.tts.messages import TtsFallback

SessionOutcome: TypeAlias = Literal["opened", "failed", "left", "full", "invalid", "stopping"]
_UNOPENED: dict[CloseReason, SessionOutcome] = {"failed": "failed", "shutdown": "stopping"}
"""Outcomes of sessions that ended before `connected`; otherwise the client has left."""
_MS = 1000.0


def _latency(name: str, description: str, labels: tuple[str, ...] = ("model",)) -> Family:
    return Family(f"voice_agent_{name}_seconds", "histogram", description, labels, LATENCY_BUCKETS_S)


def _counter(
    name: str, description: str, labels: tuple[str, ...] = (), from_start: tuple[tuple[str, ...], ...] = ()
) -> Family:
    return Family(f"{name}_total", "counter", description, labels, from_start=from_start)


def _gauge(name: str, description: str, label: str = "model_instance") -> Family:
    return Family(f"voice_agent_{name}", "gauge", description, (label,))


ASR_LATENCY = _latency("asr_latency", "From the detection of silence to the final transcript")
LLM_TTFT = _latency("llm_ttft", "From the end of the user's turn to the language model's first token")
LLM_TOTAL = _latency("llm_total", "Time of the language model in one turn")
TTS_TTFB = _latency("tts_ttfb", "From a segment of text to its first audio")
E2E_LATENCY = _latency("e2e_latency", "From the end of the user's speech to the first audio sent", ())
TOOL_TIME = _latency("tool", "Time in which one turn waited for tools", ())
BARGE_IN = Family(
    "voice_agent_barge_in_seconds",
    "histogram",
    "From the onset of an interruption in the received audio until no more audio is sent",
    (),
    (0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0),
)
CHUNK_OVERHEAD = Family(
    "voice_agent_chunk_overhead_seconds",
    "histogram",
    "Round trip of a chunk of audio to the recogniser without the time of its networks, of some chunks",
    (),
    (0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 1.0),
)
SESSIONS = _counter(
    "voice_agent_sessions",
    "Requested sessions, by outcome: opened, failed (before `connected`), left (ended by the client before), "
    "full (all are in use), invalid (its options), stopping (the server is drained or stops)",
    ("outcome",),
    tuple((outcome,) for outcome in get_args(SessionOutcome)),
)
ENDED = _counter(
    "voice_agent_sessions_ended",
    "Sessions that have ended, by the reason of their event `closed`, without those that were refused",
    ("reason",),
    tuple((reason,) for reason in get_args(CloseReason)),
)
TURNS = _counter(
    "voice_agent_turns",
    "Turns of the agent, by kind (answer, or a fixed text: say) and outcome: complete, interrupted, failed, "
    "discarded (a preemptive answer), closed (the session ended), abandoned (before the first audio)",
    ("kind", "outcome"),
    tuple((kind, outcome) for kind in ("answer", "say") for outcome in get_args(TurnOutcome)),
)
FALSE_INTERRUPTIONS = _counter(
    "voice_agent_false_interruptions", "Sounds over the agent that were no interruption", ("reason",)
)
RECEIVED = _counter("voice_agent_audio_bytes_received", "PCM audio from clients")
SENT = _counter("voice_agent_audio_bytes_sent", "PCM audio to clients")
TOKENS = _counter("voice_agent_tokens_generated", "Tokens of answers that were complete", ("model",))
ERRORS = _counter(
    "voice_agent_errors",
    "Errors that clients were sent, by type (asr, llm, tts, tool, connection) and code",
    ("type", "code"),
)
SLOW = _counter(
    "voice_agent_slow_answers",
    "Answers that began later after the end of the user's speech than the setting `answer_goal_ms`",
)
HELD_BACK = _counter(
    "voice_agent_held_back",
    "Texts of the language model that were kept from the user, by reason: the kind of a figure or name that "
    "no source has, or a call that was written as text",
    ("reason",),
    tuple((reason,) for reason in get_args(HeldBack)),
)
HEDGED = _counter("voice_agent_hedged", "Answers in which a fixed sentence replaced what no source has")
KNOWLEDGE = _counter(
    "voice_agent_knowledge",
    "Answers of agents with documents, by outcome: used (the language model had passages), late (the search "
    "was not over in time)",
    ("outcome",),
    (("used",), ("late",)),
)
DECISIONS = _counter(
    "voice_agent_decisions",
    "Questions about conversations, by outcome: decided, unusable (the language model has no probabilities "
    "for the answers), failed (it did not answer, or not in time), cancelled (the next turn began before)",
    ("outcome",),
    tuple((outcome,) for outcome in get_args(DecisionOutcome)),
)
ACTIVE = _gauge("active_sessions", "Open sessions")
LIMIT = _gauge("sessions_limit", "Sessions that may be open at once")
DRAINING = _gauge("draining", "1 while no new sessions are accepted, because the server is drained or stops")
AGENTS = _gauge("defined_agents", "Agents that files define, and that new sessions can choose")
WRONG_AGENT_FILES = _gauge(
    "wrong_agent_files",
    "Files of agents that are wrong: an earlier version is served, or none; the log says why",
)
GPU_MEMORY = _gauge("gpu_memory_used_bytes", "Used memory of a GPU", "gpu")
STORAGE = _gauge("storage_free_ratio", "Free part of a folder's file system, 0 to 1", "folder")
UNSCORED = _counter(
    "parley_turn_unscored", "Pauses of users that the end-of-turn model did not score", ("reason",)
)
UNJUDGED = _counter(
    "parley_voice_unjudged", "Speech of users whose voice was not compared with the caller's", ("reason",)
)
LLM_FALLBACKS = _counter(
    "parley_llm_fallback",
    "Answers for which one language model replaced another",
    ("from_model", "to_model", "reason"),
)
TTS_FALLBACKS = _counter(
    "parley_tts_fallback",
    "Answers for which one synthesizer replaced another",
    ("from_engine", "to_engine", "reason"),
)
SPECULATIONS = _counter(
    "parley_speculations",
    "Answers that were begun before it was certain that the user's turn was over",
    ("outcome",),
    (("used",), ("discarded",)),
)
RECORDINGS = _counter(
    "voice_agent_recordings",
    "Recordings of calls, by what is missing: nothing (complete), what came behind a limit of length or size "
    "(limit), what could not be written (disk), what came faster than it could be written (late)",
    ("outcome",),
    tuple((outcome,) for outcome in ("complete", "limit", "disk", "late")),
)
SPOOL = _gauge("calls_spool_bytes", "Bytes of recordings that wait for the object store or the list")
REFUSED = _gauge("calls_refused", "Recorded calls that the object store or the list refuses")
WEBHOOKS = _counter(
    "voice_agent_webhooks",
    "Events of calls for webhooks: delivered, refused (by a status that no retry changes), failed (five "
    "times), dropped (too many waited, or the server has stopped)",
    ("outcome",),
    tuple((outcome,) for outcome in get_args(Delivery)),
)
FAMILIES = (
    *(ASR_LATENCY, LLM_TTFT, LLM_TOTAL, TTS_TTFB, E2E_LATENCY, TOOL_TIME, BARGE_IN, CHUNK_OVERHEAD),
    *(SESSIONS, ENDED, TURNS, FALSE_INTERRUPTIONS, RECEIVED, SENT, TOKENS, ERRORS, SLOW),
    *(HELD_BACK, HEDGED, KNOWLEDGE, DECISIONS, RECORDINGS, SPOOL, REFUSED, WEBHOOKS),
    *(ACTIVE, LIMIT, DRAINING, AGENTS, WRONG_AGENT_FILES, GPU_MEMORY, STORAGE),
    *(UNSCORED, UNJUDGED, LLM_FALLBACKS, TTS_FALLBACKS, SPECULATIONS),
)
_OVERHEAD_EVERY = 64
"""Chunks of a session of which one is observed."""


class _Sum:
    """A counter that one thread adds to."""

    def __init__(self, family: Family, metrics: MetricsRecorder) -> None:
        self.total = 0
        self._recorded = 0
        self._family = family
        self._metrics = metrics
        metrics.collect_with(self._record)

    def _record(self) -> None:
        total = self.total
        if total > self._recorded:
            self._metrics.count(self._family, total - self._recorded)
            self._recorded = total


class AgentMetrics:
    """The metrics of one instance of the agent, recorded in one thread.

    Args:
        instance: of the model; gauges are by instance.
        goal_ms: from the end of speech to the first audio; a later answer is slow.
        on_answer: called with that time of each answer, without those of tools and of the wait for the end
            of the turn.
    """

    def __init__(
        self,
        *,
        instance: str,
        goal_ms: float,
        metrics: MetricsRecorder,
        on_answer: Callable[[float], None] = lambda _: None,
    ) -> None:
        self._instance = instance
        self._goal_ms = goal_ms
        self._metrics = metrics
        self._on_answer = on_answer
        # These change with every chunk of audio. They are recorded when they are drained, which is cheaper.
        self.received = _Sum(RECEIVED, metrics)
        self.sent = _Sum(SENT, metrics)
        self.count = metrics.count
        self.observe = metrics.observe

    def set_sessions(self, active: int, limit: int, *, draining: bool) -> None:
        """Record the state of the instance."""
        self._metrics.set(ACTIVE, active, model_instance=self._instance)
        self._metrics.set(LIMIT, limit, model_instance=self._instance)
        self._metrics.set(DRAINING, draining, model_instance=self._instance)

    def set_agents(self, served: int, wrong_files: int) -> None:
        """Record how many agents of files the instance serves, and how many files are wrong."""
        self._metrics.set(AGENTS, served, model_instance=self._instance)
        self._metrics.set(WRONG_AGENT_FILES, wrong_files, model_instance=self._instance)

    def on_session_requested(self, outcome: SessionOutcome) -> None:
        """A session was opened, or not."""
        self.count(SESSIONS, outcome=outcome)

    def on_pause_unscored(self, code: str) -> None:
        """The turn model has failed at a pause."""
        self._metrics.count(UNSCORED, reason=code)

    def on_voice_unjudged(self, code: str) -> None:
        """The model of speakers has failed."""
        self._metrics.count(UNJUDGED, reason=code)

    def on_llm_fallback(self, fallback: ChatFallback) -> None:
        """One language model answers in the place of another."""
        self.count(LLM_FALLBACKS, **asdict(fallback))

    def on_tts_fallback(self, fallback: TtsFallback) -> None:
        """One synthesizer has taken the place of another."""
        self.count(TTS_FALLBACKS, **msgspec.structs.asdict(fallback))

    def on_recording(self, incomplete: str) -> None:
        """The recording of a call is over; empty: it is complete. May be called by any thread."""
        self._metrics.count(RECORDINGS, outcome=incomplete or "complete")

    def set_spool(self, size: int, refused: int) -> None:
        """Set the bytes of recordings that wait for the object store or the list, and the refused calls."""
        self._metrics.set(SPOOL, size, model_instance=self._instance)
        self._metrics.set(REFUSED, refused, model_instance=self._instance)

    def on_webhook(self, outcome: Delivery) -> None:
        """An event of a call was posted to a webhook, or not."""
        self._metrics.count(WEBHOOKS, outcome=outcome)

    def on_preemptive_answer(self, outcome: str) -> None:
        """An answer that was begun early was ``used`` or ``discarded``."""
        self._metrics.count(SPECULATIONS, outcome=outcome)

    def on_first_audio(self, synthesizer: str, after_s: float) -> None:
        """A synthesizer has sent the first audio of a segment."""
        self._metrics.observe(TTS_TTFB, after_s, model=synthesizer)

    def on_error(self, stage: Stage, code: str) -> None:
        """A client was sent an error."""
        self._metrics.count(ERRORS, type=stage, code=code)

    def on_turn(self, turn: TurnRecord, recognizer: str, language_model: str) -> None:
        """A turn of the agent has ended, in a session with these models."""
        figures = turn.figures
        language_model = figures.replacement or language_model
        self._metrics.count(TURNS, kind=turn.kind, outcome=turn.outcome)
        if figures.completion_tokens:
            self._metrics.count(TOKENS, figures.completion_tokens, model=language_model)
        for reason in figures.held_back:
            self._metrics.count(HELD_BACK, reason=reason)
        if figures.hedged:
            self._metrics.count(HEDGED)
        if turn.outcome in ("discarded", "failed"):
            return  # an apology is no answer
        if turn.spoken:
            self._observe(ASR_LATENCY, figures.asr_final_ms, model=recognizer)
            self._observe(E2E_LATENCY, figures.e2e_ms)
            if figures.e2e_ms is not None:
                # Patient sessions wait longer for the end of a turn, whatever the load is.
                waited_ms = (figures.tool_ms or 0.0) + (figures.end_of_turn_ms or 0.0)
                self._on_answer(max(0.0, figures.e2e_ms - waited_ms))
                if figures.e2e_ms > self._goal_ms:
                    self._metrics.count(SLOW)
        self._observe(LLM_TTFT, figures.llm_first_token_ms, model=language_model)
        self._observe(LLM_TOTAL, figures.llm_total_ms, model=language_model)
        self._observe(TOOL_TIME, figures.tool_ms)

    def _observe(self, family: Family, ms: float | None, /, **labels: str) -> None:
        if ms is not None:
            self._metrics.observe(family, ms / _MS, **labels)


UNMEASURED = AgentMetrics(instance="", goal_ms=0.0, metrics=MetricsRecorder(()))
"""For sessions that are no clients': nothing is kept."""


class SessionMetrics:
    """Records the events and audio of one session.

    Args:
        arrival: when the client's audio before a position had arrived: milliseconds of its audio to seconds
            of the loop's clock; None: unknown.
        recognizer: name of the session's recogniser, as soon as it is chosen.
    """

    def __init__(
        self,
        metrics: AgentMetrics,
        arrival: Callable[[int], float | None],
        recognizer: Callable[[], str],
        language_model: str,
    ) -> None:
        self._metrics = metrics
        self.arrival = arrival
        self.recognizer = recognizer
        self._language_model = language_model
        self._chunks = 0
        self._opened = False
        self._invalid = False

    def on_audio_received(self, size: int) -> None:
        """The client has sent ``size`` bytes of audio."""
        self._metrics.received.total += size

    def on_turn(self, turn: TurnRecord) -> None:
        """A turn of the agent has ended."""
        self._metrics.on_turn(turn, self.recognizer(), self._language_model)

    def on_decision(self, outcome: DecisionOutcome) -> None:
        """A question about the conversation was answered, or not."""
        self._metrics.count(DECISIONS, outcome=outcome)

    def on_barge_in(self, onset_ms: int, silent_at: float) -> None:
        """The sound that began at ``onset_ms`` of the client's audio has interrupted the agent."""
        onset_at = self.arrival(onset_ms)
        if onset_at is not None:
            self._metrics.observe(BARGE_IN, max(0.0, silent_at - onset_at))

    def on_false_interruption(self, reason: str) -> None:
        """A sound over the agent was no interruption."""
        self._metrics.count(FALSE_INTERRUPTIONS, reason=reason)

    def on_options_refused(self) -> None:
        """The session will not be opened: the engines refuse its options."""
        self._invalid = True

    def on_closed(self, reason: CloseReason) -> None:
        """The session has ended."""
        if self._invalid:
            # Nothing has failed, and other sessions with invalid options never begin.
            self._metrics.on_session_requested("invalid")
            return
        self._metrics.count(ENDED, reason=reason)
        if not self._opened:
            self._metrics.on_session_requested(_UNOPENED.get(reason, "left"))

    def on_chunk(self, elapsed_s: float, networks_s: float) -> None:
        """A chunk was recognised: seconds until the reply, and of the networks in them."""
        self._chunks += 1
        if self._chunks % _OVERHEAD_EVERY == 0:
            self._metrics.observe(CHUNK_OVERHEAD, max(0.0, elapsed_s - networks_s))

    def on_event(self, event: ServerEvent, audio: NDArray[np.int16] | None) -> None:
        """An event was sent to the client."""
        match event:
            case Audio():
                self._metrics.sent.total += 0 if audio is None else audio.nbytes
            case ErrorEvent():
                self._metrics.on_error(event.stage, event.code)
            case KnowledgeUsed():
                self._metrics.count(KNOWLEDGE, outcome="late" if event.late else "used")
            case Connected():
                self._opened = True
                self._metrics.on_session_requested("opened")
            case _:
                pass
