"""Settings of the agent."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from parley.agent.user_idle import UserIdleSettings
from parley.calls.folder import DEFAULT_FOLDER
from parley.engines.base import Continuation, RemoteChat
from parley.engines.chat_fallback import ChatFallbackLimits
from parley.engines.registry import REMOTE_CHAT
from parley.engines.weight_files import find_absent_weights
from parley.errors import ModelLoadingError
from parley.llm.messages import Sampling
from parley.runtime.gpu_memory import lacks_gpu
from parley.runtime.gpu_plan import GPU_PROFILE, PLAN_SETTING, find_plan
from parley.runtime.parameters import (
    COMPUTED,
    LOADED_MODELS_VARIABLE,
    Natural,
    NonNegative,
    Parameters,
    Positive,
    read_with,
)
from parley.runtime.repository import read_parameters
from parley.runtime.sessions import count_cores, default_sessions
from parley.runtime.weights import weights_variable
from parley.turns.settings import Eagerness

_MOST_SECRET = 64 * 1024
"""Bytes of a file with a key."""
NO_MODEL = "none"
NO_GPU = "this machine has no GPU; --model-config-name=open or =tiny serves without one"
DEFAULT_SYSTEM_PROMPT = "You are Parley, a friendly voice assistant. Keep answers short."
OPEN_SYSTEM_PROMPT = (
    "You are Parley, a friendly voice assistant. Answer in one or two short spoken sentences, without lists "
    "or markup. If you do not know something, say that you do not know."
)
"""That of the profile open."""
DEFAULT_FILLERS: Mapping[str, Sequence[str]] = {
    "en": ("One moment, please.", "Let me check.", "Just a second."),
    "de": ("Einen Moment, bitte.", "Ich sehe nach."),
    "fr": ("Un instant, s'il vous plaît.", "Je regarde."),
    "es": ("Un momento, por favor.", "Voy a mirar."),
    "it": ("Un momento, per favore.",),
    "pt": ("Um momento, por favor.",),
    "nl": ("Een moment, alstublieft.",),
}
"""By language; in others the agent stays silent."""


def parse_fillers(text: str) -> dict[str, tuple[str, ...]]:
    """Read phrases that are written as ``One moment. | de: Einen Moment. | de: Ich sehe nach.``.

    Without a language in front, which has two or three letters, a phrase is English.
    """
    fillers: dict[str, tuple[str, ...]] = {}
    for item in text.split("|"):
        head, colon, rest = item.strip().partition(":")
        has_language = bool(colon) and head.isalpha() and len(head) in (2, 3)
        language, phrase = (head.lower(), rest.strip()) if has_language else ("en", item.strip())
        if phrase:
            fillers[language] = (*fillers.get(language, ()), phrase)
    return fillers


def _read_phrase(text: str) -> str:
    """What is to be said; ``none``: nothing."""
    return "" if text == "none" else text


def _split_phrases(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split("|") if part.strip())


_Phrase = Annotated[str, read_with(_read_phrase)]


class AgentDeadlines(
    msgspec.Struct,
    frozen=True,
    rename={
        "asr_s": "asr_deadline_s",
        "llm_s": "llm_deadline_s",
        "tts_s": "tts_deadline_s",
        "tool_s": "tool_deadline_s",
        "background_tool_s": "background_tool_deadline_s",
        "decision_s": "decision_deadline_s",
        "turn_s": "turn_deadline_s",
        "turn_text_s": "turn_text_deadline_s",
        "idle_s": "idle_limit_s",
        "unread_s": "unread_audio_limit_s",
        "asr_outage_s": "asr_outage_limit_s",
    },
):
    """How long the agent waits, in seconds. Every wait has one."""

    asr_s: Annotated[float, msgspec.Meta(ge=0.1)] = 5.0
    """For the recogniser's reply to one piece of audio, and for all recognisers together to open a stream."""
    llm_s: Annotated[float, msgspec.Meta(ge=0.1)] = 20.0
    """For the language model's next event."""
    llm_first_token_s: Annotated[float, msgspec.Meta(ge=0.1)] = 5.0
    """For a language model's first text or tool call, if there is another one to replace it."""
    llm_cooldown_s: Annotated[float, msgspec.Meta(ge=0.1)] = 15.0
    """After an outage of a language model that another one replaces, until it is asked again; twice as long
    after each further outage, at most 16 times."""
    llm_retries: Natural = 2
    """How often a request to the language model is made again that failed before its first event."""
    llm_retry_s: Annotated[float, msgspec.Meta(ge=0.01)] = 0.2
    """Pause before the first of these; before each further one three times as long."""
    summary_s: Annotated[float, COMPUTED] = 30.0
    """For the language model to summarise the oldest part of a conversation."""
    tts_s: Annotated[float, msgspec.Meta(ge=0.1)] = 10.0
    """For the synthesizer's next audio."""
    tts_first_audio_s: Annotated[float, msgspec.Meta(ge=0.05)] = 2.0
    """For a synthesizer's first audio of a segment, if there is another one to replace it."""
    voice_s: Annotated[float, COMPUTED] = 1.0
    """For the synthesizer to say, before the session begins, whether there is the voice it asks for."""
    tool_s: Annotated[float, msgspec.Meta(ge=0.1)] = 10.0
    """For the client's answer to a tool request."""
    background_tool_s: Annotated[float, msgspec.Meta(ge=0.1)] = 300.0
    """For the client's answer to a request of a tool that does not block."""
    turn_s: Annotated[float, msgspec.Meta(ge=0.01)] = 0.3
    """For the end-of-turn model to score a pause; without its score the silence counts."""
    turn_text_s: Annotated[float, msgspec.Meta(ge=0.01)] = 1.0
    """For the language model to judge the words of a pause. Its answer to the user would be as late."""
    decision_s: Annotated[float, msgspec.Meta(ge=0.05)] = 2.0
    """For the language model's answers to the questions of `decisions`; without them there is no decision. So
    long a session with questions for its end waits before it is closed."""
    abort_s: Annotated[float, COMPUTED] = 1.0
    """For an engine to confirm that it has stopped."""
    close_s: Annotated[float, COMPUTED] = 3.0
    """For everything that a session owns to end."""
    idle_s: Annotated[float, msgspec.Meta(ge=1.0)] = 60.0
    """Without any request of the client, until the session is closed."""
    unread_s: Annotated[float, msgspec.Meta(ge=1.0)] = 300.0
    """The session is closed after this much audio without a sign that the client reads it."""
    asr_outage_s: Annotated[float, msgspec.Meta(ge=1.0)] = 60.0
    """Without a working recogniser, until the session is closed."""


class AgentConfig(msgspec.Struct, frozen=True):
    """Settings that all sessions share."""

    asr: tuple[str, ...] = ("parakeet_tdt",)
    """Recognisers in order of preference: a session gets the first one that understands its language."""
    llm: tuple[str, ...] = ("qwen3",)
    """Language models in order of preference: models of the server, or ``openai_chat``. A later one answers
    where those before it fail, or are late, before their first token."""
    llm_weights: Annotated[tuple[str, ...], COMPUTED] = ()
    """Of each of ``llm`` its weights' name, or that of the remote server's model; empty: unknown."""
    llm_url: str = ""
    """Base URL of the remote chat server, up to the version: ``https://api.example.com/v1``."""
    llm_model: str = ""
    """Name of the model at the remote chat server."""
    llm_key_file: str = ""
    """File with the key of the remote chat server; ``PARLEY_VOICE_AGENT_LLM_KEY`` wins."""
    llm_continuation: Continuation = "none"
    """How the remote chat server continues a message that has begun."""
    remote_chat: Annotated[RemoteChat, COMPUTED] = msgspec.field(default_factory=RemoteChat)
    """The server of ``openai_chat``."""
    tts: tuple[str, ...] = ("espeak",)
    """Synthesizers whose voices sessions may name, in order of preference; the default is the first one's."""
    tts_fallback: tuple[str, ...] = ()
    """Synthesizers that speak the rest of an answer, in this order, when one fails or is late; and all of it,
    with their voices, where the server has loaded none of ``tts``."""
    absent_models: Annotated[Mapping[str, str], COMPUTED] = msgspec.field(default_factory=dict)
    """Why by model it cannot be used. Recognisers and synthesizers are left out if the server has loaded any
    other one; without a recogniser or the language model sessions are refused.
    """
    turn: str = "smart_turn"
    """Name of the end-of-turn model; ``none``: turns end by silence and words alone."""
    turn_text: Literal["llm", "none"] = "llm"
    """What else judges the words of a pause, in English: `llm`: the language model, if it is one of this
    server's."""
    ignore_background: bool = False
    """Whether talk that goes on behind the caller's is silence, for sessions that do not say it."""
    speaker: str = "speaker_embedding"
    """Name of the model by which the caller's voice is known again; ``none``: all speech is the caller's."""
    one_caller: bool = False
    """Whether only the voice that opened a call is answered, in sessions that do not say it."""
    eagerness: Eagerness = "off"
    """When a pause ends the user's turn, for sessions that do not say it themselves."""
    turn_adapts: bool = True
    """Whether long pauses of a caller lengthen later silences, for sessions that do not say it."""
    system_prompt: str = DEFAULT_SYSTEM_PROMPT
    """For sessions that bring none."""
    agents: str = ""
    """Folder of the agents that sessions choose by name, a file ``NAME.toml`` each. A relative path begins
    beside the model repository. Empty: ``agents``, if the folder is there when the server starts."""
    calls: str = DEFAULT_FOLDER
    """Folder of the calls that are recorded, of agents with ``record``. A relative path begins beside the
    model repository."""
    calls_store: str = ""
    """``s3://BUCKET/PREFIX`` for the files of ended calls; ``AWS_`` variables have the rest. Empty: none."""
    calls_list: str = ""
    """Database with the list of the calls of all servers of one ``calls_store``,
    ``postgresql://user@host/name``. Empty: in the folder."""
    record_debug: str = ""
    """Folder in which calls are recorded as a whole for ``parley replay``, but for those of agents with
    ``recording.hide``. A relative path begins beside the model repository. Empty: none."""
    examples: Annotated[tuple[str, ...], read_with(_split_phrases)] = ()
    """Things that users may say to this agent, as far as what it can do is limited; separated by ``|``."""
    greeting: _Phrase = ""
    """Said first in sessions that bring none; empty (as a parameter ``none``, as below): nothing."""
    apology: _Phrase = "Sorry, I have a problem. Please say that again."
    """Said when there is no answer because a model has failed; empty: nothing."""
    acted_apology: _Phrase = (
        "Sorry, I had a problem before I could answer. What you asked for may already be done."
    )
    """Said in its place when a tool has been run in that turn, so that the user does not ask for the same
    again; empty: nothing."""
    hedge: _Phrase = "I am not sure about that; let me not guess."
    """Said in sessions with ``facts`` in the place of what the language model has twice made up; empty:
    nothing."""
    deaf_apology: _Phrase = "Sorry, I cannot hear you at the moment."
    """Said when the recogniser has failed and does not come back at once; empty: nothing."""
    log_transcripts: bool = False
    """Whether the server's log says what was said. Otherwise nothing of it is kept after a session."""
    silence: UserIdleSettings = msgspec.field(default_factory=UserIdleSettings)
    """What happens while the user says nothing, in sessions that do not say it themselves."""
    boost_names: bool = True
    """Whether Moonshine and Whisper favour names of instructions, tools and their results beside ``phrases``,
    in English sessions."""
    written_forms: bool = True
    """Whether spoken digits, addresses and spelled words are written as such before the language model reads
    them."""
    speculations_per_turn: Natural = 3
    """Answers that may be begun before it is certain that the user's turn is over; 0: none."""
    wasted_speculations_per_minute: Positive = 12
    """How many of them one session may throw away."""
    max_sessions: Positive = 16
    """Open at the same time in one instance of the model."""
    max_calls: Natural = 0
    """Sessions of all instances together, as `parley capacity` finds them; 0: as many as those take."""
    refuse_when_late: bool = False
    """Whether no further session is taken where answers of the last five minutes were late, with about as
    many sessions open ([when](models.md#sessions)). Not where the language model is another server's."""
    typical_call_s: Annotated[float, msgspec.Meta(ge=1.0)] = 180.0
    """How long calls last. Where all sessions are in use one of them ends every ``typical_call_s /
    max_sessions``: so long a refused client is asked to wait before it tries again."""
    audio_buffer_ms: Annotated[int, msgspec.Meta(ge=1_000)] = 5_000
    """Audio that waits for the recogniser; the oldest is dropped."""
    lead_ms: Annotated[int, msgspec.Meta(ge=100)] = 500
    """How far ahead of real time audio is sent: what a barge-in must flush at most."""
    block_ms: Annotated[int, msgspec.Meta(ge=20)] = 100
    """Length of one audio event."""
    context_tokens: Annotated[int, msgspec.Meta(ge=512)] = 8_192
    """The language model's window."""
    embedder: str = "embeddings"
    """Model by whose vectors documents are searched, besides their words; ``none``: by words alone."""
    knowledge_store: str = ""
    """PostgreSQL database in which servers share the vectors of documents, ``postgresql://user@host/name``;
    empty: each server makes its own ([how](your-agent.md#several-servers))."""
    knowledge_tokens: Natural = 1_200
    """Estimated tokens of the passages that an answer of an agent with ``knowledge`` gets; 0: none."""
    history: Literal["drop", "summarise"] = "drop"
    """What happens to the oldest part of a conversation that is too long."""
    answer_goal_ms: Annotated[float, msgspec.Meta(ge=1.0)] = 700.0
    """From the end of the user's speech to the first audio; a later answer is counted as slow."""
    max_tool_rounds: Positive = 4
    """Times that one turn may ask for tools."""
    max_tools: Natural = 32
    """Tools that one session may bring."""
    max_background_tools: Natural = 4
    """Tools that one session may run beside the conversation."""
    replaceable_tools: bool = False
    """Whether a session may bring tools with the names of the server's, which are called in their place: for
    tests of an agent without its services. Each tool needs a description, or is one of the server's."""
    max_tool_output: Annotated[int, msgspec.Meta(ge=100)] = 4_000
    """Characters of a tool's answer that the language model gets to see."""
    filler_after_s: NonNegative = 1.5
    """How long tools may take until the agent says that it needs a moment; 0: for ever."""
    fillers: Annotated[Mapping[str, Sequence[str]], read_with(parse_fillers)] = msgspec.field(
        default_factory=lambda: DEFAULT_FILLERS
    )
    """What it says then, by language."""
    speaks_early: bool = False
    """Whether speech begins within a sentence, in English, where the language model writes faster than is
    spoken."""
    temperature: NonNegative = 0.0
    """Of the language model's answers; 0: always the likeliest token."""
    top_p: NonNegative = 1.0
    """Tokens are sampled from the likeliest ones of this joint probability."""
    max_answer_tokens: Annotated[int, msgspec.Meta(ge=16)] = 256
    """Longest answer of the language model."""
    deadlines: AgentDeadlines = msgspec.field(default_factory=AgentDeadlines)

    @property
    def recognizers(self) -> tuple[str, ...]:
        """Those of ``asr`` that can be used; all, where none can."""
        return tuple(name for name in self.asr if name not in self.absent_models) or self.asr

    @property
    def chat_fallback(self) -> ChatFallbackLimits:
        """When one language model replaces another."""
        limits = self.deadlines
        # The agent itself waits for `llm_s`: a replacement must have time to begin before that.
        first_token_s = min(limits.llm_first_token_s, limits.llm_s / 2)
        return ChatFallbackLimits(first_token_s, limits.llm_cooldown_s, limits.abort_s)

    @property
    def chat_models(self) -> tuple[tuple[str, str], ...]:
        """Engine and name of those of ``llm`` that can be used; of all, where none can."""
        weights = self.llm_weights or ("",) * len(self.llm)
        named = [(engine, name or engine) for engine, name in zip(self.llm, weights, strict=True)]
        return tuple(one for one in named if one[0] not in self.absent_models) or tuple(named)

    @property
    def sampling(self) -> Sampling:
        """How the language model's tokens are sampled, in sessions that do not say it themselves."""
        return Sampling(temperature=self.temperature, top_p=self.top_p, max_tokens=self.max_answer_tokens)

    @property
    def has_default_prompt(self) -> bool:
        """Whether the system prompt is one that Parley comes with."""
        return self.system_prompt in (DEFAULT_SYSTEM_PROMPT, OPEN_SYSTEM_PROMPT)

    @property
    def prompt_tokens(self) -> int:
        """Tokens that the conversation may have, so that the answer still fits."""
        return max(256, self.context_tokens - self.max_answer_tokens)

    @property
    def text_tokens(self) -> int:
        """Estimated tokens that one text of the client may have in it."""
        return self.prompt_tokens // 2

    @classmethod
    def from_parameters(cls, parameters: Parameters) -> AgentConfig:
        """Read the settings of a model.

        Raises:
            ModelLoadingError: a setting has a value that it cannot have.
        """
        sessions = default_sessions(parameters.text("profile", ""), count_cores())
        read = parameters.read(cls, **({"max_sessions": sessions} if sessions else {}))
        return msgspec.structs.replace(
            read,
            llm_weights=tuple(find_llm_weights(parameters, name) for name in read.llm),
            remote_chat=_remote_chat(parameters, read),
            absent_models=_find_absent(parameters, read.asr, read.llm, (*read.tts, *read.tts_fallback)),
        )


def _find_absent(
    parameters: Parameters, asr: Sequence[str], llm: Sequence[str], tts: Sequence[str]
) -> dict[str, str]:
    """Why by model it cannot be used: the launcher has listed the loaded ones, else weights or a GPU lack."""
    if loaded := parameters.environment.get(LOADED_MODELS_VARIABLE):
        here = {*asr, *llm, *tts} - {REMOTE_CHAT}
        return dict.fromkeys(sorted(here - set(loaded.split(","))), "it is not loaded")
    engines = (*asr, *llm, *tts)
    profile = parameters.text("profile", GPU_PROFILE)
    absent = find_absent_weights(parameters.repository, profile, engines, parameters.environment)
    if profile != GPU_PROFILE:
        return absent
    if lacks_gpu(parameters.environment):
        for model in engines:
            settings = read_parameters(parameters.repository / model, profile, parameters.environment)
            if settings is not None and settings.text(PLAN_SETTING, "") == "true":
                absent.setdefault(model, NO_GPU)
        return absent
    plan = find_plan(parameters.environment)
    if plan is not None:
        reason = f"a GPU of the class {plan.name} has no memory for it"
        absent |= {model: reason for model in engines if model in plan.without}
    return absent


def why_absent(parameters: Parameters, llm: str) -> str:
    """Why a language model, or another model without a fallback, cannot be used; empty: it can."""
    return _find_absent(parameters, (), (llm,), ()).get(llm, "")


def find_llm_weights(parameters: Parameters, llm: str) -> str:
    """Name of the weights of a language model, or of the remote one; empty: unknown."""
    if llm == REMOTE_CHAT:
        return parameters.text("llm_model", "")
    profile = parameters.text("profile", GPU_PROFILE)
    model = read_parameters(parameters.repository / llm, profile, parameters.environment)
    if model is None:
        return ""
    return Path(parameters.environment.get(weights_variable(llm)) or model.text("weights", "")).name


def _remote_chat(parameters: Parameters, read: AgentConfig) -> RemoteChat:
    """The key comes from a file or the environment: any client can read a model's configuration."""
    key = parameters.environment.get(parameters.variable("llm_key"), "")
    if read.llm_key_file and not key:
        key = read_key(Path(read.llm_key_file), "llm_key_file")
    return RemoteChat(read.llm_url, read.llm_model, _check_key(key), read.llm_continuation)


def read_key(file: Path, setting: str) -> str:
    """The key of a chat server.

    Raises:
        ModelLoadingError: it cannot be read, or holds no key.
    """
    try:
        return _check_key(read_secret_file(file))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or type(error).__name__
        raise ModelLoadingError(f"{setting} {file} cannot be read: {why}") from error


def read_secret_file(path: Path) -> str:
    """The text of a file with a key, of 64 KiB at most. The path may be a link.

    Raises:
        OSError: it cannot be read, is a device or a pipe, or is longer.
        ValueError: it is not ASCII, or the path has a NUL.
    """

    def open_at_once(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NONBLOCK)  # else a pipe would be waited for

    with open(path, "rb", opener=open_at_once) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        raw = file.read(_MOST_SECRET + 1)
    if len(raw) > _MOST_SECRET:
        raise OSError(errno.EFBIG, f"it has more than {_MOST_SECRET} bytes")
    return raw.decode("ascii")


def _check_key(key: str) -> str:
    key = key.strip()
    if key and not (key.isascii() and key.isprintable()):
        raise ModelLoadingError("the key of the chat server has characters that no key has")
    return key
