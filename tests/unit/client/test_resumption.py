"""What a call keeps for another server: pure bookkeeping, on a clock of the tests."""

import numpy as np
import pytest

from parley import protocol
from parley.chat import ChatMessage, ToolCall
from parley.checkpoint import (
    AgentTurnState,
    BackgroundCall,
    HistoryState,
    RoundState,
    SessionState,
)
from parley_client.errors import NotResumableError
from parley_client.events import AgentAudio
from parley_client.progress import ResponseTracker
from parley_client.queues import OutgoingMessage
from parley_client.replay import MAX_MESSAGES, SentAudio, interleave
from parley_client.resumption import Resumption

CONNECTED = protocol.Connected(session_id="s", output_sample_rate=8_000, resumed=True)
IDS = {"turn": 1, "response_id": "r1"}


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


class Line:
    """A resumption, with its stream."""

    def __init__(self, replay_ms=10_000, agent=""):
        self.clock = Clock()
        start = protocol.Start(agent=agent, checkpoints=True)
        self.kept = Resumption(start, replay_ms, self.clock)

    def send(self, message=None, audio=b""):
        raw = b"" if message is None else protocol.encode(message)
        self.kept.on_sent(OutgoingMessage(message=raw, audio=audio))

    def event(self, event):
        return self.kept.on_event(event)

    def checkpoint(self, history=None, settings=None, settled=False, answers=(), **state):
        history = None if history is None else HistoryState(messages=history)
        self.event(
            protocol.Checkpoint(
                state=SessionState(version=1, **state),
                settings=settings,
                history=history,
                settled=settled,
                answers=list(answers),
            )
        )

    def repeated(self):
        """Messages and audio that the next server gets."""
        _, contents = self.kept.go_on(CONNECTED)
        return [
            protocol.decode_message(content.message) if content.message else content.audio
            for content in contents
        ]


def audio(offset_ms, length_ms=100, text="", rate=8_000, **ids):
    return AgentAudio(
        **(IDS | ids),
        offset_ms=offset_ms,
        sample_rate=rate,
        samples=np.zeros(rate * length_ms // 1000),
        text=text,
    )


# --- audio ------------------------------------------------------------------------------------------


def test_audio_is_kept_from_the_checkpoint_on_and_within_its_bound():
    sent = SentAudio(limit_ms=100)
    for value in range(20):
        sent.add(bytes([value]) * 320)  # 10 ms
    assert (sent.begin_ms, sent.end) == (100, 20 * 320)
    assert sent.between(150 * 32, 170 * 32) == bytes([15]) * 320 + bytes([16]) * 320
    sent.forget(130)
    assert sent.begin_ms == 130
    sent.forget(90)
    assert sent.begin_ms == 130
    sent.forget(10_000)
    assert sent.begin_ms == 200
    assert sent.end == 20 * 320


def test_kept_audio_begins_at_a_whole_millisecond():
    sent = SentAudio(limit_ms=10)
    sent.add(bytes(range(250)) * 2)  # 15.6 ms
    assert sent.begin_ms * 32 + len(sent.between(0, sent.end)) == 500
    assert sent.between(sent.begin_ms * 32, 500) == (bytes(range(250)) * 2)[sent.begin_ms * 32 :]
    assert len(sent.between(0, 500)) <= 10 * 32


def test_audio_that_is_longer_than_the_bound_is_announced_by_its_position():
    line = Line(replay_ms=100)
    line.checkpoint(audio_ms=20)
    line.send(audio=bytes(500 * 32))
    start = line.kept.make_start()
    assert (start.resume.state.audio_ms, start.resume.audio_ms) == (20, 400)
    assert b"".join(line.repeated()) == bytes(100 * 32)


def test_a_position_that_was_never_sent_is_the_end_of_what_was():
    line = Line()
    line.send(audio=bytes(100 * 32))
    line.checkpoint(audio_ms=5_000)
    assert line.kept.make_start().resume.audio_ms == 100
    assert line.repeated() == []


def test_messages_stand_between_the_audio_where_they_were_sent():
    sent = SentAudio(limit_ms=1_000)
    sent.add(bytes(100 * 32))
    contents = interleave(sent, 20, [(10 * 32, b"a"), (50 * 32, b"b"), (50 * 32, b"c")], 40 * 32)
    assert [content.message or len(content.audio) // 32 for content in contents] == [
        b"a",
        30,
        b"b",
        b"c",
        40,
        10,
    ]


# --- messages -----------------------------------------------------------------------------------------


def test_messages_are_repeated_until_a_checkpoint_counts_them():
    line = Line()
    line.checkpoint(handled=0)
    sent = [protocol.Text(text="one"), protocol.Interrupt(), protocol.Text(text="two")]
    for message in sent:
        line.send(message)
    assert line.repeated() == sent
    line.checkpoint(handled=2)
    assert line.repeated() == sent[2:]


def test_messages_whose_effect_is_to_come_are_repeated_in_their_place():
    line = Line()
    line.checkpoint(handled=0)
    line.send(protocol.Remember(role="system", text="night"), bytes(20 * 32))
    line.send(protocol.Commit(), bytes(20 * 32))
    line.send(protocol.Text(text="one"))
    line.send(protocol.Text(text="two"))
    line.checkpoint(handled=3, unfinished=[2])
    assert line.repeated() == [bytes(20 * 32), protocol.Commit(), bytes(20 * 32), protocol.Text(text="two")]


def test_repeated_messages_have_new_numbers():
    line = Line()
    line.checkpoint(handled=0)
    for text in ("one", "two", "three"):
        line.send(protocol.Text(text=text))
    line.checkpoint(handled=2, unfinished=[1])
    assert [message.text for message in line.repeated()] == ["one", "three"]  # 3 and 4
    line.send(protocol.Text(text="four"))
    line.checkpoint(handled=3)
    assert [message.text for message in line.repeated()] == ["three", "four"]  # 4 and 5
    line.checkpoint(handled=5)
    assert line.repeated() == []


def test_a_server_that_does_not_count_gets_nothing_twice():
    line = Line()
    line.checkpoint()
    line.send(protocol.Text(text="one"))
    line.checkpoint()
    line.send(protocol.Text(text="two"))
    assert line.repeated() == [protocol.Text(text="two")]
    line.checkpoint(handled=1)  # the next server counts
    assert line.repeated() == []


def test_an_answer_that_was_lost_is_made_up_for_and_one_that_came_is_not():
    truncated = protocol.Truncated(response_id="r1", played_ms=100, spoken_text="It is")
    for count in range(3):
        line = Line()
        line.checkpoint(handled=2, answers=[protocol.Updated(), truncated])
        came = [one for event in [protocol.Updated(), truncated][:count] for one in line.event(event)]
        events, _ = line.kept.go_on(CONNECTED)
        assert [*came, *events] == [protocol.Updated(), truncated]
        assert line.kept.go_on(CONNECTED)[0] == []


def test_reports_of_playing_are_in_the_progress_and_not_repeated():
    line = Line()
    line.checkpoint(turns=1, agent=AgentTurnState(**IDS))
    line.event(audio(0, 1_000))
    line.clock.now += 0.9
    line.send(protocol.Playback(response_id="r1", played_ms=500))
    assert line.kept.make_start().resume.progress.played_ms == 500
    assert line.repeated() == []


def test_a_server_that_handles_nothing_gets_no_more_messages():
    line = Line()
    line.checkpoint(handled=0)
    for _ in range(MAX_MESSAGES):
        assert line.kept.has_room
        line.send(protocol.Interrupt())
    assert not line.kept.has_room
    line.checkpoint(handled=1)
    assert line.kept.has_room


# --- tools --------------------------------------------------------------------------------------------

CALL = ToolCall(id="c1", name="look", arguments={"at": 1})
OPEN = AgentTurnState(**IDS, rounds=[RoundState(calls=[CALL])])
ASKED = protocol.ToolRequest(turn=1, call_id="c1", name="look", arguments={"at": 1})
SETTINGS = protocol.Start(tools=[protocol.Tool(name="look")])


def test_the_answer_of_a_tool_is_sent_again_while_the_state_waits_for_it():
    line = Line()
    line.checkpoint(settings=SETTINGS, turns=1, agent=OPEN)
    line.event(ASKED)
    answer = protocol.ToolResponse(call_id="c1", output=3)
    line.send(answer)
    events, contents = line.kept.go_on(CONNECTED)
    assert events == []
    assert [protocol.decode_message(content.message) for content in contents] == [answer]
    done = AgentTurnState(**IDS, rounds=[RoundState(calls=[CALL], results={"c1": "3"})])
    line.checkpoint(turns=1, agent=done, handled=1)
    assert line.repeated() == []


def test_a_request_that_was_lost_is_made_up_for_and_one_that_came_is_not():
    line = Line()
    line.checkpoint(settings=SETTINGS, turns=1, agent=OPEN)
    assert line.kept.go_on(CONNECTED)[0] == [ASKED]
    assert line.kept.go_on(CONNECTED)[0] == []


def test_a_call_that_the_server_does_not_know_is_cancelled():
    line = Line()
    line.checkpoint(settings=SETTINGS)
    line.event(ASKED)
    assert line.kept.go_on(CONNECTED)[0] == [protocol.ToolCancelled(turn=1, call_id="c1", reason="closed")]


def test_a_call_of_the_servers_own_tool_is_not_the_applications():
    line = Line()
    line.checkpoint(settings=protocol.Start(), turns=1, agent=OPEN)
    assert line.kept.go_on(CONNECTED)[0] == []


RUNNING = BackgroundCall(turn=1, call=CALL)


def test_a_call_beside_the_conversation_goes_on_after_its_turn():
    line = Line()
    line.checkpoint(settings=SETTINGS, turns=3, background=[RUNNING])
    line.event(ASKED)
    line.checkpoint(turns=3, background=[RUNNING])
    assert line.kept.go_on(CONNECTED)[0] == []
    progress = protocol.ToolResponse(call_id="c1", output=1, final=False)
    line.send(progress)
    assert line.kept.go_on(CONNECTED)[0] == [], "its result is still owed"


def test_a_request_beside_the_conversation_that_was_lost_is_made_up_for():
    line = Line()
    line.checkpoint(settings=SETTINGS, turns=3, background=[RUNNING])
    assert line.kept.go_on(CONNECTED)[0] == [ASKED]
    assert line.kept.go_on(CONNECTED)[0] == []


def test_progress_is_no_answer_to_a_request_that_was_lost():
    line = Line()
    line.checkpoint(settings=SETTINGS, turns=3, background=[RUNNING])
    line.send(protocol.ToolResponse(call_id="c1", output=1, final=False))
    assert line.kept.go_on(CONNECTED)[0] == [ASKED]


# --- responses ----------------------------------------------------------------------------------------


def test_the_progress_is_what_came_of_the_response_under_way():
    line = Line()
    line.checkpoint(turns=1, agent=AgentTurnState(**IDS))
    assert line.kept.make_start().resume.progress is None
    line.event(protocol.ResponseText(**IDS, text="It is "))
    line.event(protocol.ResponseText(**IDS, text="late."))
    line.event(audio(0, 400, "It is"))
    line.event(audio(400, 400))
    line.clock.now += 0.5
    progress = line.kept.make_start().resume.progress
    assert (progress.text, progress.words, progress.audio_ms) == ("It is late.", [(0, "It is")], 800)
    assert progress.played_ms == 500
    assert not progress.done
    line.event(protocol.ResponseDone(**IDS, audio_ms=800))
    assert line.kept.make_start().resume.progress.done


def test_no_more_is_played_than_there_is_of_a_response():
    line = Line()
    line.checkpoint(agent=AgentTurnState(**IDS), turns=1)
    # Pieces of 60.2 ms, whose offsets are rounded: 60 + 60.2 ms, where 120.4 were received; then 180 + 60.2.
    for offset_ms in (0, 60, 120, 181):
        piece = AgentAudio(
            **IDS, offset_ms=offset_ms, sample_rate=10_000, samples=np.zeros(602, np.int16), text=""
        )
        line.event(piece)
        line.clock.now += 10.0
        progress = line.kept.make_start().resume.progress
        assert progress.played_ms <= progress.audio_ms, "no server takes a session in which more was played"


def test_a_pause_ends_with_the_move():
    line = Line()
    line.checkpoint(turns=1, agent=AgentTurnState(**IDS))
    line.event(audio(0, 400))
    line.event(protocol.Paused(**IDS, at_ms=0))
    events, _ = line.kept.go_on(CONNECTED)
    assert events == [protocol.Resumed(**IDS, reason="noise")]
    assert line.event(protocol.Resumed(**IDS, reason="noise")) == []


def test_a_response_that_the_next_server_does_not_know_ends():
    line = Line()
    line.checkpoint()
    line.event(audio(0, 400))
    events, _ = line.kept.go_on(CONNECTED)
    (ended,) = events
    assert isinstance(ended, protocol.Interrupted)
    assert ended.response_id == "r1"
    assert line.event(audio(400, 400)) == []


def test_a_response_that_was_interrupted_stays_so():
    line = Line()
    line.checkpoint(turns=1, agent=AgentTurnState(**IDS))
    line.event(audio(0, 400))
    ended = protocol.Interrupted(**IDS, played_ms=100, spoken_text="")
    line.checkpoint(turns=1)
    assert line.event(ended) == [ended]
    assert line.kept.go_on(CONNECTED)[0] == []
    assert line.event(audio(400, 400)) == line.event(ended) == []
    assert line.event(protocol.ResponseDone(**IDS, audio_ms=800)) == []


def test_events_about_audio_that_is_heard_again_come_once():
    line = Line()
    line.checkpoint()
    said = [
        protocol.SpeechStarted(at_ms=100),
        protocol.SpeechStopped(at_ms=500, detected_at_ms=700),
        protocol.Transcript(utterance=1, text="yes", is_final=True, confidence=1.0),
        protocol.TurnMetrics(turn=1),
    ]
    assert [one for event in said for one in line.event(event)] == said
    line.kept.go_on(CONNECTED)
    assert [one for event in said for one in line.event(event)] == []
    later = [
        protocol.SpeechStarted(at_ms=900),
        protocol.Transcript(utterance=2, text="n", is_final=False, confidence=1),
    ]
    assert [one for event in later for one in line.event(event)] == later


def test_the_agent_that_speaks_on_does_not_listen_first():
    line = Line()
    line.checkpoint(turns=1, agent=AgentTurnState(**IDS))
    line.event(protocol.AgentState(state="speaking"))
    line.kept.go_on(CONNECTED)
    states = [protocol.AgentState(state=state) for state in ("listening", "speaking", "listening")]
    assert [one for state in states for one in line.event(state)] == states[2:]


def test_without_a_checkpoint_no_other_server_goes_on():
    line = Line()
    line.event(protocol.SpeechStarted(at_ms=0))
    assert not line.kept.can_move
    with pytest.raises(NotResumableError, match="no checkpoint"):
        line.kept.make_start()


def test_agent_of_the_session_goes_on():
    line = Line(agent="restaurant")
    line.event(protocol.Connected(session_id="s", output_sample_rate=8_000))
    assert line.kept.make_start() == protocol.Start(agent="restaurant", checkpoints=True)
    completed = protocol.Start(agent="restaurant", system_prompt="You take bookings.", checkpoints=True)
    line.checkpoint(settings=completed, audio_ms=0, handled=0)
    start = line.kept.make_start()
    assert (start.agent, start.system_prompt) == ("restaurant", "You take bookings.")


def test_before_the_first_word_the_session_begins_again():
    line = Line(replay_ms=100)
    for event in (
        protocol.Connected(session_id="s", output_sample_rate=8_000),
        protocol.AgentState(state="listening"),
    ):
        line.event(event)
    text = protocol.Text(text="hi")
    line.send(audio=bytes([1]) * 150 * 32)
    line.send(text)
    line.send(audio=bytes([2]) * 50 * 32)
    assert line.kept.can_move
    assert line.kept.make_start() == protocol.Start(checkpoints=True)
    # The new session's audio begins with what is kept of that of the old one.
    assert line.repeated() == [bytes([1]) * 50 * 32, text, bytes([2]) * 50 * 32]
    line.checkpoint(audio_ms=60, handled=1)
    assert line.repeated() == [bytes([2]) * 40 * 32]
    assert line.kept.make_start().resume.audio_ms == 60


def test_resumed_session_reports_listening_once():
    line = Line()
    listening = protocol.AgentState(state="listening")
    assert line.event(listening) == [listening]
    line.kept.go_on(CONNECTED)
    assert line.event(listening) == []


def test_a_state_that_no_server_would_take_is_not_sent():
    line = Line()
    line.checkpoint(history=[ChatMessage(role="user", content="x" * protocol.MAX_RESUME_BYTES)])
    with pytest.raises(NotResumableError, match="bytes"):
        line.kept.make_start()


def test_only_the_newest_responses_are_remembered():
    tracker = ResponseTracker(Clock())
    for number in range(20):
        tracker.on_event(audio(0, text=str(number), response_id=f"r{number}"))
    assert tracker.progress("r0") is None
    assert tracker.progress("r19") is not None
    assert len(tracker.unfinished()) == 8
