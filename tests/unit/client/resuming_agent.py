"""An agent that goes on with sessions, as small as that can be: plays the servers of a call that moves.

It hears 20 ms frames: a frame of zeros is silence, any other frame is a word, and the first silence behind
words ends the user's turn. It answers "You said ...", a word at a time, with 40 ms of audio for each. The
word 9 makes it ask for a tool first. Everything it does for a request it does at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import numpy as np
from fake_agent import FakeStream

from parley import protocol
from parley.chat import ChatMessage, ToolCall
from parley.checkpoint import (
    CHECKPOINT_VERSION,
    AgentTurnState,
    HistoryState,
    QueuedText,
    RoundState,
    SessionState,
)
from parley.errors import InferenceError, ModelUnavailableError
from parley_client.transport import Frame, ServerReply

FRAME_MS = 20
FRAME = FRAME_MS * 32
WORD_MS = 40


def frame(word: int) -> bytes:
    """20 ms of a word; 0 is silence."""
    return np.full(FRAME // 2, word, "<i2").tobytes()


def level(word: int, samples: int, _: int) -> np.ndarray:
    """The audio of a word of the agent: its number, from 1 on, in every sample."""
    return np.full(samples, word, np.int16)


class Session:
    """One session on one stream; ``voice`` makes a word's audio from its number, length and sample rate."""

    def __init__(
        self,
        stream: FakeStream,
        start: protocol.Start,
        voice: Callable[[int, int, int], np.ndarray] = level,
    ) -> None:
        self.stream = stream
        self._voice = voice
        self.start = start
        resume = start.resume
        self.state = resume.state if resume else SessionState(version=CHECKPOINT_VERSION, handled=0)
        self.messages = list(resume.history.messages) if resume else []
        self.at = 32 * (resume.audio_ms if resume else 0)
        self.begin = self.at
        self.audio = bytearray()
        self.words: list[int] = []
        self.onset_ms = 0
        self.unread = b""
        self.settings = msgspec.structs.replace(start, resume=None)
        stream.say(
            protocol.Connected(
                session_id="s",
                output_sample_rate=start.output_sample_rate,
                resumed=resume is not None,
                greets=False,
            )
        )
        self.checkpoint(settings=self.settings, history=True)
        stream.say(protocol.AgentState(state="listening"))
        if resume is not None:
            self._go_on(resume)

    def _go_on(self, resume) -> None:
        agent = self.state.agent
        if agent is not None and (agent.rounds or resume.progress):
            self._answer(resume.progress)
        elif agent is not None:
            self._think(agent)
        elif self.state.unanswered:
            self._begin_turn()
        self._take_queued()

    # --- what comes

    def on_frame(self, frame: Frame) -> None:
        if frame.message:
            message = protocol.decode_message(frame.message)
            if not isinstance(message, protocol.Playback):
                self.state = msgspec.structs.replace(self.state, handled=(self.state.handled or 0) + 1)
            self.on_message(message)
        self.audio += frame.audio
        self.unread += frame.audio
        while len(self.unread) >= FRAME:
            piece, self.unread = self.unread[:FRAME], self.unread[FRAME:]
            self._hear(int(np.frombuffer(piece, "<i2")[0]))
        self.checkpoint()

    def _hear(self, word: int) -> None:
        if word and not self.words:
            self.onset_ms = self.at // 32
            self.stream.say(protocol.SpeechStarted(at_ms=self.onset_ms))
        if word:
            self.words.append(word)
            self._transcript(is_final=False)
        self.at += FRAME
        if not word and self.words:
            at_ms = self.at // 32
            self.stream.say(protocol.SpeechStopped(at_ms=at_ms, detected_at_ms=at_ms))
            self._transcript(is_final=True)
            self.state = msgspec.structs.replace(self.state, utterances=self.state.utterances + 1)
            text = " ".join(map(str, self.words))
            self.words = []
            self._end_user_turn(text)

    def _transcript(self, *, is_final: bool) -> None:
        text = " ".join(map(str, self.words))
        self.stream.say(
            protocol.Transcript(
                utterance=self.state.utterances + 1, text=text, is_final=is_final, confidence=1.0
            )
        )

    def _end_user_turn(self, text: str) -> None:
        decision = protocol.TurnDecision(
            utterance=self.state.utterances, decision="commit", reason="silence_limit", text=text
        )
        self.messages.append(ChatMessage(role="user", content=text))
        self.state = msgspec.structs.replace(self.state, unanswered=True)
        self.checkpoint(history=True, answers=[decision])
        self.stream.say(decision)
        self._begin_turn()

    def on_message(self, message) -> None:
        match message:
            case protocol.Text(text=text):
                self.messages.append(ChatMessage(role="user", content=text))
                self.state = msgspec.structs.replace(self.state, unanswered=True)
                self.checkpoint(history=True)
                self._begin_turn()
            case protocol.Remember(role=role, text=text):
                self.messages.append(ChatMessage(role=role, content=text))
                self.checkpoint(history=True)
            case protocol.Update(voice=voice):
                self.settings = msgspec.structs.replace(self.settings, voice=voice)
                self.checkpoint(settings=self.settings, answers=[protocol.Updated()])
                self.stream.say(protocol.Updated())
            case protocol.Say(text=text):
                queued = [*self.state.queued, QueuedText(text=text)]
                self.state = msgspec.structs.replace(self.state, queued=queued)
                self.checkpoint()
                self._take_queued()
            case protocol.ToolResponse():
                self._on_result(message)
            case protocol.Respond():
                self._begin_turn()
            case protocol.Truncate():
                answer = protocol.Truncated(response_id=message.response_id, played_ms=1, spoken_text="")
                self.checkpoint(answers=[answer])
                self.stream.say(answer)
            case _:
                pass

    def _on_result(self, answer: protocol.ToolResponse) -> None:
        agent = self.state.agent
        if agent is None or not agent.rounds or answer.call_id in agent.rounds[0].results:
            self.stream.say(protocol.ErrorEvent(code="unknown_tool", message=answer.call_id, retryable=False))
            return
        done = msgspec.structs.replace(agent.rounds[0], results={answer.call_id: str(answer.output)})
        agent = msgspec.structs.replace(agent, rounds=[done])
        self.state = msgspec.structs.replace(self.state, agent=agent)
        self.checkpoint()
        self._answer(None)

    # --- what is answered

    def _begin_turn(self, text: str = "") -> None:
        turn = self.state.turns + 1
        agent = AgentTurnState(turn=turn, response_id=f"r{turn}", kind="say" if text else "answer", text=text)
        self.state = msgspec.structs.replace(self.state, turns=turn, agent=agent, unanswered=False)
        self.stream.say(protocol.AgentState(state="processing"))
        self.checkpoint()
        self._think(agent)

    def _think(self, agent: AgentTurnState) -> None:
        turn = agent.turn
        said = self.messages[-1].content
        if not agent.text and "9" in said.split():
            call = ToolCall(id=f"t{turn}", name="look", arguments={})
            agent = msgspec.structs.replace(agent, rounds=[RoundState(calls=[call])])
            self.state = msgspec.structs.replace(self.state, agent=agent)
            self.checkpoint()
            self.stream.say(protocol.ToolRequest(turn=turn, call_id=call.id, name="look", arguments={}))
        else:
            self._answer(None)

    def _answer(self, progress) -> None:
        agent = self.state.agent
        done = list(agent.rounds[0].results.values()) if agent.rounds else []
        if agent.rounds and not done:
            return  # the client still runs the tool
        text = agent.text or f"You said {' '.join([self.messages[-1].content, *done])}."
        words = [f"{word} " for word in text.split()]
        known = progress.text if progress else ""
        spoken = round(progress.audio_ms / WORD_MS) if progress else 0
        assert "".join(words).startswith(known), (words, known)
        ids = {"turn": agent.turn, "response_id": agent.response_id}
        self.stream.say(protocol.AgentState(state="speaking"))
        for number, word in enumerate(words):
            if len("".join(words[: number + 1])) > len(known):
                self.stream.say(protocol.ResponseText(**ids, text=word))
            if number >= spoken:
                rate = self.start.output_sample_rate
                samples = self._voice(number + 1, rate * WORD_MS // 1000, rate)
                self.stream.say(
                    protocol.Audio(
                        **ids,
                        offset_ms=number * WORD_MS,
                        sample_rate=rate,
                        samples=len(samples),
                        text=word.strip(),
                    ),
                    samples,
                )
        if not (progress and progress.done):
            self.stream.say(protocol.ResponseDone(**ids, audio_ms=len(words) * WORD_MS))
        self.messages.append(ChatMessage(role="assistant", content=text))
        self.state = msgspec.structs.replace(self.state, agent=None)
        self.stream.say(protocol.TurnMetrics(turn=agent.turn))
        self.stream.say(protocol.AgentState(state="listening"))
        self.checkpoint(history=True)
        self._take_queued()

    def _take_queued(self) -> None:
        if self.state.queued and self.state.agent is None:
            text = self.state.queued[0].text
            self.state = msgspec.structs.replace(self.state, queued=self.state.queued[1:])
            self._begin_turn(text)

    def checkpoint(
        self, settings: protocol.Start | None = None, *, history: bool = False, answers=()
    ) -> None:
        if not self.start.checkpoints:
            return
        at_ms = self.onset_ms if self.words else self.at // 32
        self.state = msgspec.structs.replace(self.state, audio_ms=at_ms)
        self.stream.say(
            protocol.Checkpoint(
                state=self.state,
                settings=settings,
                history=HistoryState(messages=list(self.messages)) if history else None,
                settled=not self.words and self.state.agent is None,
                answers=list(answers),
            )
        )


async def serve_session(
    stream: FakeStream,
    on_session: Callable[[Session], None] = lambda _: None,
    voice: Callable[[int, int, int], np.ndarray] = level,
) -> None:
    """A behaviour of fake agents."""
    session = Session(stream, protocol.decode_message((await stream.frames.get()).message), voice)
    on_session(session)
    while (one := await stream.frames.get()) is not None:
        if one.end:
            stream.hang_up()
        else:
            session.on_frame(one)
        stream.acknowledge(one)
    stream.end()


def lose(stream: FakeStream) -> None:
    """The server is gone."""
    stream.fail(ModelUnavailableError("Socket closed"))


def send_away(stream: FakeStream) -> None:
    """The server stops now, with its calls in whatever state they are."""
    stream.replies.put_nowait(
        ServerReply("start", protocol.encode(protocol.GoAway(time_left_ms=0)), np.zeros(0, np.int16))
    )


def cut_behind(stream: FakeStream, kind: type, count: int, end: Callable[[FakeStream], None] = lose) -> None:
    """Let a server say so many events of a kind and then ``end``; what it would say later is never said."""
    say = stream.say
    left = count

    def say_some(event: protocol.ServerEvent, samples: np.ndarray | None = None) -> None:
        nonlocal left
        if left:
            say(event, samples)
            left -= isinstance(event, kind)
            if not left:
                end(stream)

    stream.say = say_some


class CutStream(FakeStream):
    """A stream that breaks: after so many replies, or with a frame, which the server gets or not."""

    def __init__(self, replies: int | None = None, frames: int | None = None, *, arrives: bool = False):
        super().__init__()
        self.replies_left = replies
        self.frames_left = frames
        self.arrives = arrives
        self.end = lambda: ModelUnavailableError("Socket closed")

    async def send(self, frame: Frame) -> None:
        if self.frames_left is not None:
            self.frames_left -= 1
            if self.frames_left < 0:
                if self.arrives and self.frames_left == -1:
                    await super().send(frame)
                raise InferenceError("the stream has ended")
        await super().send(frame)

    async def receive(self):
        if self.replies_left is not None:
            self.replies_left -= 1
            if self.replies_left < 0:
                end = self.end() if self.replies_left == -1 else None
                if isinstance(end, Exception):
                    raise end
                return end
        return await super().receive()


class Servers:
    """Makes transports to agents; the first streams are those given, and all later ones last."""

    def __init__(self, *streams: FakeStream | Exception):
        self._streams = list(streams)
        self.call_ids: list[str] = []
        self.sessions: list[Session] = []
        self.streams: list[FakeStream] = []
        self.opened = self.closed = 0
        self.on_session: Callable[[Session], None] = lambda _: None
        self._tasks: list[asyncio.Task[None]] = []

    def __call__(self) -> Servers:
        self.opened += 1
        return self

    async def open(self, call_id: str, timeout_s: float) -> FakeStream:
        self.call_ids.append(call_id)
        stream = self._streams.pop(0) if self._streams else FakeStream()
        if isinstance(stream, Exception):
            raise stream
        self.streams.append(stream)
        self._tasks.append(asyncio.create_task(self._serve(stream)))
        return stream

    async def close(self) -> None:
        self.closed += 1

    async def _serve(self, stream: FakeStream) -> None:
        await serve_session(stream, self._on_session)

    def _on_session(self, session: Session) -> None:
        self.sessions.append(session)
        self.on_session(session)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        for result in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result
