"""What can go wrong, each with a stable code.

::

    ParleyError
    ├── InvalidInputError (ValueError)
    │   ├── InvalidMessageError          invalid_message
    │   ├── CheckpointVersionError       checkpoint_version
    │   ├── InvalidAudioError            invalid_audio
    │   ├── UnsupportedSampleRateError   unsupported_sample_rate
    │   ├── UnsupportedLanguageError     unsupported_language
    │   ├── UnsupportedVoiceError        unsupported_voice
    │   ├── UnknownAgentError            unknown_agent
    │   ├── CallNotFoundError            call_not_found
    │   ├── UnknownToolCallError         unknown_tool_call
    │   ├── ReferenceAudioError          invalid_reference
    │   │   ├── ReferenceTooShortError   reference_too_short
    │   │   ├── ReferenceTooLongError    reference_too_long
    │   │   ├── ReferenceClippedError    reference_clipped
    │   │   ├── ReferenceTooQuietError   reference_too_quiet
    │   │   └── ReferenceNotMonoError    reference_not_mono
    │   ├── ConsentMissingError          consent_missing
    │   ├── VoiceExistsError             voice_exists
    │   ├── TooManyVoicesError           too_many_voices
    │   └── NotPermittedError            not_permitted
    ├── SessionError
    │   ├── SessionExistsError           session_exists
    │   ├── SessionNotFoundError         session_not_found
    │   ├── TooManySessionsError         too_many_sessions    retryable
    │   ├── SessionIdleError             session_idle         retryable
    │   └── ShuttingDownError            shutting_down        retryable
    ├── InferenceError                   inference_failed     retryable
    │   ├── ModelUnavailableError        model_unavailable    retryable
    │   ├── DeadlineExceededError        deadline_exceeded    retryable
    │   ├── OverloadedError              overloaded           retryable
    │   ├── ContextTooLongError          context_too_long
    │   ├── InvalidModelOutputError      invalid_model_output
    │   └── NoAnswerError                no_answer
    ├── ToolTimeoutError                 tool_timeout         retryable
    ├── InvalidToolCallError             invalid_tool_call
    ├── AudioDroppedError                audio_dropped        retryable
    ├── AsrFallbackError                 asr_fallback
    ├── LlmFallbackError                 llm_fallback
    ├── TtsFallbackError                 tts_fallback
    ├── VoiceDamagedError                voice_damaged
    ├── VoiceStoreError                  voice_store_failed   retryable
    │   └── VoiceStoreRefusedError       voice_store_refused
    └── ModelLoadingError                model_loading_failed
        ├── UnsupportedVersionError      unsupported_version
        └── WeightsNotFoundError (FileNotFoundError)  weights_not_found

*Retryable* means that the same request may succeed later without being changed.
"""

from __future__ import annotations

from typing import ClassVar, Literal, Self, TypeAlias

Stage: TypeAlias = Literal["asr", "llm", "tts", "tool", "connection"]
"""Which part of a call failed."""


class ParleyError(Exception):
    """Base class: ``code`` is part of the protocol and never changes its meaning.

    Args:
        message: What happened, for a developer.
        retry_after_s: When trying again may help (seconds); None: unknown.
    """

    code: ClassVar[str] = "internal_error"
    retryable: ClassVar[bool] = False
    stage: Stage = "connection"

    def __init__(self, message: str = "", *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s

    def at(self, stage: Stage) -> Self:
        """The same error, as one of this stage; an error of a class that has a stage keeps it."""
        if type(self).stage == ParleyError.stage:
            self.stage = stage
        return self

    def to_wire(self) -> str:
        """One line for a Triton error message; :func:`from_wire` reads it back."""
        return f"{self.code}: {self}"

    def to_log(self) -> str:
        """One line for a log."""
        return self.to_wire()

    def log_extra(self) -> dict[str, str]:
        """The argument ``extra`` of a log call with :meth:`to_log`: JSON lines have the code by itself."""
        return {"code": self.code}


class InvalidInputError(ParleyError, ValueError):
    """The caller sent something that can never be accepted."""

    code = "invalid_input"

    def to_log(self) -> str:
        """The code alone: the message repeats what the caller sent, and no user's words belong in a log."""
        return self.code


class InvalidMessageError(InvalidInputError):
    """A message is not JSON, has an unknown type, or a field of the wrong kind."""

    code = "invalid_message"


class CheckpointVersionError(InvalidInputError):
    """A checkpoint was made by a server of another version: the session cannot go on from it here."""

    code = "checkpoint_version"


class InvalidAudioError(InvalidInputError):
    """An audio chunk has an odd number of bytes or is longer than allowed."""

    code = "invalid_audio"


class UnsupportedSampleRateError(InvalidInputError):
    """A sample rate that the session cannot use."""

    code = "unsupported_sample_rate"


class UnsupportedLanguageError(InvalidInputError):
    """A language that the configured models do not speak."""

    code = "unsupported_language"


class UnsupportedVoiceError(InvalidInputError):
    """A voice that the configured synthesizer does not have."""

    code = "unsupported_voice"
    stage = "tts"


class UnknownAgentError(InvalidInputError):
    """No agent of this name is defined on the server."""

    code = "unknown_agent"


class CallNotFoundError(InvalidInputError):
    """There is no recorded call of this id."""

    code = "call_not_found"


class UnknownToolCallError(InvalidInputError):
    """A tool response for a call that is not waiting for one."""

    code = "unknown_tool_call"
    stage = "tool"


class ReferenceAudioError(InvalidInputError):
    """A recording from which no voice can be made."""

    code = "invalid_reference"


class ReferenceTooShortError(ReferenceAudioError):
    """The recording holds too little speech for a voice."""

    code = "reference_too_short"


class ReferenceTooLongError(ReferenceAudioError):
    """The recording lasts longer than a voice can be made of."""

    code = "reference_too_long"


class ReferenceClippedError(ReferenceAudioError):
    """The recording was made too loud: its peaks are cut off."""

    code = "reference_clipped"


class ReferenceTooQuietError(ReferenceAudioError):
    """The recording is silent, or too quiet for a voice."""

    code = "reference_too_quiet"


class ReferenceNotMonoError(ReferenceAudioError):
    """The recording has more than one channel."""

    code = "reference_not_mono"


class ConsentMissingError(InvalidInputError):
    """The server makes voices only of recordings that come with the speaker's consent."""

    code = "consent_missing"


class VoiceExistsError(InvalidInputError):
    """Another voice has this id."""

    code = "voice_exists"


class TooManyVoicesError(InvalidInputError):
    """The store holds as many voices as it may."""

    code = "too_many_voices"


class NotPermittedError(InvalidInputError):
    """The server's operator does not permit this."""

    code = "not_permitted"


class SessionError(ParleyError):
    """The session is not in a state that allows the request."""

    code = "session_error"


class SessionExistsError(SessionError):
    """START for a session that is already open."""

    code = "session_exists"


class SessionNotFoundError(SessionError):
    """A chunk for a session that was never started or has ended."""

    code = "session_not_found"


class TooManySessionsError(SessionError):
    """The server holds as many sessions as it may."""

    code = "too_many_sessions"
    retryable = True


class SessionIdleError(SessionError):
    """Nothing arrived for longer than the idle limit, or nothing showed that what was sent is read."""

    code = "session_idle"
    retryable = True


class ShuttingDownError(SessionError):
    """The server is stopping and takes no new work."""

    code = "shutting_down"
    retryable = True


class InferenceError(ParleyError):
    """A model answered with an error."""

    code = "inference_failed"
    retryable = True


class ModelUnavailableError(InferenceError):
    """The model is not loaded, or its process has died."""

    code = "model_unavailable"
    retryable = True


class DeadlineExceededError(InferenceError):
    """The model did not answer in time."""

    code = "deadline_exceeded"
    retryable = True


class OverloadedError(InferenceError):
    """A bounded queue of the model is full."""

    code = "overloaded"
    retryable = True


class ContextTooLongError(InferenceError):
    """The prompt does not fit into the model's context window."""

    code = "context_too_long"
    stage = "llm"
    retryable = False


class InvalidModelOutputError(InferenceError):
    """The language model wrote a tool call that cannot be read, as it would again for the same request."""

    code = "invalid_model_output"
    stage = "llm"
    retryable = False


class NoAnswerError(InferenceError):
    """The language model finished its answer without anything that can be spoken (or, as text, shown)."""

    code = "no_answer"
    stage = "llm"
    retryable = False


class ToolTimeoutError(ParleyError):
    """A tool did not answer in time."""

    code = "tool_timeout"
    stage = "tool"
    retryable = True


class InvalidToolCallError(ParleyError):
    """The language model called tools that are not there, or wrongly, more than once in a turn."""

    code = "invalid_tool_call"
    stage = "tool"

    def to_log(self) -> str:
        """The code alone: the message repeats arguments, which are made of the user's words."""
        return self.code


class AudioDroppedError(ParleyError):
    """Audio arrived faster than it could be used and the oldest was dropped."""

    code = "audio_dropped"
    retryable = True


class AsrFallbackError(ParleyError):
    """A speech model failed or was late; another one transcribes the utterance, and nothing is lost."""

    code = "asr_fallback"
    stage = "asr"


class LlmFallbackError(ParleyError):
    """A language model failed or was late; another one has answered, and nothing is lost."""

    code = "llm_fallback"
    stage = "llm"


class TtsFallbackError(ParleyError):
    """A synthesizer failed or was late; another one speaks the rest of the answer."""

    code = "tts_fallback"
    stage = "tts"


class VoiceDamagedError(ParleyError):
    """A stored voice is not what was stored, or not a voice."""

    code = "voice_damaged"
    stage = "tts"


class VoiceStoreError(ParleyError):
    """The place where voices are kept failed or was late."""

    code = "voice_store_failed"
    retryable = True


class VoiceStoreRefusedError(VoiceStoreError):
    """The place where voices are kept does not let the server in, or is not there."""

    code = "voice_store_refused"
    retryable = False


class ModelLoadingError(ParleyError):
    """A model cannot start."""

    code = "model_loading_failed"


class UnsupportedVersionError(ModelLoadingError):
    """A package, the driver, the GPU or Triton is of a version that the model does not run on."""

    code = "unsupported_version"


class NotInProfileError(ModelLoadingError):
    """The server runs a profile that does not have the model."""

    code = "not_in_profile"


class WeightsNotFoundError(ModelLoadingError, FileNotFoundError):
    """A weights folder or file is missing."""

    code = "weights_not_found"


def _all_errors(base: type[ParleyError]) -> dict[str, type[ParleyError]]:
    found = {base.code: base}
    for sub in base.__subclasses__():
        found |= _all_errors(sub)
    return found


_BY_CODE = _all_errors(ParleyError)


def from_wire(text: str) -> ParleyError:
    """The error behind a Triton error message.

    Text that carries no known code becomes an :class:`InferenceError`.
    """
    head, _, rest = text.partition(": ")
    # Triton puts its own words before a model's message: look for the code at their end.
    code = head.rsplit(" ", 1)[-1]
    kind = _BY_CODE.get(code)
    return kind(rest) if kind else InferenceError(text)
