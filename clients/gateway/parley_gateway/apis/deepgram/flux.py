"""``/v2/listen``: transcripts of the speaker's turns, which end as in a conversation with the agent."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.websockets import WebSocket

from parley import protocol
from parley.errors import InvalidMessageError, OverloadedError, ParleyError
from parley.logs import current_ids
from parley.turns.endpointing import PREPARED_MS, join
from parley_client.call import Call
from parley_client.errors import CallLostError
from parley_client.events import CallEvent, add_transcript
from parley_gateway.apis.deepgram import messages
from parley_gateway.apis.deepgram.query import FluxOptions, read_query
from parley_gateway.apis.deepgram.stream_audio import StreamAudio
from parley_gateway.apis.realtime.agent_commands import AgentCommands
from parley_gateway.apis.realtime.session import run_with_helpers
from parley_gateway.audio.codecs import AudioFormat
from parley_gateway.bodies import read_json
from parley_gateway.gateway import Gateway
from parley_gateway.websocket import GOING_AWAY, Close, IdleLimit, WebSocketSession, accept, refuse

_DONE = Close(1000, "")
_UNSCORED = 0.5
"""Confidence in the end of a turn that has no score."""
_FINISHED = ("", "phrase", "question")
"""Cues that leave the end of a turn to its sound, or are an end."""


async def serve_flux(websocket: WebSocket, gateway: Gateway) -> None:
    """Transcribe the turns of one stream over one WebSocket."""
    session = None
    try:
        principal = await gateway.guard.admit(websocket, "transcribe")
        options = read_query(websocket.query_params, FluxOptions)
        form = options.form
        async with gateway.calls.open(options.start, principal=principal, api="deepgram") as call:
            await accept(websocket, "token")
            session = _FluxSession(websocket, call, gateway, options, form, owner=principal.owner)
            await session.run()
    except ParleyError as error:
        if session is not None:
            raise
        await refuse(websocket, error, gateway, messages.answer)


class _FluxSession(WebSocketSession):
    """Sends audio to an agent that does not answer, and its decisions on turns to the client."""

    def __init__(
        self,
        websocket: WebSocket,
        call: Call,
        gateway: Gateway,
        options: FluxOptions,
        form: AudioFormat | None,
        *,
        owner: str | None,
    ) -> None:
        idle = IdleLimit(gateway.settings.stages.idle_s, "audio, and no KeepAlive,")
        super().__init__(websocket, gateway, idle=idle)
        self._call = call
        self._commands = AgentCommands(gateway.settings.realtime, self._refuse_configuration)
        self._audio = StreamAudio(form, gateway.decoders, owner, self._hear)
        self._configurations: deque[FluxOptions] = deque()
        """Those that the agent has not accepted yet."""
        self._turns = _FluxTurns(self._send, options)
        self._request_id = current_ids().request
        self._sequence = count()
        self._forced = 0
        """``ForceEndTurn`` messages of which no turn is known to have ended."""
        self._closing = False
        self._send("Connected")

    def _send(self, kind: str, **fields: Any) -> None:
        head = {"type": kind, "request_id": self._request_id, "sequence_id": next(self._sequence)}
        self.writer.send_json(head | fields)

    def on_failed(self, error: ParleyError) -> None:
        """See :class:`WebSocketSession`."""
        self._send("Error", **messages.message_of(error))
        self.writer.close(*messages.close_for(error))

    async def on_message(self, message: str | bytes) -> None:
        """See :class:`WebSocketSession`."""
        if self._closing:
            return
        if isinstance(message, bytes):
            await self._audio.push(message)
        else:
            await self._handle(read_json(message, messages.FluxMessage, "the message"))
        await self._commands.wait_for_room()

    async def _hear(self, samples: NDArray[np.int16]) -> None:
        self._commands.send_audio(samples)
        await self._commands.wait_for_room()

    def beside(self) -> tuple[Coroutine[Any, Any, None], ...]:
        """See :class:`WebSocketSession`."""
        return (self._audio.run(),)

    async def _handle(self, message: messages.FluxMessage) -> None:
        match message:
            case messages.Configure():
                self._configure(message)
            case messages.ForceEndTurn():
                self._forced += 1
                self._commands.commit()
            case messages.CloseStream():
                self._closing = True
                await self._audio.finish()
                self._commands.commit()
            case messages.KeepAlive():
                self._commands.keep_alive()

    def _configure(self, wanted: messages.Configure) -> None:
        latest = self._configurations[-1] if self._configurations else self._turns.options
        terms = [wanted.keyterms] if isinstance(wanted.keyterms, str) else wanted.keyterms
        try:
            if len(self._configurations) >= messages.MAX_UPDATES:
                raise OverloadedError(f"{messages.MAX_UPDATES} configurations wait already")
            if wanted.language_hints not in (None, latest.language_hint):
                raise InvalidMessageError("language_hints cannot be changed")
            options = latest.changed(wanted.thresholds or {}, terms)
        except ParleyError as error:
            self._send("ConfigureFailure", code=error.code, description=str(error))
            return
        self._configurations.append(options)
        self._commands.update(options.update)

    def _refuse_configuration(self, error: ParleyError) -> None:
        self._configurations.popleft()
        self._send("ConfigureFailure", code=error.code, description=str(error))

    def _accept_configuration(self) -> None:
        options = self._turns.options = self._configurations.popleft()
        thresholds = {
            "eot_threshold": options.eot_threshold,
            "eager_eot_threshold": options.eager_eot_threshold,
            "eot_timeout_ms": options.eot_timeout_ms,
        }
        self._send(
            "ConfigureSuccess",
            thresholds=thresholds,
            keyterms=options.keyterm,
            **_hinted(options, "language_hints"),
        )

    async def send_events(self) -> None:
        """Send the turns until the client's last one is over."""
        await run_with_helpers(self._read(), self._commands.run(self._call))

    async def _read(self) -> None:
        async for event in self._call:
            match event:
                case protocol.Updated() if self._configurations:
                    self._accept_configuration()
                case protocol.ErrorEvent() if self._configurations and event.code in messages.REFUSED_UPDATES:
                    self._refuse_configuration(event.to_error())
                case protocol.ErrorEvent():
                    self._send("Warning", code=event.code, description=event.message)
                case _:
                    self._turns.on_event(event)
            if isinstance(event, protocol.TurnDecision) and self._is_last(event):
                self.writer.close(*_DONE)
                return
        closed = self._call.closed
        if closed is not None and closed.reason == "shutdown":
            self.writer.close(*GOING_AWAY)
        elif closed is not None and not self.gateway.calls.going_away.is_set():
            raise CallLostError(f"the server has ended the stream: {closed.reason}")

    def _is_last(self, decision: protocol.TurnDecision) -> bool:
        """Whether ``CloseStream`` has ended this turn.

        A turn that ends by itself while the recogniser gets to the end of the audio may be the one, or one
        before it: of another request to end a turn, the answer comes last.
        """
        if decision.decision != "commit":
            return False
        requested, forced = decision.reason == "requested", self._forced > 0
        if requested and forced:
            self._forced -= 1
        if not self._closing:
            return False
        if requested and not forced:
            return True
        self._commands.commit()
        return False


class _FluxTurns:
    """Translates the agent's events to ``TurnInfo`` messages.

    A turn begins with its first words. ``send`` gets the type of a message and its fields.
    """

    def __init__(self, send: Callable[..., None], options: FluxOptions) -> None:
        self._send = send
        self.options = options
        self._index = 0
        self._texts: dict[int, str] = {}
        self._words: dict[int, Sequence[protocol.Word]] = {}
        self._confidence = 0.0
        """Of the last transcript."""
        self._start_ms: int | None = None
        self._end_ms = 0
        self._begun = False
        self._eager: str | None = None
        """The text of an ``EagerEndOfTurn`` that may hold."""

    def on_event(self, event: CallEvent) -> None:
        """Handle an event of the agent."""
        match event:
            case protocol.SpeechStarted():
                if self._start_ms is None:
                    self._start_ms = event.at_ms
            case protocol.SpeechStopped():
                self._end_ms = event.at_ms
            case protocol.Transcript():
                self._on_transcript(event)
            case protocol.TurnDecision():
                self._on_decision(event)

    def _on_transcript(self, event: protocol.Transcript) -> None:
        self._confidence = event.confidence
        self._words[event.utterance] = event.words
        if event.words:
            self._end_ms = max(self._end_ms, event.words[-1].end_ms)
        text = add_transcript(self._texts, event)
        self._resume_unless(text)
        if self._eager is None:
            self._report("Update", text, 0.0)

    def _on_decision(self, event: protocol.TurnDecision) -> None:
        text, confidence = event.text, _end_confidence(event)
        self._resume_unless(text if event.decision != "resume" else None)
        if event.decision == "commit":
            self._report("EndOfTurn", text, confidence, trigger=self._trigger_of(event))
            self._begin_next(event.utterance)
        elif event.decision == "wait" and self._eager is None:
            eager = self._is_eager(event, confidence)
            self._report("EagerEndOfTurn" if eager else "Update", text, confidence)
            self._eager = text if eager else None

    def _trigger_of(self, event: protocol.TurnDecision) -> str:
        if event.reason == "requested":
            return "manual"
        return "timeout" if event.needed_ms >= self.options.eot_timeout_ms else "model"

    def _is_eager(self, event: protocol.TurnDecision, confidence: float) -> bool:
        threshold = self.options.eager_eot_threshold
        if not event.text or threshold is None or confidence < threshold:
            return False
        # Words that something has to follow: the agent begins no answer either.
        return event.cue in _FINISHED or event.needed_ms <= PREPARED_MS

    def _resume_unless(self, text: str | None) -> None:
        """Withdraw an ``EagerEndOfTurn`` with another text than ``text``."""
        if self._eager not in (None, text):
            self._report("TurnResumed", self._eager or "", 0.0)
            self._eager = None

    def _begin_next(self, last: int) -> None:
        """Begin another turn behind utterance ``last``; the user may have begun it meanwhile."""
        self._index += self._begun
        self._texts = {number: text for number, text in self._texts.items() if number > last}
        self._words = {number: words for number, words in self._words.items() if number > last}
        self._start_ms, self._begun, self._eager = None, False, None

    def _report(self, event: str, text: str, confidence: float, **more: Any) -> None:
        if not self._begun:
            if not text:
                return
            self._begun = True
            self._write("StartOfTurn", text, 0.0)
            if event == "Update":
                return
        self._write(event, text, confidence, **more)

    def _write(self, event: str, text: str, confidence: float, **more: Any) -> None:
        start_ms = self._end_ms if self._start_ms is None else self._start_ms
        self._send(
            "TurnInfo",
            event=event,
            turn_index=self._index,
            audio_window_start=start_ms / 1000,
            audio_window_end=max(start_ms, self._end_ms) / 1000,
            transcript=text,
            words=self._words_of(text),
            end_of_turn_confidence=confidence,
            **_hinted(self.options, "languages_hinted"),
            **more,
        )

    def _words_of(self, text: str) -> list[dict[str, Any]]:
        """The words of ``text``, with their times where the recogniser has them."""
        words = [word for number in sorted(self._texts) for word in self._words.get(number, ())]
        if [word.text for word in words] != text.split():  # no times, or another decoding of earlier words
            return [{"word": word, "confidence": self._confidence} for word in text.split()]
        return [
            {
                "word": word.text,
                "confidence": word.confidence,
                "start": word.start_ms / 1000,
                "end": word.end_ms / 1000,
            }
            for word in words
        ]


def _hinted(options: FluxOptions, name: str) -> dict[str, list[str]]:
    return {name: options.language_hint} if options.language_hint else {}


def _end_confidence(decision: protocol.TurnDecision) -> float:
    """The probability that the turn is over, by its sound and its words."""
    if decision.text_probability is not None:
        return join(decision.probability, decision.text_probability)
    return _UNSCORED if decision.probability is None else decision.probability
