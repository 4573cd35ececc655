"""Settings of the agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from parley.agent.user_idle import UserIdleSettings
from parley.engines.base import Continuation, RemoteChat
from parley.engines.registry import REMOTE_CHAT
from parley.engines.weight_files import find_absent_weights
from parley.errors import ModelLoadingError
from parley.llm.messages import Sampling
from parley.runtime.gpu_memory import lacks_gpu
from parley.runtime.gpu_plan import GPU_PROFILE, PLAN_SETTING, find_plan
from parley.runtime.parameters import LOADED_MODELS_VARIABLE, Parameters
from parley.runtime.repository import read_parameters
from parley.runtime.sessions import count_cores, default_sessions
from parley.turns.settings import EAGERNESSES, Eagerness

NO_TURN_MODEL = "none"
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


@dataclass(frozen=True)
class AgentDeadlines:
    """How long the agent waits, in seconds. Every wait has one."""

    asr_s: float = 5.0
    """For the recogniser's reply to one piece of audio, and for all recognisers together to open a stream."""
    llm_s: float = 20.0
    """For the language model's next event."""
    llm_retries: int = 2
    """How often a request to the language model is made again that failed before its first event."""
    llm_retry_s: float = 0.2
    """Pause before the first of these; before each further one three times as long."""
    summary_s: float = 30.0
    """For the language model to summarise the oldest part of a conversation."""
    tts_s: float = 10.0
    """For the synthesizer's next audio."""
    tts_first_audio_s: float = 2.0
    """For a synthesizer's first audio of a segment, if there is another one to replace it."""
    voice_s: float = 1.0
    """For the synthesizer to say, before the session begins, whether there is the voice it asks for."""
    tool_s: float = 10.0
    """For the client's answer to a tool request."""
    turn_s: float = 0.3
    """For the end-of-turn model to score a pause; without its score the silence counts."""
    abort_s: float = 1.0
    """For an engine to confirm that it has stopped."""
    close_s: float = 3.0
    """For everything that a session owns to end."""
    idle_s: float = 60.0
    """Without any request of the client, until the session is closed."""
    unread_s: float = 300.0
    """The session is closed after this much audio without a sign that the client reads it."""
    asr_outage_s: float = 60.0
    """Without a working recogniser, until the session is closed."""


@dataclass(frozen=True)
class AgentConfig:
    """Settings that all sessions share."""

    asr: tuple[str, ...] = ("parakeet_tdt",)
    """Recognisers in order of preference: a session gets the first one that understands its language."""
    llm: str = "qwen3"
    """The language model: a model of the server, or ``openai_chat``."""
    llm_weights: str = ""
    """Name of the weights of ``llm``, or of the model at the remote chat server; empty: unknown."""
    remote_chat: RemoteChat = field(default_factory=RemoteChat)
    """The server of ``openai_chat``."""
    tts: tuple[str, ...] = ("espeak",)
    """Synthesizers whose voices sessions may name, in order of preference; the default is the first one's."""
    tts_fallback: tuple[str, ...] = ()
    """Synthesizers that speak the rest of an answer, in this order, when one fails or is late; and all of it,
    with their voices, where the server has loaded none of ``tts``."""
    absent_models: Mapping[str, str] = field(default_factory=dict)
    """Why by model it cannot be used. Recognisers and synthesizers are left out if the server has loaded any
    other one; without a recogniser or the language model sessions are refused.
    """
    turn: str = "smart_turn"
    """Name of the end-of-turn model; ``none``: turns end by silence and words alone."""
    eagerness: Eagerness = "off"
    """When a pause ends the user's turn, for sessions that do not say it themselves."""
    system_prompt: str = DEFAULT_SYSTEM_PROMPT
    """For sessions that bring none."""
    examples: tuple[str, ...] = ()
    """Things that users may say to this agent, as far as what it can do is limited; separated by ``|``."""
    greeting: str = ""
    """Said first in sessions that bring none; empty (as a parameter ``none``, as below): nothing."""
    apology: str = "Sorry, I have a problem. Please say that again."
    """Said when there is no answer because a model has failed; empty: nothing."""
    acted_apology: str = (
        "Sorry, I had a problem before I could answer. What you asked for may already be done."
    )
    """Said in its place when a tool has been run in that turn, so that the user does not ask for the same
    again; empty: nothing."""
    deaf_apology: str = "Sorry, I cannot hear you at the moment."
    """Said when the recogniser has failed and does not come back at once; empty: nothing."""
    log_transcripts: bool = False
    """Whether the server's log says what was said. Otherwise nothing of it is kept after a session."""
    silence: UserIdleSettings = field(default_factory=UserIdleSettings)
    """What happens while the user says nothing, in sessions that do not say it themselves."""
    written_forms: bool = True
    """Whether spoken digits, addresses and spelled words are written as such before the language model reads
    them."""
    speculations_per_turn: int = 3
    """Answers that may be begun before it is certain that the user's turn is over; 0: none."""
    wasted_speculations_per_minute: int = 12
    """How many of them one session may throw away."""
    max_sessions: int = 16
    """Open at the same time in one instance of the model."""
    typical_call_s: float = 180.0
    """How long calls last. Where all sessions are in use one of them ends every ``typical_call_s /
    max_sessions``: so long a refused client is asked to wait before it tries again."""
    audio_buffer_ms: int = 5_000
    """Audio that waits for the recogniser; the oldest is dropped."""
    lead_ms: int = 500
    """How far ahead of real time audio is sent: what a barge-in must flush at most."""
    block_ms: int = 100
    """Length of one audio event."""
    context_tokens: int = 8_192
    """The language model's window."""
    summaries: bool = False
    """Whether the oldest part of a long conversation is summarised before it has to be forgotten."""
    answer_goal_ms: float = 700.0
    """From the end of the user's speech to the first audio; a later answer is counted as slow."""
    max_tool_rounds: int = 4
    """Times that one turn may ask for tools."""
    max_tools: int = 32
    """Tools that one session may bring."""
    max_tool_output: int = 4_000
    """Characters of a tool's answer that the language model gets to see."""
    filler_after_s: float = 1.5
    """How long tools may take until the agent says that it needs a moment; 0: for ever."""
    fillers: Mapping[str, Sequence[str]] = field(default_factory=lambda: DEFAULT_FILLERS)
    """What it says then, by language."""
    sampling: Sampling = field(default_factory=Sampling)
    deadlines: AgentDeadlines = field(default_factory=AgentDeadlines)

    @property
    def recognizers(self) -> tuple[str, ...]:
        """Those of ``asr`` that can be used; all, where none can."""
        return tuple(name for name in self.asr if name not in self.absent_models) or self.asr

    @property
    def has_default_prompt(self) -> bool:
        """Whether the system prompt is one that Parley comes with."""
        return self.system_prompt in (DEFAULT_SYSTEM_PROMPT, OPEN_SYSTEM_PROMPT)

    @property
    def prompt_tokens(self) -> int:
        """Tokens that the conversation may have, so that the answer still fits."""
        return max(256, self.context_tokens - self.sampling.max_tokens)

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
        default = cls()
        waits = default.deadlines
        tts = parameters.names("tts", "") or default.tts
        tts_fallback = parameters.names("tts_fallback", "")
        asr, llm = parameters.names("asr", "") or default.asr, parameters.text("llm", default.llm)
        return cls(
            asr=asr,
            llm=llm,
            llm_weights=_find_llm_weights(parameters, llm),
            remote_chat=_remote_chat(parameters),
            tts=tts,
            tts_fallback=tts_fallback,
            absent_models=_find_absent(parameters, asr, llm, (*tts, *tts_fallback)),
            turn=parameters.text("turn", default.turn),
            eagerness=_eagerness(parameters, default.eagerness),
            system_prompt=parameters.text("system_prompt", default.system_prompt),
            examples=_phrases(parameters, "examples"),
            greeting=_phrase(parameters, "greeting", default.greeting),
            apology=_phrase(parameters, "apology", default.apology),
            acted_apology=_phrase(parameters, "acted_apology", default.acted_apology),
            deaf_apology=_phrase(parameters, "deaf_apology", default.deaf_apology),
            log_transcripts=parameters.boolean("log_transcripts", default=False),
            silence=UserIdleSettings(
                prompt_after_s=parameters.number("silence_prompt_after_s", 0.0),
                prompts=(parameters.text("silence_prompt", default.silence.prompts[0]),),
                hang_up_after_s=parameters.number("silence_hang_up_after_s", 0.0),
            ),
            written_forms=parameters.boolean("written_forms", default=True),
            speculations_per_turn=parameters.integer(
                "speculations_per_turn", default.speculations_per_turn, minimum=0
            ),
            wasted_speculations_per_minute=parameters.integer(
                "wasted_speculations_per_minute", default.wasted_speculations_per_minute, minimum=1
            ),
            max_sessions=parameters.integer(
                "max_sessions",
                default_sessions(parameters.text("profile", ""), count_cores()) or default.max_sessions,
                minimum=1,
            ),
            typical_call_s=parameters.number("typical_call_s", default.typical_call_s, minimum=1.0),
            answer_goal_ms=parameters.number("answer_goal_ms", default.answer_goal_ms, minimum=1.0),
            audio_buffer_ms=parameters.integer("audio_buffer_ms", default.audio_buffer_ms, minimum=1_000),
            lead_ms=parameters.integer("lead_ms", default.lead_ms, minimum=100),
            block_ms=parameters.integer("block_ms", default.block_ms, minimum=20),
            context_tokens=parameters.integer("context_tokens", default.context_tokens, minimum=512),
            summaries=parameters.choice("history", "drop", ("drop", "summarise")) == "summarise",
            max_tool_rounds=parameters.integer("max_tool_rounds", default.max_tool_rounds, minimum=1),
            max_tools=parameters.integer("max_tools", default.max_tools),
            max_tool_output=parameters.integer("max_tool_output", default.max_tool_output, minimum=100),
            filler_after_s=parameters.number("filler_after_s", default.filler_after_s),
            fillers=parse_fillers(parameters.text("fillers", "")) or default.fillers,
            sampling=Sampling(
                temperature=parameters.number("temperature", default.sampling.temperature),
                top_p=parameters.number("top_p", default.sampling.top_p),
                max_tokens=parameters.integer("max_answer_tokens", default.sampling.max_tokens, minimum=16),
            ),
            deadlines=AgentDeadlines(
                asr_s=parameters.number("asr_deadline_s", waits.asr_s, minimum=0.1),
                llm_s=parameters.number("llm_deadline_s", waits.llm_s, minimum=0.1),
                llm_retries=parameters.integer("llm_retries", waits.llm_retries),
                llm_retry_s=parameters.number("llm_retry_s", waits.llm_retry_s, minimum=0.01),
                tts_s=parameters.number("tts_deadline_s", waits.tts_s, minimum=0.1),
                tts_first_audio_s=parameters.number(
                    "tts_first_audio_s", waits.tts_first_audio_s, minimum=0.05
                ),
                tool_s=parameters.number("tool_deadline_s", waits.tool_s, minimum=0.1),
                turn_s=parameters.number("turn_deadline_s", waits.turn_s, minimum=0.01),
                voice_s=waits.voice_s,
                abort_s=waits.abort_s,
                close_s=waits.close_s,
                idle_s=parameters.number("idle_limit_s", waits.idle_s, minimum=1.0),
                unread_s=parameters.number("unread_audio_limit_s", waits.unread_s, minimum=1.0),
                asr_outage_s=parameters.number("asr_outage_limit_s", waits.asr_outage_s, minimum=1.0),
            ),
        )


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


def _find_absent(parameters: Parameters, asr: Sequence[str], llm: str, tts: Sequence[str]) -> dict[str, str]:
    """Why by model it cannot be used: the launcher has listed the loaded ones, else weights or a GPU lack."""
    if loaded := parameters.environment.get(LOADED_MODELS_VARIABLE):
        # The language model may be elsewhere.
        return dict.fromkeys(sorted({*asr, *tts} - set(loaded.split(","))), "it is not loaded")
    engines = (*asr, llm, *tts)
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


def _find_llm_weights(parameters: Parameters, llm: str) -> str:
    if llm == REMOTE_CHAT:
        return parameters.text("llm_model", "")
    profile = parameters.text("profile", GPU_PROFILE)
    model = read_parameters(parameters.repository / llm, profile, parameters.environment)
    return "" if model is None else Path(model.text("weights", "")).name


def _phrase(parameters: Parameters, name: str, default: str) -> str:
    """What is to be said; ``none``: nothing."""
    phrase = parameters.text(name, default)
    return "" if phrase == "none" else phrase


def _phrases(parameters: Parameters, name: str) -> tuple[str, ...]:
    parts = (part.strip() for part in parameters.text(name, "").split("|"))
    return tuple(part for part in parts if part)


def _remote_chat(parameters: Parameters) -> RemoteChat:
    """The key comes from a file or the environment: any client can read a model's configuration."""
    key = parameters.environment.get(parameters.variable("llm_key"), "")
    file = parameters.text("llm_key_file", "")
    if file and not key:
        try:
            key = Path(file).read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelLoadingError(f"llm_key_file {file} cannot be read: {type(error).__name__}") from error
    key = key.strip()
    if key and not (key.isascii() and key.isprintable()):
        raise ModelLoadingError("the key of the chat server has characters that no key has")
    ways: tuple[Continuation, ...] = get_args(Continuation)
    chosen = parameters.choice("llm_continuation", "none", ways)
    way = next(name for name in ways if name == chosen)
    return RemoteChat(parameters.text("llm_url", ""), parameters.text("llm_model", ""), key, way)


def _eagerness(parameters: Parameters, default: Eagerness) -> Eagerness:
    chosen = parameters.choice("eagerness", default, EAGERNESSES)
    return next(name for name in EAGERNESSES if name == chosen)
