"""One conversation, from START to ``closed``."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from parley import protocol
from parley.agent.audio_recognition import AudioRecognition
from parley.agent.caller_gate import CallerGate
from parley.agent.checkpoints import Checkpoints, HandledMessages, Snapshot
from parley.agent.config import AgentConfig
from parley.agent.conversation import Conversation
from parley.agent.generation import SaltedChat
from parley.agent.metrics import AgentMetrics, SessionMetrics
from parley.agent.ports import Engines, Outlet
from parley.agent.session_updates import SessionUpdates
from parley.agent.speech import UnreadAudio, check_voices
from parley.agent.summarization import summarize
from parley.agent.validation import describe, speech_language
from parley.asr.decoding.boosting import fit_phrases
from parley.asr.messages import AsrOptions
from parley.audio.pcm import decode_pcm16
from parley.calls.following import FollowedCall
from parley.errors import (
    InferenceError,
    InvalidInputError,
    InvalidMessageError,
    OverloadedError,
    ParleyError,
    SessionIdleError,
    ShuttingDownError,
)
from parley.inference import make_engine_name
from parley.languages import primary_language
from parley.logs import log_ids
from parley.protocol import Answer, CloseReason
from parley.timeouts import hold_task, loop_time, with_timeout
from parley.tracing import NO_TRACE, Trace
from parley.turns.settings import choose_settings, choose_silence_ms

_WATCH_S = 0.5
_SAID = protocol.Transcript | protocol.ResponseText | protocol.Interrupted
"""Events with transcripts, for the log."""
_DECIDED: frozenset[CloseReason] = frozenset(("ended", "hangup", "silence", "agent_ended", "transferred"))
"""Ends behind which the questions of the end are asked: not where the server stops or the client is lost."""
_ONSET_THRESHOLD = 0.15
"""Pauses the agent. Noise, clicks, coughs and breaths gave no more onsets than 0.5 does."""
_TURN_CONTEXT_MS = 20_000
"""Utterances of one turn are decoded together up to this length."""
_log = logging.getLogger(__name__)


class AgentSession:
    """Owns the parts of one conversation and their tasks.

    :meth:`push_audio` and :meth:`on_message` never wait; :meth:`run` lasts as long as the session. Everything
    runs on one event loop. Exactly one ``closed`` is sent, and nothing after it.

    ``start`` was checked by :func:`parley.agent.validation.check_start`. ``followed`` gets all
    messages, audio and events.
    """

    def __init__(
        self,
        session_id: str,
        start: protocol.Start,
        engines: Engines,
        outlet: Outlet,
        config: AgentConfig,
        *,
        metrics: AgentMetrics,
        followed: FollowedCall | None = None,
    ) -> None:
        self.session_id = session_id
        self._followed = followed
        resume = start.resume
        self._resumed = resume is not None
        start = msgspec.structs.replace(start, resume=None)
        self._start = start
        engines = self._engines = replace(engines, chat=SaltedChat(engines.chat, start.cache_salt))
        self._outlet = outlet
        self._config = config
        name = make_engine_name(session_id)
        # Health checks come every few seconds.
        self._is_canary = session_id.startswith(protocol.CANARY_PREFIX)
        self._level = logging.DEBUG if self._is_canary else logging.INFO
        self._trace = self._begin_trace()
        # Of what is logged by a request of the client, or in tasks that it begins.
        with self._log_ids():
            self._context = copy_context()
        self._metrics = SessionMetrics(
            metrics, self._arrival, lambda: self._recognition.model, config.chat_models[0][0]
        )
        self._conversation = Conversation(
            name,
            start,
            engines,
            config,
            emit=self._emit,
            hang_up=self._hang_up,
            begin_turn=self._begin_turn,
            metrics=self._metrics,
            changed=self._on_change,
            whole=self._whole,
            listen=lambda: self._recognition.change(self._asr_options(self._start)),
            prefix_changed=partial(self._warm_up, between_answers=True),
            resume=resume,
            trace=self._trace,
        )
        options = self._asr_options(start)
        self._gate = None
        if engines.speaker is not None:
            self._gate = CallerGate(
                engines.speaker,
                self._conversation,
                primary_language(speech_language(start, engines.synthesizer)),
                enabled=self._has_one_caller(start),
                deadline_s=config.deadlines.turn_s,
                name=name,
                cut=self._cut_utterance,
                ignored=self._ignore_other,
                is_echo=self._conversation.interruptions.is_echo,
            )
        self._recognition = AudioRecognition(
            engines.recognizer,
            name,
            options,
            self._gate or self._conversation,
            config,
            on_chunk=self._metrics.on_chunk,
            resume=resume,
        )
        self._checkpoints = (
            Checkpoints(self._snapshot, self._emit) if start.checkpoints and not self._is_canary else None
        )
        self._messages = HandledMessages((resume.state.handled or 0) if resume else 0)
        self._held: list[tuple[protocol.ServerEvent, NDArray[np.int16] | None]] | None = None
        self._time_left_ms: int | None = None
        self._updates = SessionUpdates(start, engines, config, on_checked=self._on_update_checked)
        self._end: asyncio.Future[protocol.Closed] = asyncio.get_running_loop().create_future()
        self._opened = asyncio.Event()
        self._warmings: set[asyncio.Task[None]] = set()
        self._warming = asyncio.Lock()
        self.closed = False
        """Whether ``closed`` was sent."""
        self._idle_s = 0.0
        self._idle_counted_at = loop_time()
        self._unread = UnreadAudio(config.deadlines.unread_s)

    # --- requests of the client -------------------------------------------------------------

    def push_audio(self, raw: bytes) -> None:
        """Add a chunk of audio: mono PCM16 at 16 kHz."""
        self._on_request()
        self._metrics.on_audio_received(len(raw))
        self._context.run(self._push_audio, raw)

    def _push_audio(self, raw: bytes) -> None:
        try:
            samples = decode_pcm16(raw)
            self._recognition.push_audio(samples)
            if self._followed is not None:
                self._followed.on_audio(samples, muted=self._recognition.muted)
        except ParleyError as error:
            self.report_error(error)
        if self._checkpoints is not None:
            self._checkpoints.on_audio(self._recognition.processed_ms)

    def _on_request(self) -> None:
        self._idle_s, self._idle_counted_at = 0.0, loop_time()
        self._unread.on_request()

    def on_message(self, raw: bytes) -> None:
        """Handle a message (JSON)."""
        self._on_request()
        self._context.run(self._on_message, raw)

    def _on_message(self, raw: bytes) -> None:
        try:
            message = protocol.decode_message(raw)
        except ParleyError as error:
            with self._whole():
                self._messages.begin()
                self.report_error(error)
            return
        if self._followed is not None:
            self._followed.on_message(message)
        if isinstance(message, protocol.Playback):
            self._unread.on_playback()
            self._conversation.on_message(message)
            return
        with self._whole():
            try:
                self._handle(message, self._messages.begin())
            except ParleyError as error:
                self.report_error(error)
            except Exception:  # noqa: BLE001 - logged and reported to the client
                self._conversation.on_task_failed("message")

    def go_away(self, time_left_ms: int) -> None:
        """Ask the client to go on elsewhere, if it can: the server will stop."""
        self._time_left_ms = time_left_ms
        if self._checkpoints is not None and self._opened.is_set():
            self._emit(protocol.GoAway(time_left_ms=time_left_ms))

    def end(self, reason: CloseReason) -> None:
        """End the session; the first reason counts."""
        self._end_with(protocol.Closed(reason=reason))

    def _end_with(self, closed: protocol.Closed) -> None:
        if not self._end.done():
            self._end.set_result(closed)

    def _hang_up(self, closed: protocol.Closed) -> None:
        if self._checkpoints is not None:
            # A later one lacks the turn that ends the call: where `closed` is lost, the call would go on.
            self._checkpoints.close()
        self._end_with(closed)

    def report_error(self, error: ParleyError) -> None:
        """Send an error event; the session goes on."""
        self._conversation.on_error(error)

    def _handle(self, message: protocol.ClientMessage, number: int) -> None:
        finish = partial(self._finish_message, number)
        match message:
            case protocol.Start():
                raise InvalidMessageError("the session has started already")
            case protocol.Update():
                if (start := self._updates.request(message, number)) is not None:
                    self._apply(start)
                else:
                    self._messages.postpone(number)
            case protocol.Commit():
                self._recognition.end_utterance(
                    on_reached=partial(self._conversation.on_commit_reached, finish),
                    on_finished=self._conversation.on_commit_finished,
                )
                self._messages.postpone(number)
            case protocol.Discard():
                self._recognition.end_utterance(
                    on_reached=self._conversation.on_discard_reached,
                    on_finished=partial(self._conversation.on_discard_finished, finish),
                )
                self._messages.postpone(number)
            case protocol.Control(action="hangup"):
                self.end("hangup")
            case protocol.Control():
                self._switch(number, muted=message.action == "mute")
            case _:
                self._conversation.on_message(message)

    def _switch(self, number: int, *, muted: bool) -> None:
        """Ignore audio from now on, or no more."""
        if self._checkpoints is None:
            self._recognition.switch(muted=muted)
            return
        # A session that goes on hears audio before it again.
        self._messages.postpone(number)
        self._recognition.switch(muted=muted, on_contained=partial(self._messages.finish, number))

    def _finish_message(self, number: int) -> None:
        self._messages.finish(number)
        self._on_change()

    def _on_update_checked(self, number: int, outcome: protocol.Start | ParleyError) -> None:
        with self._whole():
            self._messages.finish(number)
            if isinstance(outcome, ParleyError):
                self.report_error(outcome)
            else:
                self._apply(outcome)

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """A change that no checkpoint may show in part.

        Its events wait for its end, and a checkpoint with all of it precedes them.
        """
        if self._checkpoints is None or self._held is not None:
            yield
            return
        held = self._held = []
        try:
            yield
        finally:
            self._held = None
            self._checkpoints.send([event for event, _ in held if isinstance(event, get_args(Answer))])
            for event, audio in held:
                self._emit(event, audio)

    def _on_change(self) -> None:
        if self._checkpoints is not None:
            self._checkpoints.on_change()

    def _snapshot(self) -> Snapshot:
        conversation, recognition = self._conversation, self._recognition
        held = (conversation.interruptions.held_from_ms, self._gate.held_from_ms if self._gate else None)
        contained = recognition.contained(min((at_ms for at_ms in held if at_ms is not None), default=None))
        muted = recognition.muted_behind(contained.audio_ms)
        state = msgspec.structs.replace(
            conversation.state(contained, muted=muted),
            handled=self._messages.count,
            unfinished=self._messages.unfinished,
        )
        if self._followed is not None:
            state = self._followed.mark(state)
        return Snapshot(
            self._start,
            conversation.agent_turns.history,
            state,
            settled=conversation.settled and recognition.idle and held[1] is None and self._updates.idle,
        )

    def _apply(self, start: protocol.Start) -> None:
        self._start = start
        prefix_changed = self._conversation.change(start)
        self._recognition.change(self._asr_options(start))
        if self._gate is not None:
            self._gate.change(enabled=self._has_one_caller(start))
        self._on_change()
        self._emit(protocol.Updated())
        if prefix_changed:
            self._warm_up()

    def _begin_trace(self) -> Trace:
        tracing = self._engines.tracing
        if tracing is None or self._is_canary:
            return NO_TRACE
        attributes = {"gen_ai.conversation.id": self.session_id, "parley.language": self._start.language}
        return tracing.begin("call", self._start.traceparent, attributes)

    def _log_ids(self) -> AbstractContextManager[None]:
        return log_ids(
            session=self.session_id, traceparent=self._trace.traceparent or self._start.traceparent
        )

    async def _describe(self) -> protocol.AgentDescription:
        # The session's own stream is open already, and another START would end it.
        recognizer = self._engines.recognizer(f"{self.session_id}-languages", "", "")
        languages: list[str] | None = None
        try:
            limit_s = self._config.deadlines.asr_s
            languages = list(await with_timeout(recognizer.languages(), limit_s, "the recogniser"))
        except ParleyError as error:
            _log.warning("%s: languages are unknown: %s", self.session_id, error, extra=error.log_extra())
        return describe(
            self._engines,
            self._config,
            recognizer=self._recognition.model,
            recognized_languages=languages,
            unavailable=getattr(recognizer, "unavailable", ()),
        )

    def _asr_options(self, start: protocol.Start) -> AsrOptions:
        vad = start.vad
        if vad.onset_threshold is None:
            vad = msgspec.structs.replace(vad, onset_threshold=min(_ONSET_THRESHOLD, vad.threshold))
        if vad.ignore_background is None:
            # By voice and level others are told from the caller better than by the level alone.
            by_level = self._config.ignore_background and not self._has_one_caller(start)
            vad = msgspec.structs.replace(vad, ignore_background=by_level)
        if vad.silence_ms is None:
            silence_ms = choose_silence_ms(choose_settings(start.turn, self._config.eagerness))
            vad = msgspec.structs.replace(vad, silence_ms=silence_ms)
        return AsrOptions(
            vad=vad,
            language=start.language,
            phrases=fit_phrases(start.phrases, self._conversation.collector.phrases),
            names=[*self._conversation.names],
            phrase_weight=start.phrase_weight,
            nbest=max(start.alternatives, self._conversation.collector.alternatives),
            join_ms=_TURN_CONTEXT_MS,
            # Utterances become turns later, or never: their spans are below that of the call.
            traceparent=self._trace.traceparent,
        )

    def _has_one_caller(self, start: protocol.Start) -> bool:
        chosen = start.turn.one_caller
        wanted = self._config.one_caller if chosen is None else chosen
        possible = self._engines.speaker is not None and start.turn.detection == "auto"
        return wanted and possible and not self._is_canary

    def _cut_utterance(self) -> None:
        with suppress(OverloadedError):  # then it ends with the talk
            self._recognition.end_utterance()

    def _ignore_other(self, text: str) -> None:
        self._conversation.agent_turns.ignore("other_speaker", text)
        self._begin_turn()  # the words are not decoded again with the caller's

    def _arrival(self, at_ms: int) -> float | None:
        return self._recognition.arrival(at_ms)  # made after the metrics, which it needs

    def _begin_turn(self) -> None:
        self._recognition.begin_turn()  # made after the conversation, which is its handler

    # --- tasks -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Run until :meth:`end`, the loss of the client, or a failure that cannot be recovered."""
        with self._log_ids():
            await self._run()

    async def _run(self) -> None:
        name = self.session_id
        tasks = [
            asyncio.create_task(self._recognise(), name=f"{name} recognition"),
            asyncio.create_task(self._watch(), name=f"{name} watch"),
        ]
        if not self._is_canary:  # no answer follows, and a model elsewhere is paid for each request
            self._warm_up()
        closed = protocol.Closed(reason="shutdown")
        try:
            closed = await self._end
            if closed.reason in ("ended", "hangup"):
                # A client that sends START and END together still gets `connected`.
                await self._opened.wait()
        finally:
            await self._close(closed, tasks)

    async def _recognise(self) -> None:
        try:
            synthesizer, limit_s = self._engines.synthesizer, self._config.deadlines.voice_s
            language = speech_language(self._start, synthesizer)
            await check_voices(synthesizer, self._start.voices, language, limit_s)
            await self._recognition.open()
            self._emit(
                protocol.Connected(
                    session_id=self.session_id,
                    output_sample_rate=self._start.output_sample_rate,
                    text_tokens=self._config.text_tokens,
                    greets=self._conversation.greets,
                    resumed=self._resumed,
                    agent=await self._describe() if self._start.describe else None,
                )
            )
            _log.log(self._level, "%s: opened", self.session_id)
            if self._checkpoints is not None:
                self._checkpoints.open()
            self._conversation.open()
            self._opened.set()
            if self._time_left_ms is not None:
                self.go_away(self._time_left_ms)
            await self._recognition.run()
        except ParleyError as error:
            if isinstance(error, InvalidInputError) and not self._opened.is_set():
                self._metrics.on_options_refused()
            self.report_error(error.at("asr") if isinstance(error, InferenceError) else error)
        except Exception:  # noqa: BLE001 - logged and reported to the client
            self._conversation.on_task_failed("recognition")
        finally:
            self._opened.set()
            self.end("failed")

    async def _watch(self) -> None:
        """End the session of a client that is lost or idle.

        Time is not counted during a turn of the agent. It is not reset either, or an agent that prompts a
        silent user would keep the session for ever.
        """
        limit = self._config.deadlines.idle_s
        try:
            while not self._end.done():
                await asyncio.sleep(_WATCH_S)
                since, self._idle_counted_at = self._idle_counted_at, loop_time()
                if self._conversation.agent_turns.current is None:
                    self._idle_s += self._idle_counted_at - since
                if await self._outlet.is_cancelled():
                    self.end("disconnected")
                elif self._idle_s > limit:
                    self.report_error(SessionIdleError(f"neither audio nor messages for {limit:g} s"))
                    self.end("idle")
                elif self._unread.exceeded:
                    limit_s = self._config.deadlines.unread_s
                    self.report_error(
                        SessionIdleError(f"{limit_s:g} s of audio were sent and no playback was reported")
                    )
                    self.end("idle")
        except Exception:  # noqa: BLE001 - logged and reported to the client
            self.end("failed")
            self._conversation.on_task_failed("watch")

    def _warm_up(self, *, between_answers: bool = False) -> None:
        """Prefill the prompt's prefix, once an earlier warm-up, which is cancelled, has ended.

        ``between_answers``: not if an answer is being written, which fills the cache itself.
        """
        for task in self._warmings:
            task.cancel()
        hold_task(self._warmings, self._run_warm_up(between_answers), f"{self.session_id} warm-up")

    async def _run_warm_up(self, between_answers: bool) -> None:
        try:
            # One request at a time: an update may come while the model still stops the last one.
            async with self._warming:
                if not (between_answers and self._conversation.answering):
                    await self._conversation.warm_up()
        except Exception:  # noqa: BLE001 - logged and reported to the client
            self._conversation.on_task_failed("warm-up")

    async def _close(self, closed: protocol.Closed, tasks: list[asyncio.Task[None]]) -> None:
        ending: set[asyncio.Task[None]] = set()
        try:
            if self._checkpoints is not None:
                self._checkpoints.close()
            ending |= self._updates.close()
            ending |= self._conversation.close()
            if self._followed is not None and (heard := self._conversation.agent_turns.cut_off) is not None:
                self._followed.on_event(heard)  # not the client, with which the turn may go on elsewhere
            # A client that was asked to leave goes on elsewhere.
            may_leave = self._checkpoints is not None and self._time_left_ms is not None
            leaves = may_leave and closed.reason == "ended"
            if closed.reason in _DECIDED and not leaves:
                await self._conversation.decide_at_end()
        finally:
            await self._finish_close(closed, [*tasks, *self._warmings], ending)

    async def _finish_close(
        self, closed: protocol.Closed, tasks: list[asyncio.Task[None]], ending: set[asyncio.Task[None]]
    ) -> None:
        try:
            self._send_closed(closed)
        except Exception:  # noqa: BLE001 - logged; the clean-up below matters more
            _log.exception("%s: closed could not be sent", self.session_id)
        self._trace.set({"parley.reason": closed.reason})
        self._trace.end(failure="failed" if closed.reason == "failed" else "")
        for task in tasks:
            task.cancel()
        if self._gate is not None:  # an update of a client that has not got `closed` would switch it on again
            ending |= self._gate.close()
        _, late = await asyncio.wait({*tasks, *ending}, timeout=self._config.deadlines.close_s)
        for task in late:
            _log.error("%s: task %s did not end", self.session_id, task.get_name())
        await self._recognition.close()

    def _send_closed(self, closed: protocol.Closed) -> None:
        self.closed = True
        _log.log(self._level, "%s: closed: %s", self.session_id, closed.reason)
        self._metrics.on_closed(closed.reason)
        try:
            self._outlet.finish(closed)
        except Exception:
            self._outlet.finish()
            raise
        finally:
            if self._followed is not None:
                self._followed.on_event(closed)

    async def summarize(self) -> str:
        """A summary of the whole call by its language model; empty: nothing was said.

        Raises:
            ParleyError: there is none.
        """
        name, limits = f"{self.session_id}-call", self._config.deadlines
        return await summarize(self._engines.chat, self._conversation.agent_turns.history, name, limits)

    def _emit(self, event: protocol.ServerEvent, audio: NDArray[np.int16] | None = None) -> None:
        if self._held is not None:
            self._held.append((event, audio))
        elif isinstance(event, protocol.ErrorEvent) and event.code == ShuttingDownError.code:
            # The first call that a stopping server refuses ends the session; it is no failure.
            self.end("shutdown")
        elif not self.closed:
            if self._config.log_transcripts and isinstance(event, _SAID):
                _log.info("%s: %s", self.session_id, event)
            if self._checkpoints is not None:
                self._checkpoints.before(event)
            if isinstance(event, protocol.Audio):
                self._unread.sent(event.samples / event.sample_rate)
            self._outlet.send(event, audio)
            self._metrics.on_event(event, audio)
            if self._followed is not None:
                self._followed.on_event(event, audio)
