"""What both sides say in one session, and in which order."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from parley import protocol
from parley.agent.config import AgentConfig
from parley.agent.dtmf import DtmfBuffer
from parley.agent.endpointer import Endpointer, UserTurn
from parley.agent.interruptions import InterruptionDetector
from parley.agent.ports import Engines
from parley.agent.response import LlmResponse, SystemPrompt, warm_up
from parley.agent.speech import Speaker
from parley.agent.spoken_text import check_spoken
from parley.agent.summarization import Summarizer
from parley.agent.tools import ToolExecutor
from parley.agent.turn import TurnOutput
from parley.agent.turns import AgentTurns
from parley.agent.user_idle import UserIdleTimer, choose_idle_settings
from parley.agent.validation import check_prompt, check_remembered
from parley.asr.itn.rules import inverse_normalizer
from parley.audio.buffer import AudioPiece
from parley.errors import OverloadedError, ParleyError
from parley.llm.history import History
from parley.llm.sampling import choose_sampling
from parley.tts.voice_routing import primary_language
from parley.turns.settings import choose_settings

State: TypeAlias = Literal["listening", "processing", "speaking"]

_KEY_PAUSE_S = 2.0
_log = logging.getLogger(__name__)


class EmitEvent(Protocol):
    """Sends an event to the client."""

    def __call__(self, event: protocol.ServerEvent, audio: NDArray[np.int16] | None = None) -> None:
        """``audio`` belongs to :class:`parley.protocol.Audio`."""
        ...


class Conversation:
    """Joins the parts that listen, decide and speak.

    Handles speech events (:class:`parley.agent.speech_events.SpeechHandler`), the client's messages, and the
    events of the agent's turns (:class:`parley.agent.turns.AgentTurnHandler`).

    Args:
        name: that no other session has or had.
        start: what the client asked for.
        engines: to think and speak with.
        config: limits and deadlines.
        emit: sends an event to the client.
        hang_up: ends the session, because the user says nothing.
        turn_over: is told that what the user says from now on has nothing to do with what was said before.
    """

    def __init__(
        self,
        name: str,
        start: protocol.Start,
        engines: Engines,
        config: AgentConfig,
        *,
        emit: EmitEvent,
        hang_up: Callable[[], None],
        turn_over: Callable[[], None],
    ) -> None:
        self._name = name
        self._engines = engines
        self._config = config
        self._emit = emit
        self._turn_over = turn_over
        language = primary_language(start.language)
        self._language = language
        self._start = start
        prompt, tools = self._fixed(start)
        self._history = History(prompt, config.prompt_tokens, tools)
        self._summariser = Summarizer(engines.chat, self._history, name, config.deadlines)
        self._warm_ups = 0
        self._tools = ToolExecutor(start.tools, emit, config, engines.server_tools)
        self._fillers = config.fillers.get(language, ())
        self._sampling = choose_sampling(start.sampling, config.sampling)
        self._greeting = config.greeting if start.greeting is None else start.greeting
        self._agent_turns = AgentTurns(
            name,
            self._output(start),
            self._history,
            desk=self._tools,
            think=self._think,
            by_speech=_by_speech(start),
            handler=self,
            counted=engines.speculated,
        )
        self._endpointer = Endpointer(
            choose_settings(start.turn, config.eagerness),
            language,
            engines.turn,
            deadline_s=config.deadlines.turn_s,
            name=name,
            emit=emit,
            prepare=self._prepare,
            discard=self._agent_turns.discard,
            commit=self._user_finished,
            turn_over=turn_over,
        )
        self._interruptions = InterruptionDetector(
            start.barge_in,
            language,
            self._agent_turns,
            self._endpointer,
            enabled=_by_speech(start),
            judged=start.turn.detection == "auto",
        )
        self._dtmf = DtmfBuffer(_KEY_PAUSE_S, self._input)
        self._user_idle = UserIdleTimer(
            choose_idle_settings(start.silence, config.silence), self._prompt, hang_up
        )
        self._written = inverse_normalizer(language) if config.written_forms else str
        self._state: State | None = None

    # --- life -----------------------------------------------------------------------------

    @property
    def greets(self) -> bool:
        """Whether the agent speaks first."""
        return bool(self._greeting.strip())

    def open(self) -> None:
        """The client is there: the agent may speak."""
        self._enter("listening")
        if self.greets:
            self._agent_turns.open(protocol.Say(text=self._greeting))
        else:
            self._agent_turns.open()
            self._settle()

    async def warm_up(self) -> None:
        """Let the language model read what all prompts of this session begin with."""
        self._warm_ups += 1
        name = f"{self._name}-{self._warm_ups}"
        messages, limits = self._history.messages(), self._config.deadlines
        await warm_up(self._engines.chat, name, messages, self._history.tools, limits)

    def change(self, start: protocol.Start) -> bool:
        """Go on as ``start`` says, which is checked; what is under way ends as it began.

        Returns:
            Whether what all prompts begin with has changed.
        """
        before, self._start = self._start, start
        reread = (start.system_prompt, start.tools) != (before.system_prompt, before.tools)
        if reread:
            self._history.change(*self._fixed(start))
            self._tools.change(start.tools)
        self._sampling = choose_sampling(start.sampling, self._config.sampling)
        self._agent_turns.change(self._output(start), by_speech=_by_speech(start))
        self._endpointer.change(choose_settings(start.turn, self._config.eagerness))
        judged = start.turn.detection == "auto"
        self._interruptions.change(start.barge_in, enabled=_by_speech(start), judged=judged)
        if start.silence != before.silence:
            self._user_idle.change(choose_idle_settings(start.silence, self._config.silence))
        return reread

    def _fixed(self, start: protocol.Start) -> tuple[str, list[protocol.Tool]]:
        """What all prompts begin with. The tools are those that there are now."""
        prompt = self._config.system_prompt if start.system_prompt is None else start.system_prompt
        own = self._engines.server_tools
        return prompt, [*start.tools, *(own.tools if own else ())]

    def _output(self, start: protocol.Start) -> TurnOutput:
        return TurnOutput(
            self._engines.synthesizer,
            _speaker(start, self._language, self._engines),
            self._config,
            self._emit_turn,
            aloud=start.output == "audio",
        )

    def close(self) -> set[asyncio.Task[None]]:
        """Say and decide nothing more; returns what is still ending."""
        self._interruptions.close()
        self._dtmf.close()
        self._user_idle.close()
        return {*self._agent_turns.close(), *self._endpointer.close(), *self._summariser.close()}

    @property
    def agent_active(self) -> bool:
        """Whether the agent thinks or speaks."""
        return self._agent_turns.current is not None

    # --- what the client sends ------------------------------------------------------------

    def receive(
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
        """Take a message.

        Raises:
            ParleyError: it makes no sense, or not now.
        """
        match message:
            case protocol.ToolResponse():
                self._tools.resolve(message)
            case protocol.Playback():
                self._agent_turns.played(message.response_id, message.played_ms)
            case protocol.Text():
                check_spoken(message.text, "text.text")
                self._input(message.text.strip())
            case protocol.Dtmf():
                self._user_idle.user_active()
                self._dtmf.press(message.digits)
                self._settle()
            case protocol.Say():
                check_spoken(message.text, "say.text")
                self._agent_turns.say(message)
            case protocol.Respond():
                check_prompt(message.system_prompt, self._config)
                self._agent_turns.say(message)
            case protocol.Remember():
                check_remembered(message.text, self._config)
                self._agent_turns.note(message)
            case protocol.Interrupt():
                self._agent_turns.stop(message.response_id)
            case protocol.Truncate():
                self._agent_turns.truncate(message.response_id, message.played_ms)

    def claim_turn(self, _utterance: int) -> None:
        """The client says that the user's turn is over: what is being heard is part of it."""
        self._interruptions.release()
        self._endpointer.claim()

    def end_turn(self, _utterance: int) -> None:
        """All of that was heard."""
        self._interruptions.release()
        self._endpointer.end()
        self._settle()

    def drop_turn(self, utterance: int) -> None:
        """The client says that what the user has said does not count, up to this utterance.

        One that begins while that is ended does not count either; :meth:`turn_dropped` follows.
        """
        self._interruptions.drop()
        self._endpointer.drop(utterance + 1)

    def turn_dropped(self, utterance: int) -> None:
        """That was all, up to this utterance."""
        self._interruptions.drop()
        self._endpointer.drop(utterance)
        self._settle()

    # --- what the user says ---------------------------------------------------------------

    def on_onset(self, at_ms: int) -> None:
        """The user may be beginning to speak: the agent falls silent and listens."""
        self._endpointer.on_onset()
        self._interruptions.on_onset(at_ms)

    def on_onset_cancelled(self) -> None:
        """It was no speech."""
        self._interruptions.on_onset_cancelled()
        self._endpointer.on_onset_cancelled()

    def on_speech_started(self, event: protocol.SpeechStarted) -> None:
        """The user speaks."""
        self._emit(event)
        self._user_idle.user_active(speaking=True)
        self._interruptions.on_speech_started(event)

    def on_speech_stopped(self, event: protocol.SpeechStopped, detected_at: float) -> None:
        """The user is silent; the final transcript follows."""
        self._emit(event)
        self._user_idle.user_silent()
        self._interruptions.on_speech_stopped(event, detected_at)

    def on_audio_processed(self, piece: AudioPiece) -> None:
        """The recogniser has heard this."""
        self._endpointer.hear(piece)
        self._interruptions.on_audio_processed(piece)

    def on_transcript(self, event: protocol.Transcript) -> None:
        """A final text may be the end of the user's turn."""
        self._emit(event)
        self._interruptions.on_transcript(event)
        if event.is_final:
            if not self._endpointer.pending and not self._interruptions.undecided:
                self._turn_over()  # it was no turn of the user
            self._settle()

    def _settle(self) -> None:
        """The silence counts from now on, if nobody has anything to do."""
        if self._agent_turns.current is None and not self._endpointer.pending and not self._dtmf.pending:
            self._user_idle.quiet()

    def _prepare(self, text: str) -> None:
        if self._start.turn.answer:
            self._agent_turns.prepare(self._written(text))

    def _user_finished(self, user: UserTurn) -> None:
        """It is the agent's turn to answer, if the client does not wish to say so itself."""
        self._take_turn(dataclasses.replace(user, text=self._written(user.text)))

    def _take_turn(self, user: UserTurn) -> None:
        if user.requested and not user.text:
            self._agent_turns.resume("no_words", "")
        if self._start.turn.answer:
            self._agent_turns.answer(user)
            return
        if user.text:
            if user.requested:
                self._agent_turns.interrupt("input")
            try:
                self._agent_turns.note(protocol.Remember(role="user", text=user.text))
            except OverloadedError as error:
                self.on_error(error)
        self._settle()

    def _input(self, text: str) -> None:
        """The user has typed something."""
        self._user_idle.user_active()
        self._agent_turns.interrupt("input")
        now = _now()
        # What was said before belongs to it, if the user does not speak just now.
        self._take_turn(UserTurn(f"{self._written(self._endpointer.take())} {text}".strip(), now, now))

    def on_error(self, error: ParleyError) -> None:
        """Tell the client that something went wrong."""
        self._emit(protocol.ErrorEvent.of(error))

    def on_recognizer_unavailable(self) -> None:
        """Nothing is heard for now, and the user should know."""
        if self._config.deaf_apology:
            with suppress(OverloadedError):  # then the agent speaks anyway
                self._agent_turns.say(protocol.Say(text=self._config.deaf_apology, remember=False))

    # --- what the agent says --------------------------------------------------------------

    def _think(self, prompt: SystemPrompt) -> LlmResponse:
        return LlmResponse(
            self._engines.chat,
            prompt,
            desk=self._tools,
            fillers=self._fillers,
            sampling=self._sampling,
            config=self._config,
        )

    def _prompt(self, text: str, first: bool) -> None:
        # Of a long silence the language model need not know every word.
        self._agent_turns.say(protocol.Say(text=text, remember=first))

    def on_turn_started(self) -> None:
        """The agent is about to answer."""
        self._user_idle.agent_active()
        self._enter("processing")

    def on_interrupted(self) -> None:
        """The agent was made to stop."""
        self._interruptions.release()
        self._enter("listening")

    def on_turn_ended(self) -> None:
        """The agent has said what it had to say in this turn, or has failed to."""
        self._interruptions.on_turn_ended()

    def on_agent_silent(self) -> None:
        """The agent has nothing more to say."""
        self._enter("listening")
        self._settle()
        if self._config.summaries:
            self._summariser.note_change()

    def on_task_failed(self, what: str) -> None:
        """An error that nobody expected: the log gets all of it, the client its existence."""
        _log.exception("%s: the %s failed", self._name, what)
        self.on_error(ParleyError(f"the {what} failed unexpectedly"))

    # --- telling the client ---------------------------------------------------------------

    def _emit_turn(self, event: protocol.ServerEvent, audio: NDArray[np.int16] | None) -> None:
        if isinstance(event, protocol.Audio) and audio is not None:
            self._user_idle.agent_active()
            self._enter("speaking")
            self._interruptions.spoke(audio, event.sample_rate)
        self._emit(event, audio)

    def _enter(self, state: State) -> None:
        if state != self._state:
            self._state = state
            self._emit(protocol.AgentState(state=state))


def _by_speech(start: protocol.Start) -> bool:
    """Whether the user's speech stops the agent."""
    return start.barge_in.enabled and start.turn.detection == "auto"


def _speaker(start: protocol.Start, language: str, engines: Engines) -> Speaker:
    return Speaker(
        voice=start.voice,
        language=start.language if start.language in engines.synthesizer.languages else language,
        sample_rate=start.output_sample_rate,
        exaggeration=start.exaggeration,
        guidance_weight=start.guidance_weight,
    )


def _now() -> float:
    return asyncio.get_running_loop().time()
