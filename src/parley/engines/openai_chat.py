"""A server with OpenAI's chat completions as a :class:`parley.engines.base.ChatModel`."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from string import ascii_uppercase
from typing import Any

import httpx2
import msgspec

from parley.chat import ChatMessage, ToolCall
from parley.engines.base import RemoteChat
from parley.errors import (
    ContextTooLongError,
    DeadlineExceededError,
    InferenceError,
    InvalidModelOutputError,
    ModelLoadingError,
    ModelUnavailableError,
    OverloadedError,
    ShuttingDownError,
)
from parley.llm.messages import (
    Choices,
    Completed,
    GenerateRequest,
    LlmEvent,
    Priority,
    Question,
    TextDelta,
    ToolCalled,
    compare,
)
from parley.llm.prompt import described, plain_message
from parley.llm.replies import overlap
from parley.protocol import ANY_TOOL
from parley.timeouts import loop_time
from parley.tts.text import ends_sentence

_CONNECT_S = 5.0
_MOST_BYTES = 4 << 20
"""Size of one answer."""
_MOST_LINE = 1 << 20
_MOST_ERROR = 65_536
_MOST_CALLS = 32
_MOST_CONNECTIONS = 64
_QUESTIONS_AT_ONCE = 4
_TOP_LOGPROBS = 20
_MOST_MISSES = 3
"""Answers without log probabilities, one after the other, after which none are asked for."""
_ASKED_AGAIN_S = 600.0
"""As many as OpenAI gives."""
_NO_LOGPROBS = "the chat server gives no log probabilities, which decisions need"
_DATA = b"data:"
_DONE = b"[DONE]"
_THOUGHT, _THOUGHT_END = "<think>", "</think>"
_FILTERED = "content_filter"


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _CallDelta(msgspec.Struct):
    index: int | None = None
    function: _Function | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    tool_calls: list[_CallDelta] | None = None


class _Token(msgspec.Struct):
    token: str = ""
    logprob: float | None = None


class _ScoredToken(msgspec.Struct):
    top_logprobs: list[_Token] | None = None


class _Logprobs(msgspec.Struct):
    content: list[_ScoredToken] | None = None


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    # Not `cached_tokens`: all sessions have one key there, and each would read what others have said.


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_chunks = msgspec.json.Decoder(_Chunk)


class OpenAiChatModel:
    """Chat completions over HTTP.

    Raises:
        ModelLoadingError: the settings name no server or no model.
    """

    def __init__(self, settings: RemoteChat, *, timeout_s: float = 30.0) -> None:
        if not settings.url.startswith(("http://", "https://")) or not settings.model:
            raise ModelLoadingError("llm_url and llm_model must name a server (http or https) and its model")
        self._url = f"{settings.url.rstrip('/')}/chat/completions"
        self._model = settings.model
        self._continuation = settings.continuation
        self._timeout_s = timeout_s
        self._aborts: dict[str, asyncio.Event] = {}
        self._misses = 0
        """Answers without log probabilities, one after the other."""
        self._asked_again_at = -math.inf
        headers = {"Authorization": f"Bearer {settings.key}"} if settings.key else {}
        self._client = httpx2.AsyncClient(
            headers={"User-Agent": "parley", "Accept-Encoding": "identity", **headers},
            timeout=httpx2.Timeout(timeout_s, connect=min(_CONNECT_S, timeout_s)),
            limits=httpx2.Limits(max_connections=_MOST_CONNECTIONS),
            trust_env=False,
            follow_redirects=False,
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[LlmEvent, None]:
        """Stream the answer; the last event is ``Completed``. Closing it early closes the connection.

        A warm-up is not sent: the server would count its tokens, and may keep nothing of it.
        Where the server cannot go on with a message, one that has begun is over; if it ends within a
        sentence, its finish reason is ``length``.

        Raises:
            InferenceError: the server cannot be reached, refused the request, is overloaded, or was silent
                for too long.
            InvalidModelOutputError: a tool call cannot be read.
        """
        if request.priority == Priority.WARM_UP:
            yield Completed(finish_reason="stop")
            return
        if request.turn_end:
            raise InferenceError("a remote model does not say whether a sentence ends")
        if request.prefix and self._continuation == "none":
            whole = ends_sentence(request.prefix)
            yield Completed(finish_reason="stop" if whole else "length")
            return
        aborted = self._aborts.setdefault(request.request_id, asyncio.Event())
        run = self._compare if request.questions else self._events
        try:
            async with aclosing(run(request)) as events:
                while True:
                    event = await _unless(aborted, events)
                    if event is None:
                        yield Completed(finish_reason="abort")
                        return
                    yield event
                    if isinstance(event, Completed):
                        return
        finally:
            self._aborts.pop(request.request_id, None)

    async def abort(self, request_id: str) -> None:
        """Stop ``generate`` of this id at once; unknown ids are not an error."""
        if request_id in self._aborts:
            self._aborts[request_id].set()

    async def _compare(self, request: GenerateRequest) -> AsyncGenerator[LlmEvent, None]:
        """Answer the request's questions, each with a request of its own.

        A server that has once given no log probabilities is not asked again.

        Raises:
            InferenceError: as in :meth:`generate`, or the server gives no log probabilities.
        """
        if loop_time() < self._asked_again_at:
            raise InferenceError(_NO_LOGPROBS)
        places = asyncio.Semaphore(_QUESTIONS_AT_ONCE)

        async def ask(question: Question) -> list[float]:
            async with places:
                return await self._ask(request, question)

        answers = await asyncio.gather(*map(ask, request.questions), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        yield Choices(probabilities=[answer for answer in answers if isinstance(answer, list)])
        yield Completed(finish_reason="stop", completion_tokens=len(answers))

    async def _ask(self, request: GenerateRequest, question: Question) -> list[float]:
        lines = [
            f"{letter}: {choice}" for letter, choice in zip(ascii_uppercase, question.choices, strict=False)
        ]
        note = "\n".join((f"A question about the user: {question.text}", *lines, "Answer with one letter."))
        asked = msgspec.structs.replace(
            request, messages=[*request.messages, ChatMessage(role="system", content=note)]
        )
        body = {**self._body(asked), "logprobs": True, "top_logprobs": _TOP_LOGPROBS, "max_tokens": 1}
        if request.tools:
            body["tool_choice"] = "none"
        async with aclosing(self._chunks(body, request.traceparent)) as chunks:
            async for chunk in chunks:
                if chunk.error is not None:
                    raise InferenceError("the chat server failed within its answer")
                for choice in chunk.choices[:1]:
                    for token in (choice.logprobs and choice.logprobs.content) or ():
                        self._misses = 0
                        return _compare_letters(token.top_logprobs or [], len(question.choices))
        self._misses += 1
        if self._misses >= _MOST_MISSES:
            self._misses, self._asked_again_at = 0, loop_time() + _ASKED_AGAIN_S
        raise InferenceError(_NO_LOGPROBS)

    async def _events(self, request: GenerateRequest) -> AsyncGenerator[LlmEvent, None]:
        answer = _Answer(request.request_id, request.prefix)
        forced = request.must_call
        async with aclosing(self._chunks(self._body(request), request.traceparent)) as chunks:
            async for chunk in chunks:
                for event in answer.read(chunk):
                    if not forced:
                        yield event
        events = answer.end()
        called = [event.call.name for event in events if isinstance(event, ToolCalled)]
        if forced and not any(forced in (ANY_TOOL, name) for name in called):
            raise InvalidModelOutputError("the chat server made no call of the tool that it was to call")
        for event in events:
            if not (forced and isinstance(event, TextDelta)):
                yield event

    async def _chunks(self, body: dict[str, Any], traceparent: str) -> AsyncGenerator[_Chunk, None]:
        """The pieces of the answer to one HTTP request."""
        if self._client.is_closed:
            raise ShuttingDownError("the connections to the chat server are closed")
        try:
            headers = {"traceparent": traceparent} if traceparent else None
            request = self._client.build_request("POST", self._url, json=body, headers=headers)
            response = await self._client.send(request, stream=True)
            try:
                if not response.is_success:
                    raise await _refusal(response)
                async with aclosing(_read_chunks(response)) as chunks:
                    async for chunk in chunks:
                        yield chunk
            finally:
                await response.aclose()
        except httpx2.TimeoutException as error:
            raise DeadlineExceededError(f"the chat server was silent ({type(error).__name__})") from error
        except UnicodeError as error:
            raise InferenceError(
                f"the chat server cannot be asked, or understood: {type(error).__name__}"
            ) from error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            # Neither its text nor the request's: they may hold what the user said.
            raise ModelUnavailableError(
                f"the chat server cannot be reached ({type(error).__name__})"
            ) from error

    def _body(self, request: GenerateRequest) -> dict[str, Any]:
        sampling = request.sampling
        messages = [plain_message(message) for message in request.messages]
        for message in messages:
            for call in message.get("tool_calls", ()):
                call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
        body: dict[str, Any] = {
            "model": self._model,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
        }
        if request.prefix:
            opened: dict[str, Any] = {"role": "assistant", "content": request.prefix}
            if self._continuation == "prefix":
                opened["prefix"] = True
            elif self._continuation == "continue_final_message":
                body |= {"continue_final_message": True, "add_generation_prompt": False}
            messages.append(opened)
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        if request.tools:
            body["tools"] = [described(tool) for tool in request.tools]
        if request.json_schema is not None:
            form = {"name": "answer", "strict": True, "schema": request.json_schema}
            body["response_format"] = {"type": "json_schema", "json_schema": form}
        if request.must_call:
            named = {"type": "function", "function": {"name": request.must_call}}
            body["tool_choice"] = "required" if request.must_call == ANY_TOOL else named
        return body


def _compare_letters(tokens: Sequence[_Token], choices: int) -> list[float]:
    """Probabilities of the first letters of the alphabet, out of the likeliest tokens.

    One that is not among them has at most the probability of the last of them, which is taken.
    """
    found: dict[str, float] = {}
    for one in tokens:
        letter = one.token.strip().upper()
        if one.logprob is not None and (letter not in found or one.logprob > found[letter]):
            found[letter] = one.logprob
    letters = ascii_uppercase[:choices]
    if not any(letter in found for letter in letters):
        return []
    least = min(found.values())
    return compare([found.get(letter, least) for letter in letters])


class _SpokenText:
    """Leaves out what a model writes between ``<think>`` and ``</think>``, in pieces of any size."""

    def __init__(self, *, continued: bool) -> None:
        self._held = ""  # text that may become a tag
        self._thinks = False
        self._begins = not continued  # white space before the first word is no text

    def feed(self, text: str) -> str:
        """Read a piece; returns the text in it that is certainly no thought."""
        seen, spoken, at = self._held + text, [], 0
        while (end := seen.find(self._tag, at)) >= 0:
            spoken.append(self._take(seen[at:end]))
            at = end + len(self._tag)
            self._thinks = not self._thinks
        sure = max(at, len(seen) - overlap(seen, self._tag))
        spoken.append(self._take(seen[at:sure]))
        self._held = seen[sure:]
        return "".join(spoken)

    def finish(self) -> str:
        """The text that was held back, at the end of the answer."""
        spoken, self._held = self._take(self._held), ""
        return spoken

    @property
    def _tag(self) -> str:
        return _THOUGHT_END if self._thinks else _THOUGHT

    def _take(self, text: str) -> str:
        if self._thinks:
            return ""
        text = text.lstrip() if self._begins else text
        self._begins = self._begins and not text
        return text


class _Answer:
    """Events out of the pieces of one answer; tool calls are complete at its end.

    Some servers repeat the text that an answer begins with (``prefix``): it is left out.
    """

    def __init__(self, name: str, prefix: str = "") -> None:
        self._name = name
        self._prefix = prefix
        self._held = ""  # text that may be the prefix
        self._spoken = _SpokenText(continued=bool(prefix))
        self._calls: dict[int, list[str]] = {}  # the name, then pieces of the arguments
        self._reason = ""
        self._usage = _Usage()

    def read(self, chunk: _Chunk) -> list[LlmEvent]:
        if chunk.error is not None:
            raise InferenceError("the chat server failed within its answer")
        self._usage = chunk.usage or self._usage
        events: list[LlmEvent] = []
        for choice in chunk.choices[:1]:
            self._reason = choice.finish_reason or self._reason
            if choice.delta.content and (text := self._spoken.feed(choice.delta.content)):
                events += self._new_text(text)
            for delta in choice.delta.tool_calls or ():
                self._add(delta)
        return events

    def _new_text(self, text: str) -> list[TextDelta]:
        if not self._prefix:
            return [TextDelta(text=text)]
        self._held += text
        if self._prefix.startswith(self._held) and self._held != self._prefix:
            return []
        new, self._prefix, self._held = self._held.removeprefix(self._prefix), "", ""
        return [TextDelta(text=new)] if new else []

    def end(self) -> list[LlmEvent]:
        if not self._reason:
            raise InferenceError("the chat server ended its answer without a reason")
        if self._reason == _FILTERED:
            raise InferenceError("the chat server withheld the rest of its answer")
        if self._calls and self._reason == "length":
            raise InvalidModelOutputError("the answer ended within a tool call")
        last = self._spoken.finish()
        events: list[LlmEvent] = [*self._new_text(last)] if last else []
        events += [TextDelta(text=self._held)] if self._held else []
        events += [
            ToolCalled(call=_call(f"{self._name}-{number}", pieces))
            for number, (_, pieces) in enumerate(sorted(self._calls.items()))
        ]
        completed = Completed(
            finish_reason="tool_calls" if self._calls else "length" if self._reason == "length" else "stop",
            prompt_tokens=self._usage.prompt_tokens,
            completion_tokens=self._usage.completion_tokens,
        )
        return [*events, completed]

    def _add(self, delta: _CallDelta) -> None:
        named = delta.function is not None and bool(delta.function.name)
        # Some servers count no calls: then a name begins the next one.
        index = delta.index if delta.index is not None else max(self._calls, default=-1) + named
        if index not in self._calls and len(self._calls) >= _MOST_CALLS:
            raise InvalidModelOutputError(f"more than {_MOST_CALLS} tool calls in one answer")
        pieces = self._calls.setdefault(index, [""])
        if delta.function is not None:
            pieces[0] = pieces[0] or delta.function.name or ""
            pieces.append(delta.function.arguments or "")


def _call(call_id: str, pieces: list[str]) -> ToolCall:
    try:
        arguments = msgspec.json.decode("".join(pieces[1:]) or "{}", type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidModelOutputError(f"a tool call cannot be read: {error}") from error
    if not pieces[0]:
        raise InvalidModelOutputError("a tool call has no name")
    return ToolCall(id=call_id, name=pieces[0], arguments=arguments)


async def _read_chunks(response: httpx2.Response) -> AsyncGenerator[_Chunk, None]:
    """The events of the stream; bounded as a whole and by line."""
    async with aclosing(_read_lines(response)) as lines:
        async for line in lines:
            data = line.strip().removeprefix(_DATA).strip()
            if not line.startswith(_DATA) or not data:
                continue
            if data == _DONE:
                return
            try:
                yield _chunks.decode(data)
            except (msgspec.MsgspecError, RecursionError) as error:
                raise InferenceError(f"the chat server's answer cannot be read: {error}") from error


async def _read_lines(response: httpx2.Response) -> AsyncGenerator[bytes, None]:
    received = 0
    begun = bytearray()
    async for piece in response.aiter_raw():
        received += len(piece)
        *ends, rest = piece.split(b"\n")
        for end in ends:
            yield bytes(begun + end)
            begun.clear()
        begun += rest
        if received > _MOST_BYTES or len(begun) > _MOST_LINE:
            raise InferenceError("the chat server's answer is too long")
    if begun:  # without an end of line
        yield bytes(begun)


async def _refusal(response: httpx2.Response) -> InferenceError:
    """What a refusal means; its text is only searched, because it may repeat what the user said."""
    body = bytearray()
    async for piece in response.aiter_raw():
        body += piece
        if len(body) > _MOST_ERROR:
            break
    status = response.status_code
    said = f"the chat server answered with HTTP {status}"
    if status in (429, 503):
        return OverloadedError(said)
    if b"context_length_exceeded" in body or b"maximum context length" in body:
        return ContextTooLongError(said)
    if status >= 500 or status in (401, 403, 404):
        return ModelUnavailableError(said)
    return InferenceError(said)


async def _unless(aborted: asyncio.Event, events: AsyncGenerator[LlmEvent, None]) -> LlmEvent | None:
    """The next event; None if it is aborted first."""
    coming = asyncio.ensure_future(anext(events))
    stop = asyncio.ensure_future(aborted.wait())
    try:
        await asyncio.wait({coming, stop}, return_when=asyncio.FIRST_COMPLETED)
        return None if aborted.is_set() else await coming
    finally:
        for task in (coming, stop):
            task.cancel()
        await asyncio.wait({coming, stop})
        if not coming.cancelled():
            coming.exception()  # retrieved, because the answer was aborted
