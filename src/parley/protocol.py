"""The protocol of ``voice_agent``: all messages of a client and all events of the agent.

One Triton sequence is one conversation. Every request carries at most one client message
(JSON, tensor ``MESSAGE``) and at most one piece of audio (raw bytes of mono PCM16 little
endian, tensor ``AUDIO``); the request with the START flag carries :class:`Start`, the one with
the END flag ends the call. Every response carries one server event (JSON, tensor ``EVENT``) and,
for :class:`Audio`, its samples (tensor ``AUDIO``, INT16).

All events travel on the response stream of the START request; every other request is answered
at once with an empty final response. Two kinds of request get an ``error`` event of their own before
it: START for a session that is open, and any request for a session that does not exist. Times are
integers in milliseconds.
``*_at_ms`` counts the audio that the client has sent since START (chunks that were refused do not
count), so that a client can place events on its own recording.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias, get_args

import msgspec

from parley.checkpoint import CHECKPOINT_VERSION, DecidedState, HistoryState, Resume, SessionState
from parley.errors import CheckpointVersionError, InvalidMessageError, ParleyError, Stage, from_wire
from parley.field_errors import describe_field_error

PROTOCOL_VERSION = 1
INPUT_SAMPLE_RATE = 16_000
OUTPUT_SAMPLE_RATES = (8_000, 16_000, 22_050, 24_000, 48_000)
MAX_CHUNK_MS = 1_000
MAX_ALTERNATIVES = 16
MAX_TOOL_PROGRESS = 100
"""Reports of progress of one tool call."""
MAX_PROGRESS_CHARACTERS = 4_000
"""Of one report, as JSON."""
MAX_MESSAGE_BYTES = 256 * 1024
MAX_RESUME_BYTES = 1024 * 1024
"""Of a :class:`Start` with ``resume``."""
CANARY_PREFIX = "canary-"
"""Prefix of the session ids of health checks, which do not count towards the limit of sessions."""

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
CloseReason: TypeAlias = Literal[
    "ended",
    "hangup",
    "agent_ended",
    "transferred",
    "disconnected",
    "idle",
    "silence",
    "shutdown",
    "failed",
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


HeldBack: TypeAlias = Literal["number", "time", "date", "price", "name", "code", "address", "call"]
"""Why text of the language model is not passed on: a figure or a name that no source has, or a tool call that
was written as text."""


class _Message(msgspec.Struct, frozen=True, tag_field="type", forbid_unknown_fields=True, omit_defaults=True):
    """Base of all client messages. Unknown fields are errors.

    Fields with their default value are not sent: an older server accepts a message whose new fields are
    unused.
    """


class _Event(msgspec.Struct, frozen=True, tag_field="type"):
    """Base of all server events. Clients ignore unknown fields and unknown types."""


class _AnyEvent(msgspec.Struct, frozen=True):
    type: str


class _AnyState(msgspec.Struct, frozen=True):
    version: int = CHECKPOINT_VERSION


class _AnyResume(msgspec.Struct, frozen=True):
    state: _AnyState = _AnyState()


class _AnyStart(msgspec.Struct, frozen=True):
    """What every version of the protocol has in a :class:`Start` that goes on."""

    resume: _AnyResume | None = None


# --- client to server -------------------------------------------------------------------


class Tool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A function that the client runs when the agent requests it."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = {}
    """JSON schema of the arguments object."""
    mode: Literal["blocking", "background"] = "blocking"
    """``blocking``: the answer waits for the result. ``background``: the conversation goes on, and the
    language model reads the result when it has come and neither side has a turn."""
    announce: bool = True
    """Whether the agent speaks by itself when a result has come in the background. False: the language
    model reads it with the next prompt."""
    cancel_on_interruption: bool | None = None
    """Whether an interruption of the agent cancels the call; otherwise it goes on in the background. None:
    it does if the tool is ``blocking``."""


class VadOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When audio counts as speech of the user."""

    threshold: float = 0.5
    """Speech probability at which speech begins, 0-1."""
    onset_threshold: float | None = None
    """Speech probability that pauses the agent until speech is confirmed or refuted; at most
    ``threshold``. None: 0.15."""
    min_speech_ms: int = 96
    """Speech shorter than this is ignored (milliseconds)."""
    silence_ms: int | None = None
    """Silence that ends an utterance (milliseconds). None: 160 where pauses are scored, 300 where every
    pause ends the turn."""
    ignore_background: bool | None = None
    """Whether talk that goes on behind the caller's, some 10 dB softer, is silence. None: the server's
    default."""


class TurnOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a pause ends the user's turn (endpointing).

    Every pause of ``vad.silence_ms`` is scored by the turn model and by the words so far. Either the turn
    ends, or the agent waits for one of the silences below, and further speech belongs to the same turn. A
    :class:`TurnDecision` reports each decision. Numbers given here replace those of the eagerness. All
    silences are counted from the end of speech, in milliseconds.
    """

    eagerness: Literal["eager", "normal", "patient", "off"] | None = None
    """``off``: every pause ends the turn. None: the server's default, or ``normal`` if numbers are given and
    the server's default is ``off``."""
    threshold: float | None = None
    """Probability from which a turn sounds complete, 0-1."""
    complete_ms: int | None = None
    """Silence after a turn that sounds complete."""
    incomplete_ms: int | None = None
    """Silence after a turn that scores 0; interpolated between 0 and the threshold."""
    unfinished_ms: int | None = None
    """Minimum silence after words that need a continuation: "set a timer for", half a phone number."""
    limit_ms: int | None = None
    """Silence that ends the turn in any case."""
    adapts: bool | None = None
    """Whether long pauses of the caller lengthen later silences, by at most 300 ms. None: the server's
    default."""
    detection: Literal["auto", "manual"] = "auto"
    """``manual``: no pause ends the user's turn and no speech interrupts the agent; the client ends the turn
    with :class:`Commit` (push to talk)."""
    one_caller: bool | None = None
    """Whether only the voice that opened the call has turns, until the caller hands over ("here is my wife");
    what others say is a :class:`SpeechIgnored` or :class:`Resumed`. Not with manual turns. None: the
    server's default."""
    answer: bool = True
    """False: a turn of the user goes into the history and is answered only after :class:`Respond`."""


class BargeInOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When the user's speech over the agent's is an interruption.

    The first sound of speech pauses the agent (:class:`Paused`). Then the response is either stopped
    (:class:`Interrupted`), or continued where it was paused (:class:`Resumed`): after a cough, an echo, or a
    backchannel such as "mhm".
    """

    enabled: bool = True
    """False: speech does not stop the agent; the user's words are answered after the response."""
    min_speech_ms: int = 200
    """Shorter speech is no interruption (milliseconds), except for commands such as "stop"."""
    min_words: int = 1
    """Number of words that make an interruption. Backchannels and the agent's own words do not count. 0:
    speech alone is an interruption."""
    pause_playback: bool = True
    """The client pauses playback at :class:`Paused` and continues at :class:`Resumed`. False: the client
    plays on and gets neither event; :class:`SpeechIgnored` reports words that were no interruption."""


class SilenceOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What happens while neither the user nor the agent speaks."""

    prompt_after_ms: int | None = None
    """Silence after which the agent speaks a prompt; counted again after each. 0: never. None: the server's
    default."""
    prompts: list[str] | None = None
    """Spoken in this order; the last one is repeated. None: the server's prompts."""
    hang_up_after_ms: int | None = None
    """Silence after which the call is closed, without the duration of prompts. 0: never. None: the server's
    default."""


class SamplingOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sampling of the language model. None: the server's default."""

    temperature: float | None = None
    """0-2; 0 is greedy decoding."""
    top_p: float | None = None
    """Above 0, at most 1."""
    max_tokens: int | None = None
    """Per answer; at most the server's own limit."""


TRANSFER_ADDRESS = (
    r"^(|\+[1-9][0-9]{6,14}|sips?:[A-Za-z0-9._~+%-]{1,64}@[A-Za-z0-9.:-]{1,128}"
    r"(;transport=(udp|tcp|tls))?)(?!\n)$"
)
"""Form of ``TransferTarget.to``."""


Name: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{1,64}(?!\n)$")]
"""Letters, digits, - and _, at most 64."""


class TransferTarget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whom the language model can transfer a call to."""

    name: Name
    """What the language model calls it: letters, digits, - and _, at most 64."""
    to: Annotated[str, msgspec.Meta(pattern=TRANSFER_ADDRESS)] = ""
    """Number (``+493012345678``) or SIP address (``sip:desk@example.com``), which the language model does not
    get. Empty: the client finds it by the name."""
    description: Annotated[str, msgspec.Meta(max_length=500)] = ""
    """For the language model: when to transfer a call to it (at most 500 characters)."""
    warm: bool = False
    """Whether the person is to hear the summary before being connected."""


class EndingOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the language model can end the call: by tools that the agent runs itself.

    The answer is spoken to its end first. If the user speaks before that, the call goes on.
    """

    end_call: bool = False
    """Whether the language model gets the tool ``end_call``."""
    transfers: Annotated[list[TransferTarget], msgspec.Meta(max_length=32)] = []
    """Targets of the tool ``transfer``, at most 32. Empty: the language model does not get it."""


MAX_STEPS = 32


class StepDecision(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An answer to a question about the conversation (:class:`Decision`)."""

    name: Name
    """Of the question."""
    value: Annotated[str, msgspec.Meta(max_length=200)]
    probability: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = 0.5
    """The least one that counts."""


class Transition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A way from one step to another; it has one of the three conditions."""

    to: Name
    """Name of the other step."""
    when: Annotated[str, msgspec.Meta(max_length=500)] = ""
    """For the language model, which has the tool ``go_to_step``: when to take it (at most 500 characters)."""
    collected: Annotated[list[Name], msgspec.Meta(max_length=64)] = []
    """All of these fields have values."""
    decision: StepDecision | None = None
    """This answer was given during the step."""


class Step(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A part of a conversation with instructions and tools of its own."""

    name: Name
    """Letters, digits, - and _, at most 64."""
    instructions: str = ""
    """For the language model, behind the system prompt."""
    tools: Annotated[list[Name], msgspec.Meta(max_length=128)] | None = None
    """Names of the tools that the language model gets, also of ``end_call`` and ``transfer``. None: all."""
    voice: str | None = None
    """From the next turn of the agent on. None: the session's."""
    collect: Annotated[list[Name], msgspec.Meta(max_length=64)] | None = None
    """Names of the data that are asked for here, in this order. None: all, if the language model asks."""
    next: Annotated[list[Transition], msgspec.Meta(max_length=16)] = []
    """The ways to other steps, at most 16; of several whose conditions hold, the first is taken."""
    history: Literal["keep", "reset", "summary"] = "keep"
    """What the language model gets of earlier exchanges. ``reset``: only the collected data. ``summary``: a
    summary, once it is made."""


MAX_DECISIONS = 16
"""Questions of one session."""


class DecisionQuestion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A question about the conversation that the language model answers beside its answers to the user.

    It costs the user no time: it is asked when the agent's answer is complete and its first audio was sent.
    """

    name: Name
    """Names the :class:`Decision`: letters, digits, - and _, at most 64."""
    question: Annotated[str, msgspec.Meta(min_length=1, max_length=300)]
    """For the language model, such as ``Is the user angry?`` (at most 300 characters)."""
    kind: Literal["yes_no", "choice", "score"] = "yes_no"
    """``yes_no``: the answers are ``yes`` and ``no``. ``choice``: those of ``options``. ``score``: ``1`` (not
    at all) to ``5`` (very much)."""
    options: Annotated[
        list[Annotated[str, msgspec.Meta(min_length=1, max_length=64)]], msgspec.Meta(max_length=16)
    ] = []
    """Answers of a ``choice``: 2 to 16, which begin with different words, at most 64 characters each."""
    at: Annotated[
        list[Annotated[str, msgspec.Meta(min_length=1, max_length=64)]],
        msgspec.Meta(max_length=32),
    ] = []
    """When it is asked. ``turn``: with every answer of the language model. ``end``: before the session ends.
    Else the name of a step: with the answers in that step. Empty: ``turn``."""
    context: Annotated[int, msgspec.Meta(ge=0, le=100)] = 0
    """How many of the last exchanges the language model reads. 0: all that it reads for an answer, which is
    the quickest: it is in the prefix cache. At most three different values in one session."""
    answer: Annotated[str, msgspec.Meta(max_length=64)] = ""
    """The answer that ``ends`` and ``transfer`` wait for. Empty: ``yes``."""
    threshold: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.9
    """Its probability from which they act, 0-1."""
    ends: bool = False
    """Whether the call ends behind the turn in which the question gets that answer; not at ``end``."""
    transfer: Annotated[str, msgspec.Meta(max_length=64)] = ""
    """Name of a target of ``ending.transfers`` that the call is then transferred to. Empty: none."""

    @property
    def answers(self) -> list[str]:
        """All answers that it may get."""
        if self.kind == "choice":
            return list(self.options)
        return ["yes", "no"] if self.kind == "yes_no" else ["1", "2", "3", "4", "5"]


CollectKind: TypeAlias = Literal["name", "date", "time", "number", "phone", "email", "code", "choice", "text"]
"""What kind of value a field has."""


class CollectField(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A value that the agent asks the user for, and that rules read, not the language model.

    The language model begins it by calling the tool ``collect``. Only English is read.
    """

    name: Name
    """Letters, digits, - and _, at most 64."""
    kind: CollectKind
    """``date``: ISO 8601. ``time``: ``HH:MM``. ``phone``: digits, perhaps with + in front. ``code``: letters
    and digits. ``choice``: one of ``values``. ``text``: the user's words as they are."""
    description: Annotated[str, msgspec.Meta(max_length=500)] = ""
    """For the language model: what it is and when to ask for it (at most 500 characters)."""
    label: Annotated[str, msgspec.Meta(max_length=80)] = ""
    """What the agent calls it in questions: ``phone number`` (at most 80 characters). Empty: the name, with
    spaces."""
    values: Annotated[
        list[Annotated[str, msgspec.Meta(min_length=1, max_length=60)]], msgspec.Meta(max_length=64)
    ] = []
    """Known values, at most 64 of 60 characters; the nearest one is taken. For ``name``, ``choice``, ``code``
    and ``phone``."""
    pattern: Annotated[str, msgspec.Meta(max_length=64)] = ""
    """Form of a code or number: ``A`` is a letter, ``9`` a digit, ``?`` either; all else is written as it is:
    ``AA-9999``."""
    length: Annotated[int, msgspec.Meta(ge=0, le=64)] = 0
    """Letters and digits of a code, phone number or number. 0: any number of them."""
    check: Literal["", "luhn", "iban", "isbn", "ean"] = ""
    """Check digits that a code or number must have."""
    confirm: Literal["read_back", "if_unsure", "never"] = "read_back"
    """Whether the value is read back and the user asked whether it is right. ``if_unsure``: only where
    another value is almost as likely, or the recogniser is not sure."""
    phrases: Annotated[
        list[Annotated[str, msgspec.Meta(min_length=1, max_length=64)]], msgspec.Meta(max_length=100)
    ] = []
    """Names and words that the recogniser favours while the value is asked for, as ``values`` are: at most
    100 of 64 characters. Those for which ``phrases`` of the session leave no room are not favoured."""


TRACEPARENT = r"^(|[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2})$"
"""Form of ``Start.traceparent``."""


MAX_LANGUAGE = 35
"""Characters of a language tag: as many as RFC 5646 asks for."""
Language: TypeAlias = Annotated[str, msgspec.Meta(max_length=MAX_LANGUAGE)]
"""A language tag, such as ``en`` or ``pt-BR``."""
MAX_AGENT_NAME = 63
"""Characters of an agent's name."""
AGENT_NAME = rf"(?!gpt-|parley$)[a-z0-9][a-z0-9_-]{{0,{MAX_AGENT_NAME - 1}}}"
"""Regular expression for the whole name of an agent. OpenAI's clients choose agents as models: names of their
models mean the server's own agent.
"""
AGENT_NAME_RULE = (
    f"an agent's name has 1 to {MAX_AGENT_NAME} of a-z 0-9 _ -, begins with none of _ -, "
    "and is not parley or gpt-..."
)


ANY_TOOL = "*"
"""In the place of a tool's name: any of them."""
MustCall: TypeAlias = Annotated[str, msgspec.Meta(max_length=64)]
"""Name of a tool, or :data:`ANY_TOOL`; empty: the model chooses."""


class Start(_Message, frozen=True, tag="start", kw_only=True):
    """Opens the session; sent with the sequence's START flag."""

    agent: Annotated[str, msgspec.Meta(max_length=MAX_AGENT_NAME)] = ""
    """Name of an agent that this server defines (:attr:`AgentDescription.agents`). Options that have their
    default value here are the definition's; in a session that goes on all are those of ``Start``. Empty: the
    server's own agent. An unknown name: ``unknown_agent``."""
    system_prompt: str | None = None
    """None: the server's default prompt."""
    tools: list[Tool] = []
    must_call: MustCall = ""
    """Tool that each answer calls before it speaks; ``*``: any. If it cannot be called, the answer fails."""
    voice: str | None = None
    """None: the synthesizer's default voice."""
    exaggeration: float | None = None
    """Intensity of emotion, 0-2; 0.5 is neutral. None: the synthesizer's default. Not all synthesizers
    have it."""
    guidance_weight: float | None = None
    """Weight of classifier-free guidance, 0-1; lower is slower and freer. None: the synthesizer's
    default. Not all synthesizers have it."""
    language: Language = "en"
    """What the user and the agent speak: a tag such as ``en`` or ``pt-BR``, of at most 35 characters.
    The first recogniser and the first synthesizer that have the language serve the session, without the
    region if they do not tell regions apart; otherwise ``unsupported_language``. Empty: what the first
    recogniser detects, or its first language, and the first language of the first synthesizer."""
    phrases: list[str] = []
    """Names and words that the recogniser favours (keyterm boosting)."""
    phrase_weight: float = 1.0
    """Strength of the boosting, 0 (none) to 10."""
    alternatives: int = 0
    """Number of n-best hypotheses of a final transcript, at most 16. Recognisers that decode greedily
    have none."""
    input_sample_rate: int = INPUT_SAMPLE_RATE
    """In Hz. Only 16000 is accepted; resample on the client."""
    output: Literal["audio", "text"] = "audio"
    """``text``: answers are sent as text only."""
    output_sample_rate: int = 22_050
    """In Hz: one of 8000, 16000, 22050, 24000, 48000."""
    vad: VadOptions = VadOptions()
    turn: TurnOptions = TurnOptions()
    barge_in: BargeInOptions = BargeInOptions()
    silence: SilenceOptions = SilenceOptions()
    sampling: SamplingOptions = SamplingOptions()
    ending: EndingOptions = EndingOptions()
    steps: Annotated[list[Step], msgspec.Meta(max_length=MAX_STEPS)] = []
    """Parts of the conversation, at most 32; it begins with the first. Empty: it has no parts."""
    decisions: Annotated[list[DecisionQuestion], msgspec.Meta(max_length=MAX_DECISIONS)] = []
    """Questions about the conversation, at most 16; each answer is a :class:`Decision`."""
    facts: Literal["off", "strict"] = "off"
    """``strict``: the language model says no number, time, date, price, name or code that is not in the
    system prompt, a tool's result, the user's words or a text of the client. It is held back, and the model
    asked once more; then a fixed sentence is said."""
    collect: Annotated[list[CollectField], msgspec.Meta(max_length=64)] = []
    """Values that the agent can ask the user for, at most 64; their names differ."""
    greeting: str | None = None
    """Spoken verbatim at the start. Empty: no greeting. None: the server's greeting, if it has one."""
    cache_salt: Annotated[str, msgspec.Meta(max_length=128)] = ""
    """Sessions with one salt (at most 128 characters) share the language model's prefix cache. Empty:
    the session shares it with no other. The gateway sets it for each key."""
    owner: Annotated[str, msgspec.Meta(max_length=128, pattern=r"^[^\x00]*$")] = ""
    """Whose call it is, kept with its recording. The gateway sets it for each key."""
    test: bool = False
    """Whether it is a call of a test: it is not recorded, and no webhook learns of it."""
    traceparent: Annotated[str, msgspec.Meta(pattern=TRACEPARENT)] = ""
    """W3C Trace Context of the caller, for the session's spans. Empty: the session is a trace of its
    own."""
    describe: bool = False
    """Whether :class:`Connected` contains the agent's description."""
    checkpoints: bool = False
    """Whether :class:`Checkpoint` and :class:`GoAway` are sent."""
    resume: Resume | None = None
    """The session goes on where another one has ended. None: it is a new one."""

    @property
    def voices(self) -> list[str | None]:
        """The session's voice, and those of its steps."""
        return [self.voice, *(step.voice for step in self.steps)]


class ToolResponse(_Message, frozen=True, tag="tool_response", kw_only=True):
    """The result of a :class:`ToolRequest`."""

    call_id: str
    output: Any = None
    """Any JSON value; the language model reads it as JSON. A text that is a JSON object or array is read as
    that."""
    is_error: bool = False
    final: bool = True
    """False: a report of progress; the result is still to come. The client gets it as
    :class:`ToolProgress`, at most 100 times for one call and with an ``output`` of at most 4,000 characters
    of JSON; the language model does not read it."""


class Control(_Message, frozen=True, tag="control", kw_only=True):
    """Mute (incoming audio is ignored), unmute, or end the call."""

    action: Literal["mute", "unmute", "hangup"]


class Playback(_Message, frozen=True, tag="playback", kw_only=True):
    """How much of a response the client has played.

    Without these messages the agent assumes that audio is played in real time from the moment it was sent.
    """

    response_id: str
    played_ms: int
    """Milliseconds of the response's audio that were played."""


class Text(_Message, frozen=True, tag="text", kw_only=True):
    """Typed text of the user. It is answered like speech and interrupts the agent."""

    text: str


class Dtmf(_Message, frozen=True, tag="dtmf", kw_only=True):
    """Keys that the user pressed.

    They become a turn of the user at ``#``, or two seconds after the last key.
    """

    digits: str
    """One or more of ``0123456789*#ABCD``."""


class Say(_Message, frozen=True, tag="say", kw_only=True):
    """The agent speaks this text verbatim, after the response that is being spoken.

    An interruption drops queued texts that are interruptible.
    """

    text: str
    interruptible: bool = True
    """False: speech of the user meanwhile is answered afterwards."""
    remember: bool = True
    """Whether the text is added to the history."""


class Update(_Message, frozen=True, tag="update", kw_only=True):
    """Changes a session. Omitted fields stay as they are. Answered by :class:`Updated`, or an error.

    Fields mean what they do in :class:`Start`; each replaces the previous value as a whole. A response that
    is under way is not changed. A turn of the user that has begun ends by the previous options, unless
    ``turn.detection`` changes. ``turn.answer`` applies at once. What has no field here, such as ``ending``,
    stays as it was at the beginning.

    An update takes effect at once, unless its voice has to be looked up, or a session has sent more than 32
    KiB of updates, each counted as 1 KiB at least; those beyond take effect at 8 KiB a second. At most 16
    wait, and others are refused with ``overloaded``.
    """

    system_prompt: str | msgspec.UnsetType | None = msgspec.UNSET
    tools: list[Tool] | msgspec.UnsetType = msgspec.UNSET
    must_call: MustCall | msgspec.UnsetType = msgspec.UNSET
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
    facts: Literal["off", "strict"] | msgspec.UnsetType = msgspec.UNSET


class Commit(_Message, frozen=True, tag="commit", kw_only=True):
    """Ends the user's turn; all audio sent before belongs to it.

    A :class:`TurnDecision` follows after the turn's last transcript. The agent is interrupted if it speaks
    and the turn has words.
    """


class Discard(_Message, frozen=True, tag="discard", kw_only=True):
    """Drops the user's turn that is not over, with all audio sent before."""


class Respond(_Message, frozen=True, tag="respond", kw_only=True):
    """The agent answers the history, without a new turn of the user.

    The response comes after those that are spoken or queued. An interruption drops it like queued texts.
    """

    system_prompt: str | None = None
    """Replaces the session's prompt for this answer only. None: the session's."""
    use_tools: bool = True
    """False: the language model gets no tools for this answer."""
    must_call: MustCall | None = None
    """None: the session's."""


class Remember(_Message, frozen=True, tag="remember", kw_only=True):
    """Adds a message to the history. It is not answered."""

    role: Literal["user", "assistant", "system"]
    text: str


class Interrupt(_Message, frozen=True, tag="interrupt", kw_only=True):
    """Stops the response that is spoken or prepared, and drops those that wait.

    :class:`Interrupted` follows, unless there was nothing to stop.
    """

    response_id: str | None = None
    """Stops only this response; those that wait follow it. None: any, and those that wait are dropped."""


class Truncate(_Message, frozen=True, tag="truncate", kw_only=True):
    """Corrects how much of a response was played, also after it is over or was interrupted.

    The history keeps only the words that were played; :class:`Truncated` follows. A response that is being
    spoken is interrupted. Works for the last few responses, until they are summarised.
    """

    response_id: str
    played_ms: int
    """Milliseconds of the response's audio that were played."""


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


class AgentSummary(msgspec.Struct, frozen=True, kw_only=True):
    """An agent that a server defines, for those who choose among several."""

    name: str
    """The value of ``Start.agent``."""
    title: str
    """Its name for users."""
    language: str = "en"
    """As in :class:`Start`."""
    voice: str = ""
    """Empty: the synthesizer's default voice."""
    colour: str = ""
    """Accent colour of a page, such as ``#0a7d5a``. Empty: the page's own."""
    numbers: list[str] = []
    """Telephone numbers whose calls it takes: E.164, such as ``+493012345678``."""


class AgentDescription(msgspec.Struct, frozen=True, kw_only=True):
    """The models, voices and tools of this server's agent."""

    recognizer: str
    """Name of the model that recognises this session's speech."""
    recognizers: list[str] = []
    """Names of all such models, in order of preference."""
    language_model: str
    """Name of the weights of the language model that answers, or of the model at the remote chat server."""
    language_models: list[str] = []
    """Names of all of them, in order of preference; later ones answer where those before them fail."""
    demonstration: bool = False
    """Whether the language model that answers is a demonstration, which is often wrong."""
    synthesizers: list[str]
    """Names of the synthesizers, in order of preference; later ones replace those that fail."""
    languages: list[str]
    """Languages of the synthesizers. The recognisers may support fewer."""
    recognized_languages: list[str] | None = None
    """Languages of the recognisers. None: unknown."""
    unavailable_recognizers: list[str] | None = None
    """Recognisers that did not answer: ``recognized_languages`` lacks theirs. None: unknown."""
    voices: list[str] | None = None
    """Names of all voices, the default first. None: voices are enrolled at run time."""
    tools: list[str] = []
    """Names of the server's own tools. A client's tool must have another name."""
    examples: list[str] = []
    """Examples of requests for this agent."""
    default_prompt: bool = False
    """Whether the system prompt is Parley's own, which a client's demo tools fit."""
    agents: list[AgentSummary] = []
    """The agents that this server defines, by name."""


class Connected(_Event, frozen=True, tag="connected", kw_only=True):
    """The session is open: audio may be sent."""

    session_id: str
    protocol_version: int = PROTOCOL_VERSION
    input_sample_rate: int = INPUT_SAMPLE_RATE
    output_sample_rate: int
    max_chunk_ms: int = MAX_CHUNK_MS
    text_tokens: int = 0
    """Limit for a text to ``remember`` and the prompt of a ``respond``, in estimated tokens: a third of
    its bytes of UTF-8, where a digit counts as three. 0: unknown."""
    greets: bool = False
    """Whether the agent speaks first: a greeting follows."""
    resumed: bool = False
    """Whether this session goes on where another one has ended (``Start.resume``)."""
    agent: AgentDescription | None = None
    """Only with ``describe``."""


class Checkpoint(_Event, frozen=True, tag="checkpoint", kw_only=True, omit_defaults=True):
    """What the session needs to go on elsewhere. Sent if ``Start.checkpoints`` asks for it, at every change.

    The client keeps the latest ``settings``, ``history`` and ``state``, and sends them in ``Start.resume``
    of the session that goes on. Then it sends what the state does not contain: its audio from
    ``state.audio_ms`` on, and its messages behind ``state.handled`` and in ``state.unfinished``, each behind
    the audio behind which it was sent before. The messages get new numbers, behind ``state.handled``.
    """

    state: SessionState
    settings: Start | None = None
    """The session's options, without ``resume``. None: as in the checkpoint before."""
    history: HistoryState | None = None
    """None: as in the checkpoint before."""
    settled: bool = False
    """Whether neither side has a turn under way: the best moment to move."""
    answers: list[
        Updated | Truncated | TurnDecision | Interrupted | ErrorEvent | StepChanged | DataCollected | Decision
    ] = []
    """Events that follow and belong to what ``state`` contains. A client that loses the stream before
    they come takes them from here."""


class GoAway(_Event, frozen=True, tag="go_away", kw_only=True):
    """The server will stop: the client goes on elsewhere.

    It does so from the next :class:`Checkpoint` that is ``settled``, or at the end of the time from the last
    one. A client that cannot go elsewhere stays; the server closes the session when it stops.
    """

    time_left_ms: int


class Updated(_Event, frozen=True, tag="updated", kw_only=True):
    """An :class:`Update` has taken effect. Updates are answered in their order."""


class SpeechStarted(_Event, frozen=True, tag="speech_started", kw_only=True):
    """The user has started to speak."""

    at_ms: int


class SpeechStopped(_Event, frozen=True, tag="speech_stopped", kw_only=True):
    """The user has stopped speaking; the final transcript follows."""

    at_ms: int
    """Where the speech ended."""
    detected_at_ms: int
    """Where the silence had lasted for ``vad.silence_ms``."""


class Word(msgspec.Struct, frozen=True, kw_only=True):
    """A recognised word."""

    text: str
    start_ms: int
    end_ms: int
    confidence: float
    """0-1."""


class Alternative(msgspec.Struct, frozen=True, kw_only=True):
    """One hypothesis of a transcript."""

    text: str
    score: float
    """Natural logarithm of its probability, phrases included, per token (the end counts as one)."""


class Transcript(_Event, frozen=True, tag="transcript", kw_only=True):
    """What the user said. Partial transcripts of an utterance replace each other."""

    utterance: int
    """Counts the user's utterances from 1."""
    text: str
    is_final: bool
    confidence: float
    words: list[Word] = []
    alternatives: list[Alternative] = []
    """The n-best hypotheses of a final transcript, if ``alternatives`` asks for them; the first is
    ``text``."""
    first: int = 0
    """First utterance of a final transcript that was decoded together with earlier ones of its turn."""
    before: str = ""
    """The text of those utterances in that decoding; it replaces their transcripts."""


class TurnDecision(_Event, frozen=True, tag="turn_decision", kw_only=True):
    """How a pause of the user was judged, and why.

    A turn waits and resumes until it is committed; then the agent answers all of its text. With
    ``turn.eagerness`` off, the event is sent only for a turn that a :class:`Commit` has ended.
    """

    utterance: int
    """The last one of the turn so far."""
    decision: Literal["wait", "resume", "commit"]
    """``wait``: the user may go on. ``resume``: the user does. ``commit``: the turn is over."""
    reason: TurnReason
    """``sounds_complete``, ``sounds_incomplete``: decided by the turn model's score. ``text_finished``,
    ``text_unfinished``: decided by the words. ``not_scored``: there was no score; the silence decides.
    ``no_words``: the transcript was empty. ``waited``: the silence lasted for ``needed_ms``.
    ``silence_limit``: it lasted for ``turn.limit_ms``. ``turn_limit``: the whole turn was too long.
    ``spoke_again``: with ``resume``. ``requested``: by :class:`Commit`."""
    text: str
    """The turn's words so far."""
    probability: float | None = None
    """The turn model's probability that the turn is over, 0-1."""
    text_probability: float | None = None
    """The language model's probability that a sentence ends with these words, 0-1."""
    cue: TurnCue = ""
    """How the text ends. ``phrase`` and ``question`` are finished, the others not. Empty: no cue."""
    cue_words: str = ""
    """The words of the cue."""
    silence_ms: int = 0
    """Since the end of speech."""
    needed_ms: int = 0
    """Silence that ends the turn."""


class AgentState(_Event, frozen=True, tag="agent_state", kw_only=True):
    """The agent's state has changed."""

    state: Literal["listening", "processing", "speaking"]


class ResponseText(_Event, frozen=True, tag="response", kw_only=True):
    """A piece of the answer's text, as the language model writes it."""

    turn: int
    response_id: str
    text: str
    """Append it to the previous pieces."""


class ToolRequest(_Event, frozen=True, tag="tool_request", kw_only=True):
    """Asks the client to run a tool and to answer with :class:`ToolResponse`.

    The call of a ``background`` tool goes on after its turn.
    """

    turn: int
    call_id: str
    name: str
    arguments: dict[str, Any]


class ToolCancelled(_Event, frozen=True, tag="tool_cancelled", kw_only=True):
    """The result of this tool is no longer needed.

    A :class:`ToolResponse` that was sent before this came is dropped, without an event.
    """

    turn: int
    call_id: str
    reason: Literal["interrupted", "timeout", "closed"]


class ToolProgress(_Event, frozen=True, tag="tool_progress", kw_only=True):
    """A running tool reports its progress. For information only."""

    turn: int
    call_id: str
    name: str
    output: Any
    """Any JSON value. Of tools of MCP servers an object with ``progress``, ``total`` and ``message``."""


class ToolRun(_Event, frozen=True, tag="tool_run", kw_only=True):
    """The server has run one of its own tools. For information only."""

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
    """0: the piece has only words, after the last audio of their segment."""
    text: str = ""
    """The words that start in this piece."""


class KnowledgeSource(msgspec.Struct, frozen=True, kw_only=True):
    """A passage of the agent's documents."""

    file: str
    """Its path below the folder of agents."""
    heading: str
    """Titles of the sections around it, outermost first, joined with " > "; of PDF ``page N``."""
    score: float
    """0-1; 1: the first in every ranking."""


class KnowledgeUsed(_Event, frozen=True, tag="knowledge_used", kw_only=True):
    """The language model reads passages of the agent's documents for this answer. For information only."""

    turn: int
    response_id: str
    sources: list[KnowledgeSource] = []
    """Best first."""
    late: bool = False
    """Whether the search was not over in time: the answer has no passages, or those that were found for what
    the user had said before."""


class StepChanged(_Event, frozen=True, tag="step", kw_only=True):
    """The conversation is in another step of its agent."""

    step: str
    """Its name in ``Start.steps``."""
    previous: str = ""
    """Empty: there was none."""


class DataCollected(_Event, frozen=True, tag="collected", kw_only=True):
    """A field of ``Start.collect`` has a value, another one, or none any more."""

    field: str
    value: str
    """In the form of its kind. Empty: the value was taken back."""
    confirmed: bool = False
    """Whether the user has agreed to it."""


class Decision(_Event, frozen=True, tag="decision", kw_only=True):
    """A question of ``Start.decisions`` was answered by the language model."""

    turn: int
    """Turn of the agent in which the question was asked."""
    name: str
    """The question's."""
    value: str
    """The most probable answer."""
    probabilities: dict[str, float]
    """Of each answer, 0-1; together 1."""

    @property
    def state(self) -> DecidedState:
        """What is kept of it."""
        return DecidedState(value=self.value, probability=self.probabilities[self.value], turn=self.turn)


class Paused(_Event, frozen=True, tag="paused", kw_only=True):
    """The user may be speaking over the agent: pause playback and keep the audio that is not played.

    :class:`Interrupted` or :class:`Resumed` of the same response follows.
    """

    turn: int
    response_id: str
    at_ms: int
    """Start of the sound in the user's audio."""


class Resumed(_Event, frozen=True, tag="resumed", kw_only=True):
    """The sound was no interruption: continue playback."""

    turn: int
    response_id: str
    reason: Literal["noise", "backchannel", "echo", "too_short", "too_few_words", "no_words", "other_speaker"]
    """``noise``: shorter than ``vad.min_speech_ms``. ``backchannel``: "mhm" or the like. ``echo``: the
    agent's own words. ``too_short``, ``too_few_words``: less than ``barge_in`` demands, or a few brief words
    that are not certain. ``no_words``: the transcript was empty. ``other_speaker``: ``turn.one_caller``."""
    text: str = ""
    """Its transcript. It is no turn of the user."""


class SpeechIgnored(_Event, frozen=True, tag="speech_ignored", kw_only=True):
    """Words that the user said over the agent, or that another person said, are no turn of the user.

    Sent in place of :class:`Resumed` where ``barge_in.pause_playback`` is off, or nothing was paused.
    """

    reason: Literal["backchannel", "echo", "too_short", "too_few_words", "no_words", "other_speaker"]
    """See :class:`Resumed`."""
    text: str


class Interrupted(_Event, frozen=True, tag="interrupted", kw_only=True):
    """The response was interrupted: drop all of its audio that is not played."""

    turn: int
    response_id: str
    played_ms: int
    spoken_text: str
    """The part of the answer that was played; only this part stays in the history."""
    reason: Literal["words", "speech", "command", "input", "client"] = "words"
    """``words``, ``speech``: the user said enough words, or spoke long enough. ``command``: "stop" or the
    like. ``input``: typed text, keys, or a :class:`Commit`. ``client``: :class:`Interrupt` or
    :class:`Truncate`."""


class Truncated(_Event, frozen=True, tag="truncated", kw_only=True):
    """The history was corrected after :class:`Truncate`."""

    response_id: str
    played_ms: int
    spoken_text: str
    """The part of the answer that was played; only this part stays in the history."""


class ResponseDone(_Event, frozen=True, tag="response_done", kw_only=True):
    """A response is complete: no more text or audio of it follows.

    Every response ends with this event, also a failed or an empty one, unless it was interrupted before. It
    may still be interrupted while its last audio is played.
    """

    turn: int
    response_id: str
    audio_ms: int
    """Milliseconds of audio that were sent."""
    finish_reason: Literal["stop", "length"] = "stop"
    """``length``: ``max_tokens`` ended the answer. Its last sentence is incomplete and is not spoken, unless
    it is the only one; then its complete words are."""


class TurnMetrics(_Event, frozen=True, tag="metrics", kw_only=True):
    """Latencies of one turn, in milliseconds. None: the stage did not run.

    The last event of every turn, also of an interrupted one.
    """

    turn: int
    asr_final_ms: float | None = None
    """From the detection of silence to the final transcript."""
    end_of_turn_ms: float | None = None
    """From the final transcript to the decision that the user's turn is over."""
    llm_first_token_ms: float | None = None
    """From that decision to the language model's first token."""
    first_segment_ms: float | None = None
    """From the same decision to the first text for the synthesizer."""
    llm_total_ms: float | None = None
    tool_ms: float | None = None
    """Time spent waiting for tools."""
    tts_first_audio_ms: float | None = None
    """From the first segment for the synthesizer to its first audio."""
    first_audio_ms: float | None = None
    """From the detection of silence to the first audio sent."""
    e2e_ms: float | None = None
    """From the end of the user's speech to the first audio sent."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    interrupted: bool = False
    """Whether the turn was interrupted: its answer is incomplete, and the user's words may get another."""
    speculations: int = 0
    """Preemptive generations: answers begun before the end of the user's turn was certain."""
    speculated: bool = False
    """Whether this answer is a preemptive generation."""
    held_back: list[HeldBack] = []
    """What was kept from the user, in order: with ``facts``, figures and names that no source has; in all
    sessions that are spoken, a ``call`` that was written as text."""
    hedged: bool = False
    """Whether a fixed sentence was said in the place of what no source has."""
    replacement: str = ""
    """Name of the language model that has answered in the place of another one. Empty: none has."""


class ErrorEvent(_Event, frozen=True, tag="error", kw_only=True):
    """A failure. The session goes on unless :class:`Closed` follows."""

    code: str
    message: str
    retryable: bool
    tools_ran: bool = False
    """Whether a tool was run in the failed turn. Its effects remain: do not repeat the turn."""
    retry_after_ms: int | None = None
    """When trying again may help; `null`: unknown."""
    stage: Stage = "connection"
    """Which part of the call failed; `connection`: the client, the network, or the session itself."""

    @classmethod
    def of(cls, error: ParleyError, *, tools_ran: bool = False) -> ErrorEvent:
        """The event that reports ``error``."""
        wait_s = error.retry_after_s
        return cls(
            code=error.code,
            message=str(error),
            retryable=error.retryable,
            tools_ran=tools_ran,
            retry_after_ms=None if wait_s is None else round(1000 * wait_s),
            stage=error.stage,
        )

    def to_error(self) -> ParleyError:
        """The error that the event reports."""
        error = from_wire(f"{self.code}: {self.message}")
        if self.retry_after_ms is not None:
            error.retry_after_s = max(0, self.retry_after_ms) / 1000
        return error


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """Whom the client is to connect the user with."""

    name: str
    """Of the :class:`TransferTarget`."""
    to: str = ""
    """Its number or SIP address."""
    summary: str = ""
    """Of the conversation, by the language model, for the person; at most 1,000 characters."""
    language: str = ""
    """Of the summary: what the agent speaks."""
    warm: bool = False
    """Whether the person is to hear the summary before being connected."""


class Closed(_Event, frozen=True, tag="closed", kw_only=True, omit_defaults=True):
    """The last event of a session."""

    reason: CloseReason
    """``ended``, ``hangup``: by the client. ``agent_ended``, ``transferred``: by the language model, with
    ``end_call`` or ``transfer`` (:class:`EndingOptions`). ``idle``: no audio and no message came while the
    agent was silent, or the client did not read the audio that was sent. ``silence``:
    ``silence.hang_up_after_ms`` is over. ``disconnected``: the connection to the client was lost.
    ``shutdown``: the server stops. ``failed``: the session could not be opened or continued."""
    agent_reason: str = ""
    """With ``agent_ended``: why, as the language model gives it; at most 1,000 characters."""
    transfer: Transfer | None = None
    """With ``transferred``."""


ServerEvent: TypeAlias = (
    Connected
    | Checkpoint
    | GoAway
    | Updated
    | SpeechStarted
    | SpeechStopped
    | Transcript
    | TurnDecision
    | AgentState
    | ResponseText
    | ToolRequest
    | ToolCancelled
    | ToolProgress
    | ToolRun
    | Audio
    | KnowledgeUsed
    | StepChanged
    | DataCollected
    | Decision
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

Answer: TypeAlias = (
    Updated | Truncated | TurnDecision | Interrupted | ErrorEvent | StepChanged | DataCollected | Decision
)
"""What ``Checkpoint.answers`` holds."""

_encoder = msgspec.json.Encoder()
_messages: msgspec.json.Decoder[ClientMessage] = msgspec.json.Decoder(ClientMessage)
_events: msgspec.json.Decoder[ServerEvent] = msgspec.json.Decoder(ServerEvent)
_any_events = msgspec.json.Decoder(_AnyEvent)
_any_starts = msgspec.json.Decoder(_AnyStart)
_event_types = frozenset(kind.__struct_config__.tag for kind in get_args(ServerEvent))


def encode(message: ClientMessage | ServerEvent) -> bytes:
    """Write a message or event as JSON."""
    return _encoder.encode(message)


def decode_message(raw: bytes) -> ClientMessage:
    """Read a client message.

    Raises:
        InvalidMessageError: not JSON, too large, an unknown type or field, or a wrong value.
    """
    _check_length(raw, MAX_MESSAGE_BYTES)
    return _decode(raw)


def decode_start(raw: bytes) -> Start:
    """Read the first message of a session; with ``resume`` it may be longer than others.

    Raises:
        CheckpointVersionError: ``resume`` was made by a server of another version.
        InvalidMessageError: as :func:`decode_message`, or it is another message.
    """
    _check_length(raw, MAX_RESUME_BYTES)
    _check_version(raw)
    start = _decode(raw)
    if not isinstance(start, Start):
        raise InvalidMessageError("the first message of a session must be of type start")
    if start.resume is None:
        _check_length(raw, MAX_MESSAGE_BYTES)
    return start


def _check_length(raw: bytes, most: int) -> None:
    if len(raw) > most:
        raise InvalidMessageError(f"message of {len(raw)} bytes; at most {most} are allowed")


def _check_version(raw: bytes) -> None:
    # Another version may have other fields: it is read before them.
    try:
        resume = _any_starts.decode(raw).resume
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return  # decoding the whole message says what is wrong
    if resume is not None and resume.state.version != CHECKPOINT_VERSION:
        raise CheckpointVersionError(
            f"the checkpoint has version {resume.state.version}; this server reads {CHECKPOINT_VERSION}"
        )


def _decode(raw: bytes) -> ClientMessage:
    try:
        return _messages.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        what = describe_field_error(error, ClientMessage)
        raise InvalidMessageError(f"message cannot be read: {what}") from error


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
