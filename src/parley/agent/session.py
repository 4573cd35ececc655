"""One conversation, from START to ``closed``."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from contextlib import suppress
from typing import Literal, TypeAlias
from uuid import uuid4

import msgspec
import numpy as np
from numpy.typing import NDArray

from parley import protocol
from parley.agent.answers import Answers
from parley.agent.config import AgentConfig
from parley.agent.dialpad import Dialpad
from parley.agent.engines import Engines
from parley.agent.generation import warm_up
from parley.agent.interruptions import Interruptions
from parley.agent.listener import Listener
from parley.agent.outlet import Outlet, Reason
from parley.agent.prompt import Prompt
from parley.agent.silence import SilenceWatch, choose_silence
from parley.agent.thinking import Answer
from parley.agent.tools import ToolDesk
from parley.agent.turn import Stage
from parley.agent.turn_end import TurnEnd, UserTurn
from parley.agent.validation import check_spoken, primary_language
from parley.agent.voice import Speaker, check_voice
from parley.asr.messages import AsrOptions
from parley.asr.written.forms import written_form
from parley.audio.buffer import AudioPiece
from parley.audio.pcm import decode_pcm16
from parley.errors import (
    InvalidMessageError,
    OverloadedError,
    ParleyError,
    SessionIdleError,
    ShuttingDownError,
)
from parley.llm.history import History
from parley.llm.sampling import choose_sampling
from parley.turns.settings import choose_settings
from parley.vad.segmenter import DEFAULT_SILENCE_MS

State: TypeAlias = Literal["listening", "processing", "speaking"]

_WATCH_S = 0.2
_SAID = protocol.Transcript | protocol.ResponseText | protocol.Interrupted
"""Events that say what was said."""
_ID_BYTES = 48
_KEY_PAUSE_S = 2.0
_JUDGED_SILENCE_MS = 200
"""An utterance ends early where its end is not yet that of the turn: an answer can be begun the sooner."""
_log = logging.getLogger(__name__)


class Session:
    """Owns everything of a conversation: ears, memory, the turn under way, and all their tasks.

    The client's audio and messages are handed in by :meth:`hear` and :meth:`receive`, which never
    wait; :meth:`run` is the session's life. Everything runs on one event loop. Exactly one
    ``closed`` is sent, and nothing after it.

    Args:
        session_id: as the client knows it.
        start: what the client asked for, checked by :func:`parley.agent.validation.check_start`.
        engines: to hear, think and speak with.
        outlet: the way to the client.
        config: limits and deadlines.
    """

    def __init__(
        self, session_id: str, start: protocol.Start, engines: Engines, outlet: Outlet, config: AgentConfig
    ) -> None:
        self.session_id = session_id
        self._start = start
        self._engines = engines
        self._outlet = outlet
        self._config = config
        # Clients may use an id again, and the engines must not mix up old and new requests. An id may be as
        # long as Triton allows, and must leave room for what is added to it.
        self._name = name = f"{session_id.encode()[:_ID_BYTES].decode(errors='ignore')}-{uuid4().hex}"
        language = primary_language(start.language)
        prompt = config.system_prompt if start.system_prompt is None else start.system_prompt
        # What there is now: the tools of a session do not change, and with them the prompt's beginning.
        self._tools = [*start.tools, *(engines.server_tools.tools if engines.server_tools else ())]
        self._history = History(prompt, config.prompt_tokens, self._tools)
        self._desk = ToolDesk(start.tools, self._emit, config, engines.server_tools)
        self._fillers = config.fillers.get(language, ())
        self._sampling = choose_sampling(start.sampling, config.sampling)
        turn_settings = choose_settings(start.turn, config.eagerness)
        self._listener = Listener(
            engines.recognizer,
            name,
            _asr_options(start, language, judged=turn_settings is not None),
            self,
            config,
        )
        self._answers = Answers(
            name,
            Stage(engines.synthesizer, _speaker(start, language, engines), config, self._emit_turn),
            self._history,
            desk=self._desk,
            think=self._think,
            handler=self,
            counted=engines.speculated,
        )
        self._turn_end = TurnEnd(
            turn_settings,
            language,
            engines.turn,
            deadline_s=config.deadlines.turn_s,
            name=name,
            emit=self._emit,
            prepare=self._prepare,
            discard=self._answers.discard,
            commit=self._user_finished,
        )
        self._interruptions = Interruptions(start.barge_in, language, self._answers, self._turn_end)
        self._dialpad = Dialpad(_KEY_PAUSE_S, self._input)
        silence = choose_silence(start.silence, config.silence)
        self._silence = SilenceWatch(silence, self._prompt, lambda: self.end("silence"))
        self._written = written_form(language) if config.written_forms else str
        self._end: asyncio.Future[Reason] = asyncio.get_running_loop().create_future()
        self._opened = asyncio.Event()
        self._closed = False
        self._state: State | None = None
        self._last_input = _now()

    @property
    def closed(self) -> bool:
        """Whether the client has been told that the session is over."""
        return self._closed

    # --- what the client says -------------------------------------------------------------

    def hear(self, raw: bytes) -> None:
        """Take a chunk of audio: mono PCM16 at 16 kHz."""
        self._last_input = _now()
        try:
            self._listener.hear(decode_pcm16(raw))
        except ParleyError as error:
            self.failed(error)

    def receive(self, raw: bytes) -> None:
        """Take a message."""
        self._last_input = _now()
        try:
            self._obey(raw)
        except ParleyError as error:
            self.failed(error)

    def end(self, reason: Reason) -> None:
        """End the session; the first reason counts."""
        if not self._end.done():
            self._end.set_result(reason)

    def _obey(self, raw: bytes) -> None:
        message = protocol.decode_message(raw)
        if isinstance(message, protocol.ToolResponse):
            self._desk.resolve(message)
        elif isinstance(message, protocol.Playback):
            self._answers.played(message.response_id, message.played_ms)
        elif isinstance(message, protocol.Text):
            check_spoken(message.text, "text.text")
            self._input(message.text.strip())
        elif isinstance(message, protocol.Dtmf):
            self._dialpad.press(message.digits)
            self._silence.user_active()
        elif isinstance(message, protocol.Say):
            check_spoken(message.text, "say.text")
            self._answers.say(message)
        elif isinstance(message, protocol.Control):
            self._control(message)
        else:
            raise InvalidMessageError("the session has started already")

    def _control(self, message: protocol.Control) -> None:
        if message.action == "mute":
            self._listener.mute()
        elif message.action == "unmute":
            self._listener.unmute()
        else:
            self.end("hangup")

    # --- life -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Live until :meth:`end` is called, the client goes away, or nothing works any more."""
        name = self.session_id
        tasks = [
            asyncio.create_task(self._listen(), name=f"{name} listener"),
            asyncio.create_task(self._watch(), name=f"{name} watch"),
            asyncio.create_task(self._warm_up(), name=f"{name} warm-up"),
        ]
        reason: Reason = "shutdown"
        try:
            reason = await self._end
            if reason in ("ended", "hangup"):
                # A client that says all it has to say at once still gets its `connected`.
                await self._opened.wait()
        finally:
            await self._close(reason, tasks)

    async def _listen(self) -> None:
        try:
            if self._start.voice is not None:
                limit_s = self._config.deadlines.voice_s
                await check_voice(self._engines.synthesizer, self._start.voice, limit_s)
            await self._listener.open()
            self._emit(
                protocol.Connected(
                    session_id=self.session_id, output_sample_rate=self._start.output_sample_rate
                )
            )
            self._enter("listening")
            self._opened.set()
            self._greet()
            await self._listener.run()
        except ParleyError as error:
            self.failed(error)
        except Exception:  # noqa: BLE001 - logged and told to the client
            self.broken("listener")
        finally:
            self._opened.set()
            self.end("failed")

    async def _watch(self) -> None:
        """Notice a client that has gone away or fallen silent."""
        limit = self._config.deadlines.idle_s
        try:
            while not self._end.done():
                await asyncio.sleep(_WATCH_S)
                if self._outlet.cancelled:
                    self.end("disconnected")
                elif _now() - self._last_input > limit:
                    self.failed(SessionIdleError(f"neither audio nor messages for {limit:g} s"))
                    self.end("idle")
        except Exception:  # noqa: BLE001 - logged and told to the client
            self.end("failed")  # nobody else would ever end it
            self.broken("watch")

    async def _warm_up(self) -> None:
        try:
            await warm_up(
                self._engines.chat,
                self._name,
                self._history.messages(),
                self._tools,
                self._config.deadlines,
            )
        except Exception:  # noqa: BLE001 - logged and told to the client
            self.broken("warm-up")

    async def _close(self, reason: Reason, tasks: list[asyncio.Task[None]]) -> None:
        self._interruptions.close()
        self._dialpad.close()
        self._silence.close()
        answers = self._answers.close()
        try:
            self._say_goodbye(reason)
        except Exception:  # noqa: BLE001 - logged; the clean-up below matters more
            _log.exception("%s: the client could not be told that the session is over", self.session_id)
        for task in tasks:
            task.cancel()
        waiting = {*tasks, *answers, *self._turn_end.close()}
        _, late = await asyncio.wait(waiting, timeout=self._config.deadlines.close_s)
        for task in late:
            _log.error("%s: task %s did not end", self.session_id, task.get_name())
        await self._listener.close()

    def _say_goodbye(self, reason: Reason) -> None:
        try:
            self._emit(protocol.Closed(reason=reason))
        finally:
            self._closed = True
            self._outlet.finish()

    # --- what the user says ---------------------------------------------------------------

    def sound_began(self, at_ms: int) -> None:
        """The user may be beginning to speak: the agent falls silent and listens."""
        self._turn_end.sound_began()
        self._interruptions.sound_began(at_ms)

    def sound_lost(self) -> None:
        """It was no speech."""
        self._interruptions.sound_lost()
        self._turn_end.sound_lost()

    def speech_started(self, event: protocol.SpeechStarted) -> None:
        """The user speaks."""
        self._emit(event)
        self._silence.user_active()
        self._interruptions.speech_started(event)

    def speech_stopped(self, event: protocol.SpeechStopped, detected_at: float) -> None:
        """The user is silent; the final transcript follows."""
        self._emit(event)
        self._interruptions.speech_stopped(event, detected_at)

    def listened(self, piece: AudioPiece) -> None:
        """The recogniser has heard this."""
        self._turn_end.hear(piece)

    def transcribed(self, event: protocol.Transcript) -> None:
        """A final text may be the end of the user's turn."""
        self._emit(event)
        self._interruptions.transcribed(event)
        if event.is_final and self._answers.current is None:
            self._silence.quiet()

    def _prepare(self, text: str) -> None:
        self._answers.prepare(self._written(text))

    def _user_finished(self, user: UserTurn) -> None:
        """It is the agent's turn to answer."""
        self._answers.answer(dataclasses.replace(user, text=self._written(user.text)))

    def _input(self, text: str) -> None:
        """The user has typed something."""
        self._silence.user_active()
        self._answers.interrupt("input")
        now = _now()
        self._answers.answer(UserTurn(text, now, now))

    def failed(self, error: ParleyError) -> None:
        """Tell the client that something went wrong."""
        self._emit(protocol.ErrorEvent.of(error))

    def deaf(self) -> None:
        """Nothing is heard for now, and the user should know."""
        if self._config.deaf_apology:
            with suppress(OverloadedError):  # then the agent speaks anyway
                self._answers.say(protocol.Say(text=self._config.deaf_apology, remember=False))

    # --- what the agent says --------------------------------------------------------------

    def _think(self, prompt: Prompt) -> Answer:
        return Answer(
            self._engines.chat,
            prompt,
            tools=self._tools,
            desk=self._desk,
            fillers=self._fillers,
            sampling=self._sampling,
            config=self._config,
        )

    def _greet(self) -> None:
        greeting = self._config.greeting if self._start.greeting is None else self._start.greeting
        if greeting.strip():
            self._answers.say(protocol.Say(text=greeting))
        else:
            self._silence.quiet()

    def _prompt(self, text: str) -> None:
        self._answers.say(protocol.Say(text=text))

    def answering(self) -> None:
        """The agent is about to answer."""
        self._silence.agent_active()
        self._enter("processing")

    def interrupted(self) -> None:
        """The agent was made to stop."""
        self._enter("listening")

    def silent(self) -> None:
        """The agent has nothing more to say."""
        self._enter("listening")
        self._silence.quiet()

    def broken(self, what: str) -> None:
        """An error that nobody expected: the log gets all of it, the client its existence."""
        _log.exception("%s: %s failed", self.session_id, what)
        self.failed(ParleyError(f"the {what} failed unexpectedly"))

    # --- telling the client ---------------------------------------------------------------

    def _emit_turn(self, event: protocol.ServerEvent, audio: NDArray[np.int16] | None) -> None:
        if audio is not None:
            self._silence.agent_active()
            self._enter("speaking")
        self._emit(event, audio)

    def _emit(self, event: protocol.ServerEvent, audio: NDArray[np.int16] | None = None) -> None:
        if isinstance(event, protocol.ErrorEvent) and event.code == ShuttingDownError.code:
            # Whichever call the stopping server refuses first: nothing has failed, the session is over.
            self.end("shutdown")
        elif not self._closed:
            if self._config.log_transcripts and isinstance(event, _SAID):
                _log.info("%s: %s", self.session_id, event)
            self._outlet.send(event, audio)

    def _enter(self, state: State) -> None:
        if state != self._state:
            self._state = state
            self._emit(protocol.AgentState(state=state))


def _asr_options(start: protocol.Start, language: str, *, judged: bool) -> AsrOptions:
    vad = start.vad
    if vad.silence_ms is None:
        vad = msgspec.structs.replace(vad, silence_ms=_JUDGED_SILENCE_MS if judged else DEFAULT_SILENCE_MS)
    return AsrOptions(
        vad=vad,
        language=language,
        phrases=start.phrases,
        phrase_weight=start.phrase_weight,
        nbest=start.alternatives,
    )


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
