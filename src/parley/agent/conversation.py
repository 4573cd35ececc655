"""One conversation: connects speech recognition, endpointing, interruptions and the agent's turns."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Literal, Protocol, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from parley import protocol
from parley.agent.collecting.collector import Collector, describe_collected
from parley.agent.config import AgentConfig
from parley.agent.continued import BegunResponse
from parley.agent.decisions import Decisions
from parley.agent.dtmf import DtmfBuffer
from parley.agent.ending import EndingTools
from parley.agent.endpointer import Endpointer, UserTurn
from parley.agent.expected_names import ExpectedNames
from parley.agent.facts.checking import SessionFacts
from parley.agent.generation import read_turn, warm_up
from parley.agent.interruptions import InterruptionDetector
from parley.agent.languages import localize
from parley.agent.metrics import SessionMetrics
from parley.agent.outcomes import Outcomes
from parley.agent.ports import Engines
from parley.agent.prompt import SystemPrompt
from parley.agent.response import LlmResponse
from parley.agent.retrieval import Retrieval
from parley.agent.speech import SpeechSettings
from parley.agent.speech_events import Contained
from parley.agent.steps import Steps
from parley.agent.summarization import Summarizer
from parley.agent.tools import ToolExecutor
from parley.agent.turn import TurnOutput
from parley.agent.turns import AgentTurns, InterruptReason
from parley.agent.user_idle import UserIdleTimer
from parley.agent.validation import (
    check_prompt,
    check_remembered,
    check_spoken,
    choose_idle_settings,
    speech_language,
)
from parley.asr.itn import inverse_normalizer
from parley.audio.buffer import AudioPiece
from parley.chat import ChatMessage, ToolCall
from parley.checkpoint import (
    CHECKPOINT_VERSION,
    BackgroundCall,
    Resume,
    SessionState,
    UserTurnState,
)
from parley.engines.base import Synthesizer
from parley.errors import OverloadedError, ParleyError
from parley.languages import find_language, primary_language
from parley.llm.history import History
from parley.llm.messages import CUT, choose_sampling
from parley.timeouts import loop_time
from parley.tools.combined import CombinedTools
from parley.tracing import NO_TRACE, Trace
from parley.turns.endpointing import MAX_CHARACTERS
from parley.turns.interruption import interruption_words, words_of
from parley.turns.settings import DICTATION, TurnSettings, at_least, choose_settings

State: TypeAlias = Literal["listening", "processing", "speaking"]

_READ_LANGUAGE = "en"
"""What a language model says about the words of a turn was compared with speech in English only."""
_SURE = 0.7
"""Confidence below which a "yeah" that answers no question is taken for noise."""
_ASKING = 200
"""Characters at the end of an answer in which a question may be."""
_KEY_PAUSE_S = 2.0
_log = logging.getLogger(__name__)


class EmitEvent(Protocol):
    """Sends an event to the client."""

    def __call__(self, event: protocol.ServerEvent, audio: NDArray[np.int16] | None = None) -> None:
        """``audio``: the samples of a :class:`parley.protocol.Audio`."""
        ...


class Conversation:
    """Handles speech events, the client's messages, and the events of the agent's turns.

    Implements :class:`parley.agent.speech_events.SpeechHandler` and
    :class:`parley.agent.turns.AgentTurnHandler`.

    ``name`` is unique for each session. ``hang_up`` ends the session, after a long silence of the user or by
    the language model; ``begin_turn`` is called when later utterances belong to another turn of the user;
    ``changed`` when :meth:`state` may have changed. What is done in a ``whole`` block is in :meth:`state` as
    a whole when that is taken, or not at all. ``prefix_changed`` is called when a step has changed the prefix
    of prompts, also where an answer follows at once. ``listen``: called when the recogniser is to expect
    other words. ``resume``: the conversation goes on with that of another session.
    """

    def __init__(
        self,
        name: str,
        start: protocol.Start,
        engines: Engines,
        config: AgentConfig,
        *,
        emit: EmitEvent,
        hang_up: Callable[[protocol.Closed], None],
        begin_turn: Callable[[], None],
        metrics: SessionMetrics,
        changed: Callable[[], None],
        whole: Callable[[], AbstractContextManager[None]],
        prefix_changed: Callable[[], None] = lambda: None,
        listen: Callable[[], None] = lambda: None,
        resume: Resume | None = None,
        trace: Trace = NO_TRACE,
    ) -> None:
        self._changed = changed
        self._whole = whole
        self._prefix_changed = prefix_changed
        self._listen = listen
        self._resume = resume
        self._finish_commit: Callable[[], None] = _nothing
        self._metrics = metrics
        self._name = name
        self._engines = engines
        language = primary_language(speech_language(start, engines.synthesizer))
        config = localize(config, language)
        self._config = config
        self._emit = emit
        self._begin_turn = begin_turn
        self._start = start
        self.outcomes = Outcomes(emit, whole, resume.state.outcomes if resume else None)
        self._ending = EndingTools(start.ending, speech_language(start, engines.synthesizer))
        self._steps = Steps(start.steps, self.outcomes, self._on_step_due)
        self.collector = Collector(
            start.collect,
            self.outcomes,
            self._collected_here,
            self._on_collecting,
            resume.state.collecting if resume else None,
        )
        self._built_in = CombinedTools(self._ending, self._steps, self.collector)
        self._tools = ToolExecutor(
            start.tools,
            emit,
            config,
            engines.server_tools,
            self._built_in,
            on_result=self._on_tool_result,
        )
        self._change_tools(start)
        prompt, tools = self._prompt_prefix(start)
        tokens = config.knowledge_tokens
        self._retrieval = Retrieval(engines.knowledge, name, tokens) if engines.knowledge and tokens else None
        for_history = config.prompt_tokens - (tokens if self._retrieval else 0)
        self._history = History(prompt, for_history, tools)
        self._summariser = Summarizer(engines.chat, self._history, name, config.deadlines)
        self._decisions = Decisions(
            engines.chat,
            start,
            self._history,
            self.outcomes,
            name,
            limits=config.deadlines,
            language=speech_language(start, engines.synthesizer),
            count=metrics.on_decision,
        )
        self._warm_ups = self._readings = 0
        self._names = ExpectedNames(enabled=config.boost_names and language == "en")
        self._fillers = config.fillers.get(language, ())
        self._facts = SessionFacts(language)
        self._sampling = choose_sampling(start.sampling, config.sampling)
        greeting = config.greeting if start.greeting is None else start.greeting
        self._add_sources(start, greeting)
        self._greeting = greeting if resume is None else ""
        self.agent_turns = AgentTurns(
            name,
            self._output(start),
            self._history,
            tools=self._tools,
            make_response=self._make_response,
            reply=self._reply,
            words=interruption_words(language),
            whole=whole,
            handler=self,
            count_prepared=engines.speculated,
            trace=trace,
        )
        self._endpointer = Endpointer(
            self._turn_settings(start),
            language,
            engines.turn,
            self._read_turn if engines.reads_turns and language == _READ_LANGUAGE else None,
            deadline_s=config.deadlines.turn_s,
            read_deadline_s=config.deadlines.turn_text_s,
            name=name,
            emit=emit,
            prepare=self._prepare,
            discard=self.agent_turns.discard,
            commit=self._on_user_turn,
            begin_turn=begin_turn,
            arrival=metrics.arrival,
            extra_ms=resume.state.extra_pause_ms if resume else 0,
            trace=trace,
        )
        self.interruptions = InterruptionDetector(
            start, language, self.agent_turns, self._endpointer, metrics
        )
        self._dtmf = DtmfBuffer(_KEY_PAUSE_S, self._on_typed)
        self._user_idle = UserIdleTimer(
            choose_idle_settings(start.silence, config.silence),
            self._say_idle_prompt,
            lambda: hang_up(protocol.Closed(reason="silence")),
        )
        self._hang_up = hang_up
        self._written = inverse_normalizer(language) if config.written_forms else str
        self._state: State | None = None
        self._closed = False
        self._hearing: str | None = None  # the user's speech without a final transcript, as far as recognised
        if resume is not None:
            self.agent_turns.restore(resume.history)
        self._late_results = [] if resume is None else self._tools.restore(resume.state)

    # --- life -----------------------------------------------------------------------------

    @property
    def greets(self) -> bool:
        """Whether the agent speaks first."""
        return bool(self._greeting.strip())

    def open(self) -> None:
        """Start: the agent may speak."""
        self._enter("listening")
        self._steps.begin()
        if self._resume is not None:
            self._go_on(self._resume)
        elif self.greets:
            self.agent_turns.open(protocol.Say(text=self._greeting))
        else:
            self.agent_turns.open()
            self._count_idle()

    def _go_on(self, resume: Resume) -> None:
        state = resume.state
        user = state.user
        if user.text and not state.unanswered:
            # As long as a turn can be: what judges its end takes longer for more.
            self._endpointer.restore(state.utterances, user.text[-MAX_CHARACTERS:])
        elif user.text and not self._start.turn.answer:
            said = ChatMessage(role="user", content=user.text)
            state = msgspec.structs.replace(state, unanswered=False, messages=[*state.messages, said])
        if state.agent is None:
            self._enter_step()
        self.agent_turns.go_on(state, resume.progress, self._late_results)
        if user.digits:
            self._dtmf.press(user.digits)
        self._count_idle()

    def state(self, contained: Contained, *, muted: bool) -> SessionState:
        """What another session needs to go on.

        ``contained``: how much of the user's speech is in it; ``muted``: whether what follows is ignored.
        """
        turns = self.agent_turns
        texts = (turns.unhandled, self._endpointer.text)
        return SessionState(
            version=CHECKPOINT_VERSION,
            turns=turns.turns,
            utterances=contained.utterances,
            audio_ms=contained.audio_ms,
            user=UserTurnState(text=" ".join(filter(None, texts)), digits=self._dtmf.keys),
            agent=turns.current.state if turns.current is not None else None,
            unanswered=bool(turns.unhandled),
            queued=turns.queued,
            messages=turns.messages,
            background=[*turns.results, *self._tools.background],
            announce=turns.unread,
            muted=muted,
            extra_pause_ms=self._endpointer.extra_ms,
            outcomes=self.outcomes.state,
            collecting=self.collector.state,
        )

    @property
    def settled(self) -> bool:
        """Whether no turn of either side is under way or waits, as far as speech was passed on.

        The call of a server's tool does not go on elsewhere: it is waited for too.
        """
        turns = self.agent_turns
        waiting = turns.current or turns.queued or turns.unhandled or turns.messages
        speaking = self._endpointer.pending or self.interruptions.undecided or self._dtmf.keys
        return not (waiting or speaking or self._tools.serving)

    async def warm_up(self) -> None:
        """Prefill the language model's cache with the prefix of this session's prompts."""
        if self._start.facts == "strict":
            await self._facts.check(self._history.system_prompt, self._history.conversation)
        self._warm_ups += 1
        name = f"{self._name}-{self._warm_ups}"
        messages, limits = self._history.messages(), self._config.deadlines
        await warm_up(self._engines.chat, name, messages, self._history.tools, limits)

    async def _read_turn(self, text: str) -> float:
        # An answer that is begun to these words has them in its prompt: another prompt would delay it.
        if (found := await self.agent_turns.read(self._written(text))) is not None:
            return found
        self._readings += 1
        name = f"{self._name}-{self._readings}"
        messages = [*self._history.messages(), ChatMessage(role="user", content=text)]
        limits = self._config.deadlines
        return await read_turn(self._engines.chat, name, messages, self._history.tools, limits)

    @property
    def names(self) -> Sequence[str]:
        """Names that the user may say."""
        results = (one.content for one in reversed(self._history.conversation) if one.role == "tool")
        return self._names.find(self._start, *self._prompt_prefix(self._start), results)

    def change(self, start: protocol.Start) -> bool:
        """Apply validated options; turns under way are not changed.

        Returns:
            Whether the prefix of prompts has changed.
        """
        before, self._start = self._start, start
        self._add_sources(start)
        prefix_changed = (start.system_prompt, start.tools) != (before.system_prompt, before.tools)
        if prefix_changed:
            self._change_tools(start)
            self._history.change(*self._prompt_prefix(start))
        self._sampling = choose_sampling(start.sampling, self._config.sampling)
        self.agent_turns.change(self._output(start))
        self._endpointer.change(self._turn_settings(start))
        self.interruptions.change(start)
        if start.silence != before.silence:
            self._user_idle.change(choose_idle_settings(start.silence, self._config.silence))
        return prefix_changed

    def _prompt_prefix(self, start: protocol.Start) -> tuple[str, Sequence[protocol.Tool]]:
        prompt = self._config.system_prompt if start.system_prompt is None else start.system_prompt
        step = self._steps.current
        parts = (prompt, step.instructions if step is not None else "")
        return "\n\n".join(filter(None, parts)), self._tools.offered

    def _change_tools(self, start: protocol.Start) -> None:
        step = self._steps.current
        only = None
        if step is not None and step.tools is not None:
            only = {*step.tools, *(set(self._built_in.names) - self._ending.names)}
        self._tools.change(start.tools, only)

    def _collected_here(self) -> Collection[str] | None:
        """Names of the fields that can be asked for in this step; None: all."""
        if not self._start.turn.answer:  # no turn would be read
            return ()
        return None if self._steps.current is None else self._steps.current.collect

    def _on_collecting(self) -> None:
        """A field is asked for, or no longer."""
        self._endpointer.change(self._turn_settings(self._start))
        self._listen()
        self._changed()

    def _turn_settings(self, start: protocol.Start) -> TurnSettings | None:
        """How patient the session is: the more so with letters and digits that are said one by one."""
        settings = choose_settings(start.turn, self._config.eagerness, adapts=self._config.turn_adapts)
        return at_least(settings, DICTATION) if self.collector.dictating else settings

    def _reply(self, text: str) -> str:
        """What is said verbatim to a turn of the user; empty: the language model answers."""
        say, note = self.collector.on_turn(text)
        if say:
            self._facts.add(say)
        if note:
            self._facts.add(note)
            self.agent_turns.add_message(protocol.Remember(role="system", text=note))
        return say

    @property
    def answering(self) -> bool:
        """Whether the text of a turn may be written still."""
        turn = self.agent_turns.current
        return turn is not None and turn.generating

    def _on_step_due(self) -> None:
        if not self.answering and not self._closed:
            self._enter_step()

    def _enter_step(self) -> bool:
        """Let the step begin that is to, if there is one; returns whether there was."""
        if not self.outcomes.state.next_step:
            return False
        with self._whole():
            for step in self._steps.enter():
                if step.history == "reset":
                    self._history.reset(describe_collected(self.outcomes.state.collected))
                elif step.history == "summary":
                    self._summariser.summarise_all()
            self._change_tools(self._start)
            self._history.change(*self._prompt_prefix(self._start))
            self.agent_turns.change(self._output(self._start))
            self._changed()
        self._prefix_changed()
        return True

    def _add_sources(self, start: protocol.Start, *texts: str) -> None:
        """Let answers speak of texts of the client that the language model reads."""
        for text in (*texts, *(f"{target.name}: {target.description}" for target in start.ending.transfers)):
            self._facts.add(text)

    def _output(self, start: protocol.Start) -> TurnOutput:
        return TurnOutput(
            self._engines.synthesizer,
            _speaker(start, self._steps.current, self._engines.synthesizer),
            self._config,
            self._emit_turn,
            aloud=start.output == "audio",
            by_speech=start.barge_in.enabled and start.turn.detection == "auto",
            recognizer=self._metrics.recognizer,
            record=self._metrics.on_turn,
            changed=self._changed,
            answered=self._decisions.ask,
        )

    async def decide_at_end(self) -> None:
        """Answer the questions that are asked at the end; the conversation was closed."""
        await self._decisions.ask_at_end(self.agent_turns.turns)

    def close(self) -> set[asyncio.Task[None]]:
        """Stop everything; returns the tasks that are still ending."""
        self._closed = True
        words = (self._endpointer.text, self.interruptions.text, self._hearing)
        said = self._written(" ".join(filter(None, words)))
        self.interruptions.close()
        self._dtmf.close()
        self._user_idle.stop()
        searches = self._retrieval.close() if self._retrieval else ()
        ending = {
            *self.agent_turns.close(f"{said} {self._dtmf.keys}"),
            *self._endpointer.close(),
            *self._summariser.close(),
        }
        return {*ending, *self._decisions.close(), *searches}

    # --- messages of the client ------------------------------------------------------------

    def on_message(
        self,
        message: protocol.ToolResponse
        | protocol.Playback
        | protocol.Text
        | protocol.Dtmf
        | protocol.Say
        | protocol.Respond
        | protocol.Remember
        | protocol.Interrupt
        | protocol.Truncate,
    ) -> None:
        """Handle a message.

        Raises:
            ParleyError: it is invalid, or not possible now.
        """
        match message:
            case protocol.ToolResponse():
                self._tools.resolve(message)
            case protocol.Playback():
                self.agent_turns.mark_played(message.response_id, message.played_ms)
            case protocol.Text():
                check_spoken(message.text, "text.text")
                self._on_typed(message.text.strip())
            case protocol.Dtmf():
                self._user_idle.user_active()
                self._dtmf.press(message.digits)
                self._count_idle()
            case protocol.Say():
                check_spoken(message.text, "say.text")
                self.agent_turns.say(message)
                self._facts.add(message.text)
            case protocol.Respond():
                check_prompt(message.system_prompt, self._config)
                self.agent_turns.say(message)
            case protocol.Remember():
                check_remembered(message.text, self._config)
                self.agent_turns.add_message(message)
                self._facts.add(message.text)
                self._note_typed(message.text)
            case protocol.Interrupt():
                self._stop(message.response_id)
            case protocol.Truncate():
                self.agent_turns.check_truncation(message.response_id, message.played_ms)
                self._stop(message.response_id)
                self.agent_turns.truncate(message.response_id, message.played_ms)

    def on_commit_reached(self, finish: Callable[[], None], _utterance: int) -> None:
        """All audio before a ``commit`` was processed; the utterance under way belongs to the turn.

        ``finish`` is called when the turn was taken, at the latest in :meth:`on_commit_finished`.
        """
        self._finish_commit = finish
        self.interruptions.release()
        self._endpointer.request_commit()

    def on_commit_finished(self, _utterance: int) -> None:
        """The last transcript before a ``commit`` has come, or is overdue."""
        with self._whole():
            self.interruptions.release()
            self._endpointer.commit_requested()
            self._end_commit()
        self._count_idle()

    def _end_commit(self) -> None:
        finish, self._finish_commit = self._finish_commit, _nothing
        finish()

    def on_discard_reached(self, utterance: int) -> None:
        """All audio before a ``discard`` was processed, up to this utterance.

        An utterance that begins before :meth:`on_discard_finished` is dropped too.
        """
        self.interruptions.drop()
        self._endpointer.drop(utterance + 1)
        self._changed()

    def on_discard_finished(self, finish: Callable[[], None], utterance: int) -> None:
        """The last transcript before a ``discard`` has come, or is overdue; calls ``finish``."""
        with self._whole():
            self.interruptions.drop()
            self._endpointer.drop(utterance)
            self._hearing = None
            finish()
        self._count_idle()

    # --- speech of the user ---------------------------------------------------------------

    def on_onset(self, at_ms: int) -> None:
        """Speech may begin: the agent pauses."""
        self._endpointer.on_onset()
        self.interruptions.on_onset(at_ms)

    def on_onset_cancelled(self) -> None:
        """The onset was shorter than ``vad.min_speech_ms``."""
        self.interruptions.on_onset_cancelled()
        self._endpointer.on_onset_cancelled()
        self._announce()

    def on_speech_started(self, event: protocol.SpeechStarted) -> None:
        """The user has started to speak."""
        self._emit(event)
        self._hearing = ""
        self._user_idle.user_active(speaking=True)
        self.interruptions.on_speech_started(event)

    def on_speech_stopped(self, event: protocol.SpeechStopped, detected_at: float) -> None:
        """The user has stopped speaking; the final transcript follows."""
        self._emit(event)
        self._user_idle.user_silent()
        self.interruptions.on_speech_stopped(event, detected_at)

    def on_audio_processed(self, piece: AudioPiece) -> None:
        """The recogniser has processed this audio."""
        self._endpointer.on_audio_processed(piece)
        self.interruptions.on_audio_processed(piece)

    def on_transcript(self, event: protocol.Transcript) -> None:
        """A partial or final transcript."""
        self._emit(event)
        if event.is_final:
            self.collector.on_transcript(event)  # the turn may end with it
        self.interruptions.on_transcript(event)
        if self._retrieval is not None and not event.is_final and self._start.turn.answer:
            self._retrieval.hear(self._written(f"{self._endpointer.text} {event.text}".strip()))
        if not event.is_final:
            self._hearing = event.text
        else:
            self._hearing = None
            self._changed()
            if not self._endpointer.pending and not self.interruptions.undecided:
                self._begin_turn()  # the utterance was no turn of the user
            self._count_idle()

    def _count_idle(self) -> None:
        """Start to count the user's silence, unless a turn of either side is under way."""
        self._announce()
        if any(one.announce for one in self._tools.background):
            return  # the user waits for its result
        if self.agent_turns.current is None and not self._endpointer.pending and not self._dtmf.keys:
            self._user_idle.quiet()

    def _on_tool_result(self, done: BackgroundCall) -> None:
        """A tool that does not block has returned, or failed."""
        self.agent_turns.add_result(done)
        if done.announce and not self._closed:
            self._count_idle()

    def _announce(self) -> None:
        """Answer the results of tools that no answer has read, unless a turn of either side is under way."""
        turns, user_active = self.agent_turns, self._user_idle.speaking or self.user_pending
        if turns.unread and turns.current is None and self._start.turn.answer and not user_active:
            turns.say(protocol.Respond(must_call=""))  # or each result would be answered by a call

    def _prepare(self, text: str, stopped_at: float | None) -> None:
        if self._start.turn.answer and self.collector.active is None:
            self.agent_turns.prepare(self._written(text), stopped_at)

    def _on_user_turn(self, user: UserTurn, decision: protocol.TurnDecision | None) -> None:
        with self._whole():
            if self._only_listens(user):
                self.agent_turns.ignore("backchannel", user.text)
                user = dataclasses.replace(user, text="")
                decision = decision and msgspec.structs.replace(decision, reason="no_words", text="")
            if decision is not None:
                self._emit(decision)
            written = str if self.collector.active else self._written
            self._take_turn(dataclasses.replace(user, text=written(user.text)))
            if user.requested:
                self._end_commit()

    def _only_listens(self, user: UserTurn) -> bool:
        """Whether it is an "mhm", or a noise taken for a "yeah", behind a whole answer without a question.

        An answer that was cut may have been cut in a question, and one may ask for a "yes" without asking.
        """
        said, messages = words_of(user.text), self._history.conversation
        doubtful = user.confidence < _SURE and self.interruptions.words.is_backchannel(said)
        if user.requested or self.collector.active or not (doubtful or self.interruptions.words.is_hum(said)):
            return False
        if not messages or messages[-1].role != "assistant":
            return False
        answer = messages[-1].content[-_ASKING:]
        return not answer.endswith(CUT) and "?" not in answer and set(said).isdisjoint(words_of(answer))

    def _take_turn(self, user: UserTurn) -> None:
        if user.requested and not user.text:
            self.agent_turns.resume("no_words", "")
        if self._start.turn.answer:
            if self.agent_turns.yields_to(user):
                self._interrupt("input" if user.requested else "words")
            self.agent_turns.answer(user)
            return
        if user.text:
            if user.requested:
                self._interrupt("input")
            try:
                self.agent_turns.add_message(protocol.Remember(role="user", text=user.text))
            except OverloadedError as error:
                self.on_error(error)
            self.agent_turns.start_next()  # what the user cannot interrupt is still queued
        self._count_idle()

    def _on_typed(self, text: str) -> None:
        self._user_idle.user_active()
        with self._whole():
            self._interrupt("input")
            self._note_typed(text)
            now = loop_time()
            # Speech before it belongs to the same turn, unless the user is speaking.
            self._take_turn(UserTurn(f"{self._written(self._endpointer.take())} {text}".strip(), now, now))

    def _note_typed(self, text: str) -> None:
        if self._retrieval is not None:
            self._retrieval.note_typed(text)

    def _interrupt(self, reason: InterruptReason) -> None:
        """Stop the agent's turn for one of the user: speech over it is no interruption any more."""
        if self.agent_turns.interrupt(reason):
            self.interruptions.release()

    def _stop(self, response_id: str | None) -> None:
        if self.agent_turns.stop(response_id):
            self.interruptions.release()
            self.agent_turns.start_next()

    def on_error(self, error: ParleyError) -> None:
        """Report an error to the client."""
        self._emit(protocol.ErrorEvent.of(error))

    def on_recognizer_unavailable(self) -> None:
        """Speech is not recognised for now: apologise."""
        if self._config.deaf_apology:
            with suppress(OverloadedError):  # then the agent speaks anyway
                self.agent_turns.say(protocol.Say(text=self._config.deaf_apology, remember=False))

    # --- turns of the agent --------------------------------------------------------------

    def _make_response(self, prompt: SystemPrompt, begun: BegunResponse | None) -> LlmResponse:
        self._decisions.cancel()
        session_call = self._start.must_call if prompt.use_tools else ""
        return LlmResponse(
            self._engines.chat,
            prompt,
            tools=self._tools,
            must_call=session_call if prompt.must_call is None else prompt.must_call,
            fillers=self._fillers,
            sampling=self._sampling,
            config=self._config,
            begun=begun,
            facts=self._facts if self._start.facts == "strict" else None,
            enter_step=self._enter_step,
            collector=self.collector,
            retrieval=self._retrieval,
        )

    def _say_idle_prompt(self, text: str, first: bool) -> None:
        # The history keeps only the first prompt of a long silence.
        self.agent_turns.say(protocol.Say(text=text, remember=first))

    def on_turn_started(self) -> None:
        """The agent is about to answer."""
        self._user_idle.stop()
        self._enter("processing")

    def on_interrupted(self, heard: str) -> None:
        """The agent's turn was stopped; ``heard``: what was played of it."""
        self.collector.on_interrupted(heard)
        self._enter_step()
        self._listen()  # tools may have returned names
        self._enter("listening")

    def on_turn_ended(self) -> None:
        """The agent's turn has ended by itself or failed."""
        self.collector.on_turn_ended()
        self._enter_step()
        self._listen()  # tools may have returned names
        self.interruptions.on_turn_ended()

    def on_agent_silent(self) -> None:
        """The agent has no turn under way or queued."""
        self._enter("listening")
        self._count_idle()
        if self._config.history == "summarise":
            self._summariser.on_history_changed()

    @property
    def user_pending(self) -> bool:
        """Whether speech or keys of the user are there that may become a turn."""
        pending = self._endpointer.pending or self.interruptions.undecided
        return self._hearing is not None or pending or bool(self._dtmf.keys)

    async def on_spoken(self) -> None:
        """A turn was heard to its end."""
        await self._decisions.wait_for_ending()

    def on_ending(self, turn: int, call: ToolCall | None) -> bool:
        """A turn is over; returns whether the conversation ends: by its call, or by a decision."""
        closed = self._ending.closed(call) if call else self._decisions.closed(turn)
        if closed is not None:
            self._hang_up(closed)
        return closed is not None

    def on_task_failed(self, what: str) -> None:
        """Log an unexpected exception, and report to the client that it happened."""
        _log.exception("%s: the %s failed", self._name, what)
        self.on_error(ParleyError(f"the {what} failed unexpectedly"))

    # --- events to the client ---------------------------------------------------------------

    def _emit_turn(self, event: protocol.ServerEvent, audio: NDArray[np.int16] | None) -> None:
        if isinstance(event, protocol.Audio) and audio is not None:
            self._user_idle.stop()
            self._enter("speaking")
            self.interruptions.on_agent_audio(audio, event.sample_rate)
        self._emit(event, audio)

    def _enter(self, state: State) -> None:
        if state != self._state:
            self._state = state
            self._emit(protocol.AgentState(state=state))


def _nothing() -> None:
    pass


def _speaker(start: protocol.Start, step: protocol.Step | None, synthesizer: Synthesizer) -> SpeechSettings:
    language = speech_language(start, synthesizer)
    return SpeechSettings(
        voice=(step and step.voice) or start.voice,
        language=find_language(language, synthesizer.languages) or language,
        sample_rate=start.output_sample_rate,
        exaggeration=start.exaggeration,
        guidance_weight=start.guidance_weight,
    )
