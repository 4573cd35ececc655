"""One conversation, from START to ``closed``."""

from __future__ import annotations

import asyncio
import logging
from typing import Literal, TypeAlias
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from parley import protocol
from parley.agent.config import AgentConfig
from parley.agent.engines import Engines
from parley.agent.generation import warm_up
from parley.agent.listener import Listener
from parley.agent.outlet import Outlet, Reason
from parley.agent.tools import ToolDesk
from parley.agent.turn import Turn, TurnContext
from parley.agent.turn_end import TurnEnd, UserTurn
from parley.agent.validation import primary_language
from parley.agent.voice import Speaker, check_voice
from parley.asr.messages import AsrOptions
from parley.audio.buffer import AudioPiece
from parley.audio.pcm import decode_pcm16
from parley.errors import InvalidMessageError, ParleyError, SessionIdleError, ShuttingDownError
from parley.llm.history import History
from parley.turns.settings import choose_settings

State: TypeAlias = Literal["listening", "processing", "speaking"]

_WATCH_S = 0.2
_ID_BYTES = 48
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
        self._outlet = outlet
        self._config = config
        # Clients may use an id again, and the engines must not mix up old and new requests. An id may be as
        # long as Triton allows, and must leave room for what is added to it.
        name = f"{session_id.encode()[:_ID_BYTES].decode(errors='ignore')}-{uuid4().hex}"
        language = primary_language(start.language)
        prompt = config.system_prompt if start.system_prompt is None else start.system_prompt
        self._history = History(prompt, config.prompt_tokens, start.tools)
        self._desk = ToolDesk({tool.name for tool in start.tools}, self._emit, config)
        options = AsrOptions(
            vad=start.vad, language=language, phrases=start.phrases, phrase_weight=start.phrase_weight
        )
        self._listener = Listener(engines.recognizer, name, options, self, config)
        self._turn_end = TurnEnd(
            choose_settings(start.turn, config.eagerness),
            language,
            engines.turn,
            deadline_s=config.deadlines.turn_s,
            name=name,
            emit=self._emit,
            commit=self._user_finished,
        )
        known = engines.synthesizer.languages
        self._context = TurnContext(
            session=name,
            engines=engines,
            history=self._history,
            tools=start.tools,
            desk=self._desk,
            speaker=Speaker(
                voice=start.voice,
                language=start.language if start.language in known else language,
                sample_rate=start.output_sample_rate,
                exaggeration=start.exaggeration,
                guidance_weight=start.guidance_weight,
            ),
            config=config,
            emit=self._emit_turn,
        )
        self._end: asyncio.Future[Reason] = asyncio.get_running_loop().create_future()
        self._opened = asyncio.Event()
        self._closed = False
        self._state: State | None = None
        self._turns = 0
        self._turn: Turn | None = None
        self._turn_task: asyncio.Task[None] | None = None
        self._turn_tasks: set[asyncio.Task[None]] = set()
        self._unanswered = False
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
            # Marks of a response that is over by now are late, not wrong.
            if self._turn is not None and self._turn.response_id == message.response_id:
                self._turn.playout.mark(message.played_ms, _now())
        elif isinstance(message, protocol.Control):
            if message.action == "mute":
                self._listener.mute()
            elif message.action == "unmute":
                self._listener.unmute()
            else:
                self.end("hangup")
        elif isinstance(message, protocol.Start):
            raise InvalidMessageError("the session has started already")

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
                await check_voice(self._context.engines.synthesizer, self._start.voice, limit_s)
            await self._listener.open()
            self._emit(
                protocol.Connected(
                    session_id=self.session_id, output_sample_rate=self._start.output_sample_rate
                )
            )
            self._enter("listening")
            self._opened.set()
            await self._listener.run()
        except ParleyError as error:
            self.failed(error)
        except Exception:  # noqa: BLE001 - logged and told to the client
            self._broken("listener")
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
            self._broken("watch")

    async def _warm_up(self) -> None:
        context = self._context
        try:
            await warm_up(
                context.engines.chat,
                context.session,
                context.history.messages(),
                context.tools,
                context.config.deadlines,
            )
        except Exception:  # noqa: BLE001 - logged and told to the client
            self._broken("warm-up")

    async def _close(self, reason: Reason, tasks: list[asyncio.Task[None]]) -> None:
        turn, self._turn = self._turn, None
        if turn is not None and self._turn_task is not None:
            turn.stop()
            self._turn_task.cancel()
        try:
            self._say_goodbye(reason)
        except Exception:  # noqa: BLE001 - logged; the clean-up below matters more
            _log.exception("%s: the client could not be told that the session is over", self.session_id)
        for task in tasks:
            task.cancel()
        waiting = {*tasks, *self._turn_tasks, *self._turn_end.close()}
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
        """Something that may be speech."""

    def sound_lost(self) -> None:
        """It was none."""

    def speech_started(self, event: protocol.SpeechStarted) -> None:
        """The user speaks: the agent falls silent and listens."""
        self._emit(event)
        self._interrupt()
        self._enter("listening")
        self._turn_end.began(event)

    def speech_stopped(self, event: protocol.SpeechStopped, detected_at: float) -> None:
        """The user is silent; the final transcript follows."""
        self._emit(event)
        self._turn_end.paused(event, detected_at)

    def listened(self, piece: AudioPiece) -> None:
        """The recogniser has heard this."""
        self._turn_end.hear(piece)

    def transcribed(self, event: protocol.Transcript) -> None:
        """A final text may be the end of the user's turn."""
        self._emit(event)
        if event.is_final:
            self._turn_end.heard(event)

    def _user_finished(self, user: UserTurn) -> None:
        """It is the agent's turn to answer."""
        if user.text:
            self._interrupt()
            self._history.add_user(user.text)
        elif self._turn is not None or not self._unanswered:
            # Noise, and nobody is waiting for an answer.
            return
        self._answer(user)

    def failed(self, error: ParleyError) -> None:
        """Tell the client that something went wrong."""
        self._emit(protocol.ErrorEvent.of(error))

    # --- the agent's turns ----------------------------------------------------------------

    def _answer(self, user: UserTurn) -> None:
        self._turns += 1
        self._unanswered = False
        self._enter("processing")
        self._turn = Turn(self._turns, self._context, user.heard_at, user.detected_at, user.decided_at)
        self._turn_task = asyncio.create_task(self._take(self._turn), name=self._turn.response_id)
        self._turn_tasks.add(self._turn_task)
        self._turn_task.add_done_callback(self._turn_tasks.discard)

    async def _take(self, turn: Turn) -> None:
        complete = False
        try:
            await turn.run()
            complete = True
        except Exception:  # noqa: BLE001 - logged and told to the client
            self._broken("turn")
        if self._turn is turn:
            self._turn = None
            self._history.extend(turn.memory(None if complete else turn.stop()))
            self._emit(turn.metrics(interrupted=False))
            self._enter("listening")

    def _interrupt(self) -> None:
        """Stop the turn under way; only what the user has heard of it was said."""
        turn, self._turn = self._turn, None
        if turn is None or self._turn_task is None:
            return
        heard = turn.stop()
        self._turn_task.cancel()
        self._history.extend(turn.memory(heard))
        self._unanswered = not heard.text and not turn.acted
        self._emit(
            protocol.Interrupted(
                turn=turn.number,
                response_id=turn.response_id,
                played_ms=heard.played_ms,
                spoken_text=heard.text,
            )
        )
        self._emit(turn.metrics(interrupted=True))

    # --- telling the client ---------------------------------------------------------------

    def _emit_turn(self, event: protocol.ServerEvent, audio: NDArray[np.int16] | None) -> None:
        if audio is not None:
            self._enter("speaking")
        self._emit(event, audio)

    def _emit(self, event: protocol.ServerEvent, audio: NDArray[np.int16] | None = None) -> None:
        if isinstance(event, protocol.ErrorEvent) and event.code == ShuttingDownError.code:
            # Whichever call the stopping server refuses first: nothing has failed, the session is over.
            self.end("shutdown")
        elif not self._closed:
            self._outlet.send(event, audio)

    def _enter(self, state: State) -> None:
        if state != self._state:
            self._state = state
            self._emit(protocol.AgentState(state=state))

    def _broken(self, what: str) -> None:
        """An error that nobody expected: the log gets all of it, the client its existence."""
        _log.exception("%s: %s failed", self.session_id, what)
        self.failed(ParleyError(f"the {what} failed unexpectedly"))


def _now() -> float:
    return asyncio.get_running_loop().time()
