"""The protocol of ``voice_agent``: everything that a client and the agent say to each other.

One Triton sequence is one conversation. Every request carries at most one client message
(JSON, tensor ``MESSAGE``) and at most one piece of audio (raw bytes of mono PCM16 little
endian, tensor ``AUDIO``); the request with the START flag carries :class:`Start`, the one with
the END flag ends the call. Every response carries one server event (JSON, tensor ``EVENT``) and,
for :class:`Audio`, its samples (tensor ``AUDIO``, INT16).

All events travel on the response stream of the START request; every other request is answered
at once with an empty final response. Only START for a session that is open, and requests for one
that never was, get an ``error`` event of their own before it. Times are integers in milliseconds.
``*_at_ms`` counts the audio that the client has sent since START (chunks that were refused do not
count), so that a client can place events on its own recording.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

import msgspec

from parley.errors import InvalidMessageError, ParleyError

PROTOCOL_VERSION = 1
INPUT_SAMPLE_RATE = 16_000
OUTPUT_SAMPLE_RATES = (8_000, 16_000, 22_050, 24_000, 48_000)
MAX_CHUNK_MS = 1_000
MAX_ALTERNATIVES = 16
MAX_MESSAGE_BYTES = 256 * 1024
CANARY_PREFIX = "canary-"
"""Sessions whose id begins so are health checks: they take no place of a user's."""

TurnReason: TypeAlias = Literal[
    "sounds_complete",
    "sounds_incomplete",
    "text_finished",
    "text_unfinished",
    "not_scored",
    "no_words",
    "waited",
    "silence_limit",
    "turn_limit",
    "spoke_again",
    "requested",
]
TurnCue: TypeAlias = Literal[
    "digits",
    "email",
    "spelling",
    "conjunction",
    "preposition",
    "determiner",
    "filler",
    "opening",
    "punctuation",
    "phrase",
    "question",
    "",
]


class _Message(msgspec.Struct, frozen=True, tag_field="type", forbid_unknown_fields=True, omit_defaults=True):
    """Base of everything the client sends: unknown fields are errors, not silence.

    What is left at its default is not sent, so that an older server does not stumble over what it would not
    have to know.
    """


class _Event(msgspec.Struct, frozen=True, tag_field="type"):
    """Base of everything the server sends: clients ignore fields, and types of events, they do not know."""


class _AnyEvent(msgspec.Struct, frozen=True):
    type: str


# --- client to server -------------------------------------------------------------------


class Tool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A function that the agent may ask the client to run."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = {}
    """JSON schema of the arguments object."""


class VadOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When sound counts as the user speaking."""

    threshold: float = 0.5
    """Speech probability at which speech begins, 0-1."""
    onset_threshold: float | None = None
    """Speech probability at which the agent falls silent until it is known whether the user speaks; at most
    the threshold. Lower is sooner at words that begin softly, such as "stop". None: 0.15."""
    min_speech_ms: int = 96
    """Speech shorter than this is ignored (milliseconds)."""
    silence_ms: int | None = None
    """Silence that ends an utterance (milliseconds); whether it ends the user's turn too, ``turn`` says.
    None: 160 where pauses are judged, 300 where every pause ends the turn."""


class TurnOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a pause is the end of what the user has to say.

    Every pause of ``vad.silence_ms`` is judged by how it sounds and by what was said so far. Either the
    user's turn is over, or the agent waits for as long as the numbers say, and what the user says meanwhile
    belongs to the same turn; each time a :class:`TurnDecision` says why. The numbers replace those of the
    eagerness; all silence is counted from the end of speech.
    """

    eagerness: Literal["eager", "normal", "patient", "off"] | None = None
    """Off: every pause ends the turn. None: the server's choice, or ``normal`` if numbers are given and the
    server would choose ``off``."""
    threshold: float | None = None
    """Probability from which a turn sounds complete, 0-1."""
    complete_ms: int | None = None
    """Silence after a turn that sounds complete."""
    incomplete_ms: int | None = None
    """Silence after a turn that certainly does not; less in between."""
    unfinished_ms: int | None = None
    """Silence at least after words that something has to follow: "set a timer for", half a phone number."""
    limit_ms: int | None = None
    """Silence after which the turn is over in any case."""
    detection: Literal["auto", "manual"] = "auto"
    """``manual``: no pause ends the user's turn, and no speech interrupts the agent; the client says when,
    with :class:`Commit`, as where a key is held while one speaks."""
    answer: bool = True
    """False: a turn of the user goes into the history, and is answered when :class:`Respond` asks for it."""


class BargeInOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When the user's speech over the agent's is an interruption.

    The agent falls silent at the first sound of speech (:class:`Paused`). Then it either stops for good
    (:class:`Interrupted`), or it was a cough, an echo, an "mhm", and it goes on where it was
    (:class:`Resumed`).
    """

    enabled: bool = True
    """False: speech does not stop the agent; what would have been an interruption is answered afterwards."""
    min_speech_ms: int = 200
    """Speech shorter than this is no interruption, whatever its words (milliseconds); words that demand
    silence, such as "stop", are one at any length."""
    min_words: int = 1
    """Words that make an interruption; those of an "mhm" and those that the agent says itself do not count.
    0: speech alone is one."""
    pause_playback: bool = True
    """The client stops its loudspeaker at :class:`Paused` and lets it go on at :class:`Resumed`. False: it
    plays what it has, and gets neither event; :class:`SpeechIgnored` says which words did not count."""


class SilenceOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What happens while the user says nothing and the agent has nothing to say."""

    prompt_after_ms: int | None = None
    """Silence after which the agent speaks a prompt, each time anew. 0: never. None: the server's choice."""
    prompts: list[str] | None = None
    """Spoken in this order, the last one again and again. None: the server's."""
    hang_up_after_ms: int | None = None
    """Silence after which the call is closed, not counting the time that prompts take. 0: never. None: the
    server's choice."""


class SamplingOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the language model writes; None: the server's choice."""

    temperature: float | None = None
    """0-2; 0 takes the likeliest word each time."""
    top_p: float | None = None
    """Above 0, at most 1."""
    max_tokens: int | None = None
    """Of one answer; at most the server's own limit."""


class Start(_Message, frozen=True, tag="start", kw_only=True):
    """Opens the session; sent with the sequence's START flag."""

    system_prompt: str | None = None
    """None: the server's default prompt."""
    tools: list[Tool] = []
    voice: str | None = None
    """None: the synthesizer's default voice."""
    exaggeration: float | None = None
    """How much emotion the voice has, 0-2; 0.5 is neutral. None: the synthesizer's default.
    Synthesizers that have no such thing ignore it."""
    guidance_weight: float | None = None
    """How closely the voice keeps to the text's pace, 0-1; lower is slower and freer. None: the
    synthesizer's default. Synthesizers that have no such thing ignore it."""
    language: str = "en"
    phrases: list[str] = []
    """Names and words that the user is likely to say: the recogniser favours them."""
    phrase_weight: float = 1.0
    """How much, from 0 (not at all) to 10."""
    alternatives: int = 0
    """How many readings a final text should come with, the best included, at most 16. Recognisers that decode
    greedily have none."""
    input_sample_rate: int = INPUT_SAMPLE_RATE
    """Hertz. Only 16000 is accepted; resample on the client."""
    output: Literal["audio", "text"] = "audio"
    """``text``: the agent writes its answers and does not speak them."""
    output_sample_rate: int = 22_050
    """Hertz: one of 8000, 16000, 22050, 24000, 48000."""
    vad: VadOptions = VadOptions()
    turn: TurnOptions = TurnOptions()
    barge_in: BargeInOptions = BargeInOptions()
    silence: SilenceOptions = SilenceOptions()
    sampling: SamplingOptions = SamplingOptions()
    greeting: str | None = None
    """Said first, word for word. Empty: nothing. None: the server's greeting, if it has one."""
    describe: bool = False
    """Whether :class:`Connected` tells what the agent has."""


class ToolResponse(_Message, frozen=True, tag="tool_response", kw_only=True):
    """What a tool returned, in answer to a :class:`ToolRequest`."""

    call_id: str
    output: Any = None
    """Any JSON value; the language model reads it as JSON."""
    is_error: bool = False


class Control(_Message, frozen=True, tag="control", kw_only=True):
    """Mute (incoming audio is ignored), unmute, or end the call."""

    action: Literal["mute", "unmute", "hangup"]


class Playback(_Message, frozen=True, tag="playback", kw_only=True):
    """How much of a response the client has really played.

    Without these marks the agent assumes that audio is played at its own pace from the moment
    it was sent.
    """

    response_id: str
    played_ms: int
    """Milliseconds of that response's audio that have left the loudspeaker."""


class Text(_Message, frozen=True, tag="text", kw_only=True):
    """What the user typed: it is answered as if it had been said, and interrupts what the agent says."""

    text: str


class Dtmf(_Message, frozen=True, tag="dtmf", kw_only=True):
    """Keys that the user pressed.

    They become a turn of the user when ``#`` is pressed, or no further key for two seconds.
    """

    digits: str
    """One or more of ``0123456789*#ABCD``."""


class Say(_Message, frozen=True, tag="say", kw_only=True):
    """The agent is to say this, word for word, after what it is saying now.

    An interruption drops what waits to be said, but for what must not be interrupted.
    """

    text: str
    interruptible: bool = True
    """False: what the user says meanwhile is answered afterwards."""
    remember: bool = True
    """Whether the language model knows later that it was said."""


class Update(_Message, frozen=True, tag="update", kw_only=True):
    """Changes a session; what is left out stays as it is. Answered by :class:`Updated`, or an error.

    Fields mean what they do in :class:`Start`, and each replaces what was there as a whole. The answer that
    is under way goes on as it began; a turn of the user that has begun ends as it would have, unless
    ``turn.detection`` changes. ``turn.answer`` counts at once.
    """

    system_prompt: str | msgspec.UnsetType | None = msgspec.UNSET
    tools: list[Tool] | msgspec.UnsetType = msgspec.UNSET
    voice: str | msgspec.UnsetType | None = msgspec.UNSET
    exaggeration: float | msgspec.UnsetType | None = msgspec.UNSET
    guidance_weight: float | msgspec.UnsetType | None = msgspec.UNSET
    phrases: list[str] | msgspec.UnsetType = msgspec.UNSET
    phrase_weight: float | msgspec.UnsetType = msgspec.UNSET
    output: Literal["audio", "text"] | msgspec.UnsetType = msgspec.UNSET
    vad: VadOptions | msgspec.UnsetType = msgspec.UNSET
    turn: TurnOptions | msgspec.UnsetType = msgspec.UNSET
    barge_in: BargeInOptions | msgspec.UnsetType = msgspec.UNSET
    silence: SilenceOptions | msgspec.UnsetType = msgspec.UNSET
    sampling: SamplingOptions | msgspec.UnsetType = msgspec.UNSET


class Commit(_Message, frozen=True, tag="commit", kw_only=True):
    """The user's turn is over, whatever the pauses say; all audio sent before belongs to it.

    A :class:`TurnDecision` follows when its last text is there. The agent is interrupted if it speaks and the
    turn has words.
    """


class Discard(_Message, frozen=True, tag="discard", kw_only=True):
    """Forget what the user has said in the turn that is not over, all audio sent before included."""


class Respond(_Message, frozen=True, tag="respond", kw_only=True):
    """The agent is to answer what the history holds, without waiting for the user.

    It does so after what it is saying now and what waits to be said. An interruption drops it, as it drops
    what waits to be said.
    """

    system_prompt: str | None = None
    """In the place of the session's, for this answer only. None: the session's."""
    use_tools: bool = True
    """False: the language model may call none for this answer."""


class Remember(_Message, frozen=True, tag="remember", kw_only=True):
    """Adds to the history, as if it had been said, and is not answered."""

    role: Literal["user", "assistant", "system"]
    text: str


class Interrupt(_Message, frozen=True, tag="interrupt", kw_only=True):
    """The agent is to stop what it says or is about to say, and to forget what waits to be said.

    :class:`Interrupted` follows; nothing does if there was nothing to stop.
    """

    response_id: str | None = None
    """Only if it is this response. None: whichever."""


class Truncate(_Message, frozen=True, tag="truncate", kw_only=True):
    """Corrects how much of a response was heard, also after it is over or was interrupted.

    The agent remembers only that; :class:`Truncated` follows. A response that is being said is interrupted.
    Of the last few responses only, and not once they have been summarised.
    """

    response_id: str
    played_ms: int
    """Milliseconds of that response's audio that have left the loudspeaker."""


ClientMessage: TypeAlias = (
    Start
    | ToolResponse
    | Control
    | Playback
    | Text
    | Dtmf
    | Say
    | Update
    | Commit
    | Discard
    | Respond
    | Remember
    | Interrupt
    | Truncate
)


# --- server to client -------------------------------------------------------------------


class AgentDescription(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent of this server has."""

    recognizer: str
    """Name of the model that recognises speech."""
    language_model: str
    synthesizers: list[str]
    """Names of the models that speak, in order of preference; others may replace them when they fail."""
    languages: list[str]
    """What the synthesizers speak. The recogniser may understand less."""
    voices: list[str] | None = None
    """Names of all voices, the default first. None: they come and go."""
    tools: list[str] = []
    """Names of the server's own tools, which no tool of a client may have."""
    examples: list[str] = []
    """Things that a user may say to this agent; empty: whatever they like."""


class Connected(_Event, frozen=True, tag="connected", kw_only=True):
    """The session is open: audio may be sent."""

    session_id: str
    protocol_version: int = PROTOCOL_VERSION
    input_sample_rate: int = INPUT_SAMPLE_RATE
    output_sample_rate: int
    max_chunk_ms: int = MAX_CHUNK_MS
    greets: bool = False
    """Whether the agent speaks first: a greeting follows."""
    agent: AgentDescription | None = None
    """Only where `describe` asks for it."""


class Updated(_Event, frozen=True, tag="updated", kw_only=True):
    """An :class:`Update` counts from now on; they are answered in their order."""


class SpeechStarted(_Event, frozen=True, tag="speech_started", kw_only=True):
    """The user has begun to speak."""

    at_ms: int


class SpeechStopped(_Event, frozen=True, tag="speech_stopped", kw_only=True):
    """The user has fallen silent; the final transcript follows."""

    at_ms: int
    """Where the speech ended."""
    detected_at_ms: int
    """Where the silence had lasted long enough to be sure."""


class Word(msgspec.Struct, frozen=True, kw_only=True):
    """A recognised word."""

    text: str
    start_ms: int
    end_ms: int
    confidence: float
    """0-1."""


class Alternative(msgspec.Struct, frozen=True, kw_only=True):
    """One reading of what was said."""

    text: str
    score: float
    """Natural logarithm of its probability, phrases included, per token (the end counts as one)."""


class Transcript(_Event, frozen=True, tag="transcript", kw_only=True):
    """What the user said; partial texts of an utterance replace each other."""

    utterance: int
    """Counts the user's utterances from 1."""
    text: str
    is_final: bool
    confidence: float
    words: list[Word] = []
    alternatives: list[Alternative] = []
    """The best readings of a final text, if the session wants them; the first is the text itself."""
    first: int = 0
    """Of a final text that was read together with earlier utterances of the same turn: the first of them."""
    before: str = ""
    """What those said, in the light of this one: it takes the place of their texts."""


class TurnDecision(_Event, frozen=True, tag="turn_decision", kw_only=True):
    """What a pause of the user was taken for, and why.

    When ``turn.eagerness`` is off, only the end that a :class:`Commit` has asked for is told.

    A turn is waited for, resumed and waited for again until it is committed: then the agent answers
    all of its text.
    """

    utterance: int
    """The last one of the turn so far."""
    decision: Literal["wait", "resume", "commit"]
    """``wait``: the user may go on. ``resume``: the user does. ``commit``: the turn is over."""
    reason: TurnReason
    """``sounds_complete``, ``sounds_incomplete``: what the model heard counts. ``text_finished``,
    ``text_unfinished``: the words count. ``not_scored``: there was no score, so that the silence counts.
    ``no_words``: nothing was understood. ``waited``, ``silence_limit``: the silence lasted as long as was
    demanded, or as long as silence may. ``turn_limit``: the turn as a whole lasted too long.
    ``spoke_again``: with ``resume``. ``requested``: the client has said so."""
    text: str
    """The turn's words so far."""
    probability: float | None = None
    """That the turn is over, as the model heard it, 0-1."""
    cue: TurnCue = ""
    """What the end of the text is: the last two are finished, the others not. Empty: nothing of these."""
    cue_words: str = ""
    """The words that are this cue."""
    silence_ms: int = 0
    """Since the end of speech."""
    needed_ms: int = 0
    """Silence that ends the turn."""


class AgentState(_Event, frozen=True, tag="agent_state", kw_only=True):
    """What the agent is doing now."""

    state: Literal["listening", "processing", "speaking"]


class ResponseText(_Event, frozen=True, tag="response", kw_only=True):
    """A piece of the answer's text, as the language model writes it."""

    turn: int
    response_id: str
    text: str
    """To be appended to what came before."""


class ToolRequest(_Event, frozen=True, tag="tool_request", kw_only=True):
    """The client is to run a tool and answer with :class:`ToolResponse`."""

    turn: int
    call_id: str
    name: str
    arguments: dict[str, Any]


class ToolCancelled(_Event, frozen=True, tag="tool_cancelled", kw_only=True):
    """Nobody waits for this tool any more: stop it if that is possible; its response would be refused."""

    turn: int
    call_id: str
    reason: Literal["interrupted", "timeout", "closed"]


class ToolRun(_Event, frozen=True, tag="tool_run", kw_only=True):
    """The server has run a tool of its own; the client need do nothing."""

    turn: int
    call_id: str
    name: str
    arguments: dict[str, Any]
    is_error: bool
    duration_ms: float


class Audio(_Event, frozen=True, tag="audio", kw_only=True):
    """A piece of the agent's speech; its samples are in the ``AUDIO`` tensor."""

    turn: int
    response_id: str
    offset_ms: int
    """Where this piece begins in the response's audio."""
    sample_rate: int
    samples: int
    """0: the piece only brings words, after the last of their segment's audio."""
    text: str = ""
    """The words that begin in this piece."""


class Paused(_Event, frozen=True, tag="paused", kw_only=True):
    """The user may be speaking over the agent: stop the loudspeaker and keep what it has not played.

    :class:`Interrupted` or :class:`Resumed` of the same response follows.
    """

    turn: int
    response_id: str
    at_ms: int
    """Where in the user's audio the sound began."""


class Resumed(_Event, frozen=True, tag="resumed", kw_only=True):
    """It was no interruption: play on."""

    turn: int
    response_id: str
    reason: Literal["noise", "backchannel", "echo", "too_short", "too_few_words", "no_words"]
    """``noise``: it was over before it could be speech. ``backchannel``: an "mhm" or the like. ``echo``: the
    agent's own words. ``too_short``, ``too_few_words``: less than the session demands. ``no_words``: nothing
    was understood."""
    text: str = ""
    """What was heard of it; it is no turn of the user."""


class SpeechIgnored(_Event, frozen=True, tag="speech_ignored", kw_only=True):
    """Words that the user has said over the agent are no turn of the user, and are not answered.

    Only where no :class:`Resumed` says so, because the client was not asked to pause.
    """

    reason: Literal["backchannel", "echo", "too_short", "too_few_words", "no_words"]
    """As in :class:`Resumed`."""
    text: str


class Interrupted(_Event, frozen=True, tag="interrupted", kw_only=True):
    """The user spoke over the agent: drop all audio of this response that is not yet played."""

    turn: int
    response_id: str
    played_ms: int
    spoken_text: str
    """The part of the answer that was heard; all that the agent remembers of it."""
    reason: Literal["words", "speech", "command", "input", "client"] = "words"
    """``words``, ``speech``: the user said enough, or spoke long enough. ``command``: "stop" or the like.
    ``input``: typed text, keys, or a turn that the client has ended. ``client``: it asked for it."""


class Truncated(_Event, frozen=True, tag="truncated", kw_only=True):
    """What a response is remembered as has been corrected."""

    response_id: str
    played_ms: int
    spoken_text: str
    """The part of the answer that was heard; all that the agent remembers of it."""


class ResponseDone(_Event, frozen=True, tag="response_done", kw_only=True):
    """A response is complete: no more text or audio of it follows.

    Every response ends with it, also one that failed or had nothing to say, unless it was
    interrupted before. While its last audio is being played it may still be interrupted.
    """

    turn: int
    response_id: str
    audio_ms: int
    """Milliseconds of audio that were sent; 0: none."""
    finish_reason: Literal["stop", "length"] = "stop"
    """``length``: the language model had more to say than ``max_tokens`` allow. Its last sentence is not
    whole, and is not spoken unless it is the only one; then its whole words are."""


class TurnMetrics(_Event, frozen=True, tag="metrics", kw_only=True):
    """Where the time of one turn went. None: that stage did not run."""

    turn: int
    asr_final_ms: float | None = None
    """Detection of silence to the final transcript."""
    end_of_turn_ms: float | None = None
    """Final transcript to the decision that the user's turn is over."""
    llm_first_token_ms: float | None = None
    """That decision to the language model's first token."""
    llm_total_ms: float | None = None
    tool_ms: float | None = None
    """Time spent waiting for tools."""
    tts_first_audio_ms: float | None = None
    """First speakable segment to its first audio."""
    first_audio_ms: float | None = None
    """Detection of silence to the first audio sent."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    interrupted: bool = False
    speculations: int = 0
    """Answers that were begun before it was certain that the user's turn was over; all but at most one were
    thrown away."""
    speculated: bool = False
    """Whether this answer is one of them."""


class ErrorEvent(_Event, frozen=True, tag="error", kw_only=True):
    """Something went wrong; the session goes on unless :class:`Closed` follows."""

    code: str
    message: str
    retryable: bool
    tools_ran: bool = False
    """Whether a tool had been run in the turn that failed: its effects remain, and are in the history. Do not
    simply repeat the turn."""

    @classmethod
    def of(cls, error: ParleyError, *, tools_ran: bool = False) -> ErrorEvent:
        """The event that reports ``error``."""
        return cls(code=error.code, message=str(error), retryable=error.retryable, tools_ran=tools_ran)


class Closed(_Event, frozen=True, tag="closed", kw_only=True):
    """The last event of a session."""

    reason: Literal["ended", "hangup", "disconnected", "idle", "silence", "shutdown", "failed"]
    """``ended``, ``hangup``: as the client wished. ``idle``: neither audio nor messages came and the agent
    had nothing to say, or nothing showed that the audio that was sent is read.
    ``silence``: the user said nothing for too long. ``disconnected``: the client was lost. ``shutdown``: the
    server stops. ``failed``: the session could not be opened, or could not go on."""


ServerEvent: TypeAlias = (
    Connected
    | Updated
    | SpeechStarted
    | SpeechStopped
    | Transcript
    | TurnDecision
    | AgentState
    | ResponseText
    | ToolRequest
    | ToolCancelled
    | ToolRun
    | Audio
    | Paused
    | Resumed
    | SpeechIgnored
    | Interrupted
    | Truncated
    | ResponseDone
    | TurnMetrics
    | ErrorEvent
    | Closed
)

_encoder = msgspec.json.Encoder()
_messages: msgspec.json.Decoder[ClientMessage] = msgspec.json.Decoder(ClientMessage)
_events: msgspec.json.Decoder[ServerEvent] = msgspec.json.Decoder(ServerEvent)
_any_events = msgspec.json.Decoder(_AnyEvent)
_event_types = frozenset(kind.__struct_config__.tag for kind in get_args(ServerEvent))


def encode(message: ClientMessage | ServerEvent) -> bytes:
    """Write a message or event as JSON."""
    return _encoder.encode(message)


def decode_message(raw: bytes) -> ClientMessage:
    """Read a client message.

    Raises:
        InvalidMessageError: not JSON, too large, an unknown type or field, or a wrong value.
    """
    if len(raw) > MAX_MESSAGE_BYTES:
        raise InvalidMessageError(f"message of {len(raw)} bytes; at most {MAX_MESSAGE_BYTES} are allowed")
    try:
        return _messages.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidMessageError(f"message cannot be read: {error}") from error


def decode_event(raw: bytes) -> ServerEvent:
    """Read a server event.

    Raises:
        InvalidMessageError: not an event of this protocol version.
    """
    try:
        return _events.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidMessageError(f"event cannot be read: {error}") from error


def unknown_type(raw: bytes) -> str | None:
    """The type of an event, if this version of the protocol does not have it."""
    try:
        kind = _any_events.decode(raw).type
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return None if kind in _event_types else kind
