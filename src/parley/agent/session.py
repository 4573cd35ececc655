"""One conversation, from START to ``closed``."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from uuid import uuid4

import msgspec
import numpy as np
from numpy.typing import NDArray

from parley import protocol
from parley.agent.config import AgentConfig
from parley.agent.conversation import Conversation
from parley.agent.ports import Engines, Outlet, Reason
from parley.agent.recognizer_feed import RecognizerFeed
from parley.agent.speech import UnreadAudio, check_voice
from parley.agent.validation import check_start, describe
from parley.asr.messages import AsrOptions
from parley.audio.pcm import decode_pcm16
from parley.errors import (
    InvalidMessageError,
    OverloadedError,
    ParleyError,
    SessionIdleError,
    ShuttingDownError,
)
from parley.protocol import Start, Update
from parley.tts.voice_routing import primary_language
from parley.turns.settings import choose_settings
from parley.vad.segmenter import DEFAULT_SILENCE_MS

_WATCH_S = 0.2
_SAID = protocol.Transcript | protocol.ResponseText | protocol.Interrupted
"""Events that say what was said."""
_ID_BYTES = 48
_ONSET_THRESHOLD = 0.15
"""For the agent to pause; it heard no onset in noise, clicks, coughs and breaths where 0.5 heard none."""
_JUDGED_SILENCE_MS = 160
"""An utterance ends early where its end is not yet that of the turn: an answer can be begun the sooner."""
_MANUAL_SILENCE_MS = 800
"""Nobody waits for the end of an utterance, and the longer it is, the better it is understood."""
_JOINED_MS = 20_000
"""The pieces of a turn are read together, as long as they are no longer than this."""
_log = logging.getLogger(__name__)


class Session:
    """Owns everything of a conversation: the ears, what is said, and all their tasks.

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
        name = f"{session_id.encode()[:_ID_BYTES].decode(errors='ignore')}-{uuid4().hex}"
        self._conversation = Conversation(
            name,
            start,
            engines,
            config,
            emit=self._emit,
            hang_up=lambda: self.end("silence"),
            turn_over=self._turn_over,
        )
        options = _asr_options(start, config)
        self._feed = RecognizerFeed(engines.recognizer, name, options, self._conversation, config)
        self._changes = Changes(start, engines, config, apply=self._change, refuse=self.failed)
        self._end: asyncio.Future[Reason] = asyncio.get_running_loop().create_future()
        self._opened = asyncio.Event()
        self._warmings: set[asyncio.Task[None]] = set()
        self._closed = False
        self._idle_s = 0.0
        self._idle_counted_at = _now()
        self._unread = UnreadAudio(config.deadlines.unread_s)

    @property
    def closed(self) -> bool:
        """Whether the client has been told that the session is over."""
        return self._closed

    # --- what the client says -------------------------------------------------------------

    def hear(self, raw: bytes) -> None:
        """Take a chunk of audio: mono PCM16 at 16 kHz."""
        self._note_request()
        try:
            self._feed.hear(decode_pcm16(raw))
        except ParleyError as error:
            self.failed(error)

    def _note_request(self) -> None:
        """Any request is a sign of the client."""
        self._idle_s, self._idle_counted_at = 0.0, _now()
        self._unread.on_request()

    def receive(self, raw: bytes) -> None:
        """Take a message."""
        self._note_request()
        try:
            self._obey(raw)
        except ParleyError as error:
            self.failed(error)
        except Exception:  # noqa: BLE001 - logged and told to the client
            self._conversation.on_task_failed("message")

    def end(self, reason: Reason) -> None:
        """End the session; the first reason counts."""
        if not self._end.done():
            self._end.set_result(reason)

    def failed(self, error: ParleyError) -> None:
        """Tell the client that something went wrong."""
        self._conversation.on_error(error)

    def _obey(self, raw: bytes) -> None:
        message = protocol.decode_message(raw)
        if isinstance(message, protocol.Start):
            raise InvalidMessageError("the session has started already")
        if isinstance(message, protocol.Playback):
            self._unread.on_playback()
        match message:
            case protocol.Update():
                self._changes.ask(message)
            case protocol.Commit():
                self._feed.finish(before=self._conversation.claim_turn, after=self._conversation.end_turn)
            case protocol.Discard():
                self._feed.finish(before=self._conversation.drop_turn, after=self._conversation.turn_dropped)
            case protocol.Control(action="mute"):
                self._feed.mute()
            case protocol.Control(action="unmute"):
                self._feed.unmute()
            case protocol.Control():
                self.end("hangup")
            case _:
                self._conversation.receive(message)

    def _change(self, start: protocol.Start) -> None:
        reread = self._conversation.change(start)
        self._feed.change(_asr_options(start, self._config))
        self._emit(protocol.Updated())
        if reread:
            self._warm_up()

    def _turn_over(self) -> None:
        self._feed.turn_over()

    # --- life -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Live until :meth:`end` is called, the client goes away, or nothing works any more."""
        name = self.session_id
        tasks = [
            asyncio.create_task(self._listen(), name=f"{name} listener"),
            asyncio.create_task(self._watch(), name=f"{name} watch"),
        ]
        self._warm_up()
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
            limit_s = self._config.deadlines.voice_s
            await check_voice(self._engines.synthesizer, self._start.voice, self._start.language, limit_s)
            await self._feed.open()
            self._emit(
                protocol.Connected(
                    session_id=self.session_id,
                    output_sample_rate=self._start.output_sample_rate,
                    greets=self._conversation.greets,
                    agent=describe(self._engines, self._config) if self._start.describe else None,
                )
            )
            self._conversation.open()
            self._opened.set()
            await self._feed.run()
        except ParleyError as error:
            self.failed(error)
        except Exception:  # noqa: BLE001 - logged and told to the client
            self._conversation.on_task_failed("listener")
        finally:
            self._opened.set()
            self.end("failed")

    async def _watch(self) -> None:
        """Notice a client that has gone away or fallen silent.

        While the agent thinks or speaks a client need not send anything: the time is not counted. It is not
        forgotten either, or an agent that prompts a silent user would keep the session for ever.
        """
        limit = self._config.deadlines.idle_s
        try:
            while not self._end.done():
                await asyncio.sleep(_WATCH_S)
                since, self._idle_counted_at = self._idle_counted_at, _now()
                if not self._conversation.agent_active:
                    self._idle_s += self._idle_counted_at - since
                if self._outlet.cancelled:
                    self.end("disconnected")
                elif self._idle_s > limit:
                    self.failed(SessionIdleError(f"neither audio nor messages for {limit:g} s"))
                    self.end("idle")
                elif self._unread.exceeded:
                    limit_s = self._config.deadlines.unread_s
                    self.failed(
                        SessionIdleError(f"{limit_s:g} s of audio were sent and no playback was reported")
                    )
                    self.end("idle")
        except Exception:  # noqa: BLE001 - logged and told to the client
            self.end("failed")  # nobody else would ever end it
            self._conversation.on_task_failed("watch")

    def _warm_up(self) -> None:
        """Let the language model read the new prompt, and not the one before if it has not yet done so."""
        for task in self._warmings:
            task.cancel()
        task = asyncio.create_task(self._read_prompt(), name=f"{self.session_id} warm-up")
        self._warmings.add(task)
        task.add_done_callback(self._warmings.discard)

    async def _read_prompt(self) -> None:
        try:
            await self._conversation.warm_up()
        except Exception:  # noqa: BLE001 - logged and told to the client
            self._conversation.on_task_failed("warm-up")

    async def _close(self, reason: Reason, tasks: list[asyncio.Task[None]]) -> None:
        ending = {*self._conversation.close(), *self._changes.close()}
        tasks = [*tasks, *self._warmings]
        try:
            self._say_goodbye(reason)
        except Exception:  # noqa: BLE001 - logged; the clean-up below matters more
            _log.exception("%s: the client could not be told that the session is over", self.session_id)
        for task in tasks:
            task.cancel()
        _, late = await asyncio.wait({*tasks, *ending}, timeout=self._config.deadlines.close_s)
        for task in late:
            _log.error("%s: task %s did not end", self.session_id, task.get_name())
        await self._feed.close()

    def _say_goodbye(self, reason: Reason) -> None:
        self._closed = True
        try:
            self._outlet.finish(protocol.Closed(reason=reason))
        except Exception:
            self._outlet.finish()
            raise

    def _emit(self, event: protocol.ServerEvent, audio: NDArray[np.int16] | None = None) -> None:
        if isinstance(event, protocol.ErrorEvent) and event.code == ShuttingDownError.code:
            # Whichever call the stopping server refuses first: nothing has failed, the session is over.
            self.end("shutdown")
        elif not self._closed:
            if self._config.log_transcripts and isinstance(event, _SAID):
                _log.info("%s: %s", self.session_id, event)
            if isinstance(event, protocol.Audio):
                self._unread.sent(event.samples / event.sample_rate)
            self._outlet.send(event, audio)


def _asr_options(start: protocol.Start, config: AgentConfig) -> AsrOptions:
    vad = start.vad
    if vad.onset_threshold is None:
        vad = msgspec.structs.replace(vad, onset_threshold=min(_ONSET_THRESHOLD, vad.threshold))
    if vad.silence_ms is None:
        settings = choose_settings(start.turn, config.eagerness)
        silence_ms = _JUDGED_SILENCE_MS if settings else DEFAULT_SILENCE_MS
        if settings and settings.manual:
            silence_ms = _MANUAL_SILENCE_MS
        vad = msgspec.structs.replace(vad, silence_ms=silence_ms)
    return AsrOptions(
        vad=vad,
        language=primary_language(start.language),
        phrases=start.phrases,
        phrase_weight=start.phrase_weight,
        nbest=start.alternatives,
        join_ms=_JOINED_MS,
    )


def _now() -> float:
    return asyncio.get_running_loop().time()


_MAX_WAITING = 16


class Changes:
    """Checks what the client wants to be otherwise, and keeps the order.

    Nearly all can be checked and done at once. Only of a new voice, where voices come and go, somebody else
    has to be asked; what is asked for meanwhile waits.

    Args:
        start: what the session began with.
        engines: that it runs on.
        config: limits and deadlines.
        apply: takes what the session is like from now on.
        refuse: is told what was wrong with a change that had to wait.
    """

    def __init__(
        self,
        start: Start,
        engines: Engines,
        config: AgentConfig,
        *,
        apply: Callable[[Start], None],
        refuse: Callable[[ParleyError], None],
    ) -> None:
        self._start = start
        self._engines = engines
        self._config = config
        self._apply = apply
        self._refuse = refuse
        self._waiting: deque[Update] = deque()
        self._task: asyncio.Task[None] | None = None

    def ask(self, update: Update) -> None:
        """Change the session, at once or as soon as that is possible.

        Raises:
            OverloadedError: too many changes are waiting.
            InvalidInputError: of the kind that says what is wrong.
        """
        if self._task is None:
            start = self._checked(update)
            if not self._asks_for(start):
                self._do(start)
                return
        if len(self._waiting) >= _MAX_WAITING:
            raise OverloadedError(f"{_MAX_WAITING} changes are waiting")
        self._waiting.append(update)
        if self._task is None:
            self._task = asyncio.create_task(self._work(), name="changes of a session")

    def close(self) -> set[asyncio.Task[None]]:
        """Change nothing more; returns what is still ending."""
        self._waiting.clear()
        if self._task is None:
            return set()
        self._task.cancel()
        return {self._task}

    async def _work(self) -> None:
        try:
            while self._waiting:
                await self._try(self._waiting.popleft())
        finally:
            self._task = None

    async def _try(self, update: Update) -> None:
        try:
            start = self._checked(update)
            if self._asks_for(start):
                limit_s = self._config.deadlines.voice_s
                await check_voice(self._engines.synthesizer, start.voice, start.language, limit_s)
            self._do(start)
        except ParleyError as error:
            self._refuse(error)
        except Exception:  # noqa: BLE001 - logged and told to the client; the next change is another one
            _log.exception("a change of a session failed")
            self._refuse(ParleyError("the change failed unexpectedly"))

    def _checked(self, update: Update) -> Start:
        given = {
            name: value
            for name, value in msgspec.structs.asdict(update).items()
            if value is not msgspec.UNSET
        }
        start = msgspec.structs.replace(self._start, **given)
        check_start(start, self._engines.synthesizer, self._config, self._engines.server_tools)
        return start

    def _asks_for(self, start: Start) -> bool:
        """Whether somebody has to be asked for the voice."""
        new = start.voice != self._start.voice
        return new and not self._engines.synthesizer.check_known(start.voice, start.language)

    def _do(self, start: Start) -> None:
        self._start = start
        self._apply(start)
