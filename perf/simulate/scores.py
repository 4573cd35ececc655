"""The scores of calls. perf/simulate/README.md defines them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from harness.stats import Share, word_errors

from parley.protocol import TurnMetrics
from parley_testing.log import Act, CallLog
from parley_testing.matching import calls_match, counted_words, lacking
from parley_testing.turns import (
    SLACK_S,
    Answer,
    CallReading,
    check_history,
    cut_off,
    is_answered_early,
    is_early,
    read_turns,
)
from simulate.interaction import Interaction, add_call, first_carrying_s

_WORTH_STOPPING_MS = 700.0
"""An answer that has less left when it is interrupted may as well end."""
_AFTERMATH_S = 5.0
_GAP_MS = 20.0
"""Shorter ones are the network's and this process's, and a client's buffer fills them."""
STEPS = ("silence is detected", "final text", "turn is over", "first token", "first segment", "first audio")
"""What an answer waits for, one after the other."""


@dataclass
class Scores:
    """What all calls together scored. Times are milliseconds."""

    exchanges: int = 0
    calls: int = 0
    not_staged: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    paused_cut_off: Share = field(default_factory=Share)
    cut_off: Share = field(default_factory=Share)
    cut_off_aloud: Share = field(default_factory=Share)
    missed: Share = field(default_factory=Share)
    uncalled: Share = field(default_factory=Share)
    latency: list[float] = field(default_factory=list)
    to_answer: list[float] = field(default_factory=list)
    latency_from_detection: list[float] = field(default_factory=list)
    steps: dict[str, list[float]] = field(default_factory=lambda: {step: [] for step in STEPS})
    wrongful: Share = field(default_factory=Share)
    wrongful_echo: Share = field(default_factory=Share)
    halted: Share = field(default_factory=Share)
    halt_ms: list[float] = field(default_factory=list)
    missed_interruptions: Share = field(default_factory=Share)
    stop_sent: list[float] = field(default_factory=list)
    stop_heard: list[float] = field(default_factory=list)
    stop_queued: list[float] = field(default_factory=list)
    history: Share = field(default_factory=Share)
    late_audio: int = 0
    gaps: Share = field(default_factory=Share)
    words: int = 0
    words_wrong: int = 0
    keywords: Share = field(default_factory=Share)
    tools: Share = field(default_factory=Share)
    answers: Share = field(default_factory=Share)
    speculations: int = 0
    speculated: int = 0
    microphone_late: list[float] = field(default_factory=list)
    interaction: Interaction = field(default_factory=Interaction)


def score(logs: Iterable[CallLog]) -> Scores:
    """Score calls."""
    scores = Scores()
    for log in logs:
        _score_call(scores, read_turns(log))
    return scores


def _score_call(scores: Scores, reading: CallReading) -> None:
    log = reading.log
    scores.calls += 1
    scores.late_audio += len(log.late)
    scores.microphone_late.append(log.microphone_late_ms)
    if log.failure:
        scores.broken.append(f"{log.scenario.name}: {log.failure}")
    add_call(scores.interaction, reading)
    for act in log.acts:
        scores.exchanges += 1
        if act.problem:
            scores.not_staged.append(f"{_name(log, act)}: {act.problem}")
        if act.staged:
            _score_act(scores, reading, act)
    for answer in reading.answers:
        _score_answer(scores, reading, answer)
    for turn, problem in check_history(reading).items():
        scores.history.note(f"{log.scenario.name}, turn {turn}: {problem}" if problem else "")


def _score_act(scores: Scores, reading: CallReading, act: Act) -> None:
    exchange, name = act.exchange, _name(reading.log, act)
    if exchange.is_spoken:
        early = cut_off(reading, act)
        aloud = early and is_answered_early(reading, act)
        scores.cut_off.note(f"{name}: {early}" if early else "")
        scores.cut_off_aloud.note(f"{name}: {early}" if aloud else "")
        if exchange.pauses:
            scores.paused_cut_off.note(f"{name}: {early}" if early else "")
        if not early:
            _score_latency(scores, reading, act)
        _score_words(scores, reading, act)
    answers = reading.answers_to(act)
    heard = any(answer.first_sound_s is not None for answer in answers)
    if exchange.answered is True:
        scores.missed.note("" if heard else f"{name}: {_why_missed(reading, act)}")
        _score_meaning(scores, reading, act)
    elif exchange.answered is False:
        scores.uncalled.note(f"{name}: {answers[0].text!r}" if heard else "")
    if act.over or exchange.interrupts:
        _score_interruption(scores, reading, act)


def _score_latency(scores: Scores, reading: CallReading, act: Act) -> None:
    if any(script.delay_ms for script in reading.log.scenario.tools):
        return
    for answer in reading.answers_to(act):
        first = answer.first_sound_s
        if first is None or answer.commit is None:
            continue
        scores.latency.append(1000 * (first - act.ended_s))
        carrying_s = first_carrying_s(answer, reading.log.scenario.start.language)
        if carrying_s is not None:
            scores.to_answer.append(1000 * (carrying_s - act.ended_s))
        if answer.commit.detected_s is not None:
            scores.latency_from_detection.append(1000 * (first - answer.commit.detected_s))
        if answer.metrics is not None:
            _score_steps(scores, 1000 * (first - act.ended_s), answer.metrics)
        return


def _score_steps(scores: Scores, latency_ms: float, metrics: TurnMetrics) -> None:
    """Divide the latency among the steps; one that was over before the step ahead of it takes nothing."""
    if metrics.asr_final_ms is None or metrics.first_audio_ms is None:
        return
    detected = latency_ms - metrics.first_audio_ms
    heard = detected + metrics.asr_final_ms
    decided = heard + (metrics.end_of_turn_ms or 0.0)
    token, segment = (decided + (ms or 0.0) for ms in (metrics.llm_first_token_ms, metrics.first_segment_ms))
    before = 0.0
    for step, at in zip(STEPS, (detected, heard, decided, token, segment, latency_ms), strict=True):
        after = max(before, min(at, latency_ms))
        scores.steps[step].append(after - before)
        before = after


def _score_words(scores: Scores, reading: CallReading, act: Act) -> None:
    if not act.exchange.words or act.exchange.answered is not True:
        return
    said, heard = counted_words(act.exchange.words), counted_words(reading.heard_text(act))
    wrong, count = word_errors(said, heard), len(said)
    scores.words += count
    scores.words_wrong += wrong


def _why_missed(reading: CallReading, act: Act) -> str:
    text = reading.heard_text(act)
    return f"heard {text!r}, said nothing" if text else "not heard"


def _score_meaning(scores: Scores, reading: CallReading, act: Act) -> None:
    exchange, name = act.exchange, _name(reading.log, act)
    text = reading.heard_text(act)
    if exchange.heard:
        lost = lacking(exchange.heard, text)
        scores.keywords.note(f"{name}: {', '.join(lost)} not in {text!r}" if lost else "")
    calls = reading.calls_for(act)
    made = ", ".join(f"{call.name}({call.arguments})" for call in calls) or "none"
    if exchange.tools is not None and (exchange.tools or calls):
        right = calls_match(exchange.tools, calls)
        scores.tools.note("" if right else f"{name}: called {made}; heard {text!r}")
    if exchange.answer:
        answer = " ".join(one.text for one in reading.answers_to(act))
        absent = "; ".join(lacking(exchange.answer, answer))
        scores.answers.note(f"{name}: {absent} not in {answer!r}; heard {text!r}" if absent else "")


def _score_interruption(scores: Scores, reading: CallReading, act: Act) -> None:
    """An act that was heard over the agent: did it stop, and was it to?"""
    over = next((answer for answer in reading.answers if answer.response_id == act.over), None)
    if over is None:
        return
    name = _name(reading.log, act)
    stopped = over.interruption if over.interruption and over.interruption[0] >= act.began_s else None
    if act.exchange.interrupts:
        sent_ms = sum(sound.length_ms for _, sound in over.sounds)
        if stopped is not None:
            scores.missed_interruptions.note()
            _score_stop(scores, reading, act, over, stopped[0])
        elif sent_ms - act.over_ms >= _WORTH_STOPPING_MS:
            scores.missed_interruptions.note(f"{name}: the answer went on to its end")
    elif not act.exchange.is_turn:
        # `_score_answer` finds whether it was stopped by this; here it only counts as exposed.
        _wrongful(scores, reading.log).of += 1
        halted = [one for one in over.pauses if act.began_s <= one[0] <= act.ended_s + SLACK_S]
        scores.halted.note(name if halted else "")


def _score_stop(scores: Scores, reading: CallReading, act: Act, over: Answer, stopped_s: float) -> None:
    last = max((at for at, sound in over.sounds if sound.length_ms > 0 and at <= stopped_s), default=0.0)
    scores.stop_sent.append(max(0.0, 1000 * (last - act.began_s)))
    # A halt that was taken back did not silence it: what counts is the last one before the end.
    halts = [
        halt
        for halt in reading.log.halts
        if halt.response_id == over.response_id and act.began_s <= halt.at_s <= stopped_s and halt.was_playing
    ]
    if halts:
        scores.stop_heard.append(1000 * (halts[-1].at_s - act.began_s))
        scores.stop_queued.append(halts[-1].queued_ms)


def _score_answer(scores: Scores, reading: CallReading, answer: Answer) -> None:
    log = reading.log
    if answer.metrics is not None:
        scores.speculations += answer.metrics.speculations
        scores.speculated += answer.metrics.speculated
    if answer.sounds and not answer.tools and not answer.pauses:
        gap_ms = _gap_ms(answer)
        scores.gaps.note(
            f"{log.scenario.name}: {gap_ms:.0f} ms in {answer.text!r}" if gap_ms > _GAP_MS else ""
        )
    scores.halt_ms += [1000 * (end - begin) for begin, end in answer.pauses if end is not None]
    caller = log.scenario.caller
    if (caller.echo or caller.background) and answer.first_sound_s is not None:
        _wrongful(scores, log).of += 1
    if answer.interruption is None:
        return
    at = answer.interruption[0]
    before = [act for act in log.acts if act.staged and act.began_s <= at]
    last = max(before, key=lambda act: act.began_s, default=None)
    if last is None or _is_wrongful(answer, last, at):
        name = log.scenario.name if last is None else _name(log, last)
        heard = answer.interruption[1].spoken_text
        _wrongful(scores, log).cases.append(f"{name}: stopped after {heard!r}")


def _gap_ms(answer: Answer) -> float:
    """How long a loudspeaker that never halts is without audio inside the answer."""
    gaps, until = 0.0, answer.sounds[0][0]
    for at, sound in answer.sounds:
        gaps += max(0.0, at - until)
        until = max(at, until) + sound.length_ms / 1000
    return 1000 * gaps


def _wrongful(scores: Scores, log: CallLog) -> Share:
    return scores.wrongful_echo if log.scenario.caller.echo else scores.wrongful


def _is_wrongful(answer: Answer, last: Act, at: float) -> bool:
    """Whether the last act before an interruption at ``at`` was not meant to interrupt."""
    if not last.exchange.is_turn:
        return not last.exchange.interrupts
    if answer.act is last:
        # It answered this turn already. If that was too early, the caller's own words stopped it.
        return at > last.ended_s + SLACK_S and not is_early(answer.commit, last)
    return at > last.ended_s + _AFTERMATH_S


def _name(log: CallLog, act: Act) -> str:
    exchange = act.exchange
    said = (
        exchange.sentence.text if exchange.sentence else exchange.words or exchange.content or exchange.kind
    )
    return f"{log.scenario.name} {exchange.index + 1} ({said})"
