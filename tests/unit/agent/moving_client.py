"""A client that goes on elsewhere: what it keeps of a session, and a call that goes on with it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from agent_fakes import CHUNK_MS, FakeCall, FakeChat, Sent, all_of_utterance, now, open_call, says
from msgspec.structs import replace

from parley.agent.config import AgentConfig
from parley.agent.playout import Playout
from parley.chat import ToolCall
from parley.checkpoint import HistoryState, ResponseProgress, Resume, SessionState
from parley.llm.messages import Completed, LlmEvent, TextDelta, ToolCalled
from parley.protocol import (
    Audio,
    Checkpoint,
    Paused,
    ResponseDone,
    ResponseText,
    Resumed,
    Start,
    ToolCancelled,
    ToolRequest,
    ToolResponse,
)

Utterance = tuple[int, int, str]


class KnowingChat(FakeChat):
    """Answers by what the user said last, and goes on behind the text that an answer begins with."""

    def __init__(self, answers: dict[str, list[LlmEvent]], after_results: str = "") -> None:
        super().__init__()
        self._known = answers
        self._after_results = after_results

    async def generate(self, request):
        if request.sampling.max_tokens > 1:
            last = request.messages[-1]
            answer = says(self._after_results) if last.role == "tool" else self._known[last.content]
            self.answers.append(_behind(answer, request.prefix))
        async for event in super().generate(request):
            yield event


def _behind(answer: Sequence[LlmEvent], prefix: str) -> list[LlmEvent]:
    text = "".join(event.text for event in answer if isinstance(event, TextDelta))
    assert text.startswith(prefix), f"{prefix!r} is not the beginning of {text!r}"
    rest = says(text.removeprefix(prefix))[:-1] if text != prefix else []
    return [*rest, *(event for event in answer if not isinstance(event, TextDelta))]


def says_and_calls(text: str, name: str) -> list[LlmEvent]:
    """A spoken text with a tool call behind it."""
    call = ToolCall(id="c", name=name, arguments={"city": "Paris"})
    return [*says(text)[:-1], ToolCalled(call=call), Completed(finish_reason="tool_calls")]


@dataclass
class Kept:
    """What a client has kept of the events so far."""

    settings: Start | None = None
    history: HistoryState = field(default_factory=HistoryState)
    state: SessionState | None = None
    requests: dict[str, ToolRequest] = field(default_factory=dict)
    progress: ResponseProgress | None = None

    @classmethod
    def of(cls, sent: Sequence[Sent]) -> Kept:
        kept = cls()
        for event in (one.event for one in sent):
            if isinstance(event, Checkpoint):
                kept.settings = event.settings or kept.settings
                kept.history = event.history or kept.history
                kept.state = event.state
            elif isinstance(event, ToolRequest):
                kept.requests[event.call_id] = event
        if kept.state is not None and kept.state.agent is not None:
            kept.progress = _progress(kept.state.agent.response_id, sent)
        return kept

    def resume(self, audio_ms: int | None = None) -> Resume:
        assert self.state is not None
        return Resume(
            state=self.state,
            history=self.history,
            progress=self.progress,
            audio_ms=self.state.audio_ms if audio_ms is None else audio_ms,
        )


def _progress(response_id: str, sent: Sequence[Sent]) -> ResponseProgress | None:
    """What came of one response; it is played in real time, but not while it is paused."""
    playout, text, words, done = Playout(), "", [], False
    audio_ms = 0.0
    for one in sent:
        event = one.event
        if getattr(event, "response_id", None) != response_id:
            continue
        if isinstance(event, ResponseText):
            text += event.text
        elif isinstance(event, Audio):
            length_ms = event.samples / event.sample_rate * 1000
            playout.begin(0, "")
            playout.sent(length_ms, [], one.at)
            audio_ms += length_ms
            if event.text:
                words.append((event.offset_ms, event.text))
        elif isinstance(event, Paused):
            playout.pause(one.at)
        elif isinstance(event, Resumed):
            playout.resume(one.at)
        elif isinstance(event, ResponseDone):
            done = True
    if not (text or audio_ms or done):
        return None
    return ResponseProgress(
        response_id=response_id,
        text=text,
        audio_ms=round(audio_ms),
        words=words,
        played_ms=min(round(playout.played_ms(sent[-1].at)), round(audio_ms)),
        done=done,
    )


class MovingCall(FakeCall):
    """A call whose client runs the tool ``get_weather``, and whose user says what a script has."""

    def __init__(
        self, chat: KnowingChat, utterances: Sequence[Utterance], *, config: AgentConfig, name: str = "call"
    ) -> None:
        super().__init__(config, name, chat=chat)
        self.utterances = utterances
        self.ran: list[str] = []
        self.answered: dict[str, float] = {}  # when each call is answered
        self._tools: set[asyncio.Task[None]] = set()
        self.tool_s = 0.5

    async def begin(self, start: Start) -> None:
        """A new session."""
        self.hears(*self.utterances)
        self._follow()
        await self.start(start)

    async def go_on(self, kept: Kept, at_ms: int, answered: dict[str, float], ran: Sequence[str]) -> None:
        """The session of ``kept`` goes on when its client has recorded ``at_ms``."""
        assert kept.settings is not None
        assert kept.state is not None
        resume = kept.resume()
        for number, (start_ms, end_ms, text) in enumerate(self.utterances, 1):
            if number <= kept.state.utterances:
                assert end_ms <= resume.audio_ms, "it would be heard twice"
                continue
            assert start_ms >= resume.audio_ms, "its beginning would be missing"
            begin, end = start_ms - resume.audio_ms, end_ms - resume.audio_ms
            self.recognition.script.extend(all_of_utterance(number - kept.state.utterances, begin, end, text))
        self._follow()
        await self.start(replace(kept.settings, resume=resume), microphone=False)
        for begin_ms in range(resume.audio_ms, at_ms, 1_000):
            self.send(audio=bytes(32 * (min(at_ms, begin_ms + 1_000) - begin_ms)))
        self.began = now()
        self._microphone = asyncio.create_task(self._record())
        agent = kept.state.agent
        for call in (call for answer in (agent.rounds if agent else ()) for call in answer.calls):
            if any(call.id in answer.results for answer in agent.rounds):
                continue
            if call.id not in ran:  # the request was lost
                self._run(call.id)
            else:  # it still runs, or the result was lost
                self._answer_soon(call.id, max(0.0, answered.get(call.id, now() + self.tool_s) - now()))

    def _follow(self) -> None:
        send = self.outlet.send

        def follow(event, audio=None):
            send(event, audio)
            if isinstance(event, ToolRequest):
                self._run(event.call_id)
            elif isinstance(event, ToolCancelled):
                for task in self._tools:
                    task.cancel()

        self.outlet.send = follow

    def _run(self, call_id: str) -> None:
        self.ran.append(call_id)
        self._answer_soon(call_id, self.tool_s)

    def _answer_soon(self, call_id: str, after_s: float) -> None:
        self.answered[call_id] = now() + after_s

        async def answer() -> None:
            await asyncio.sleep(after_s)
            self.send(ToolResponse(call_id=call_id, output={"sky": "clear"}))

        task = asyncio.create_task(answer())
        self._tools.add(task)
        task.add_done_callback(self._tools.discard)

    @property
    def history(self) -> list[tuple[str, str]]:
        """(role, text) of the messages that the session remembers."""
        (session,) = self.host._sessions.values()
        return [(one.role, one.content) for one in session._conversation.agent_turns.history.messages]


def position_ms(sent: Sent, began: float) -> int:
    """How much the client had recorded when an event came."""
    return max(0, round((sent.at - began) * 1000) // CHUNK_MS * CHUNK_MS)


def of_response(events: Sequence[object], kind: type, response_id: str) -> list:
    """The events of one kind of one response."""
    return [one for one in events if isinstance(one, kind) and one.response_id == response_id]


async def moved(call: FakeCall, *answers) -> FakeCall:
    """The call at another server."""
    kept = Kept.of(call.outlet.sent)
    start = replace(kept.settings, resume=kept.resume())
    await call.end()
    return await open_call(start, answers=answers, session_id="moved")
