"""Parley's language model for LiveKit."""

from __future__ import annotations

import json
from typing import Any, Never

import msgspec
from livekit.agents import DEFAULT_API_CONNECT_OPTIONS, NOT_GIVEN, APIConnectOptions, NotGivenOr, llm, utils

from parley.chat import ChatMessage
from parley.errors import ParleyError
from parley.llm.messages import Completed, Sampling, TextDelta, ToolCalled, cut_short
from parley.protocol import Tool
from parley.tls import TlsOptions
from parley_client.chat_format import read_messages, read_tool
from parley_stages import Generation
from parley_stages.server import LazyServer

from .errors import api_error

_TIMEOUT_S = 30.0


class LLM(llm.LLM[Never]):
    """Chat completions of a language model of a Parley server.

    Args:
        server: ``host:port`` of the gRPC endpoint.
        tls: how the server is spoken to by TLS; None: plain text.
        model: its name on the server.
        temperature: 0: always the most likely token.
        top_p: share of the probability that tokens are drawn from.
        max_tokens: longest answer.
        seed: to draw the same tokens again; None: never.
        timeout_s: seconds until the first token, or the next one, is overdue.
    """

    def __init__(
        self,
        *,
        server: str = "127.0.0.1:8001",
        tls: TlsOptions | None = None,
        model: str = "qwen3",
        temperature: float = 0.0,
        top_p: float = 1.0,
        max_tokens: int = 256,
        seed: int | None = None,
        timeout_s: float = _TIMEOUT_S,
    ) -> None:
        super().__init__()
        self._server = LazyServer(server, tls=tls)
        self._model = model
        self._sampling = Sampling(temperature=temperature, top_p=top_p, max_tokens=max_tokens, seed=seed)
        self._timeout_s = timeout_s
        self._generation: Generation | None = None

    @property
    def model(self) -> str:
        """Name of the model on the server."""
        return self._model

    @property
    def provider(self) -> str:
        """Whose model it is."""
        return "Parley"

    def chat(
        self,
        *,
        chat_ctx: llm.ChatContext,
        tools: list[llm.Tool] | None = None,
        conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS,
        parallel_tool_calls: NotGivenOr[bool] = NOT_GIVEN,  # noqa: ARG002 - the model decides
        tool_choice: NotGivenOr[llm.ToolChoice] = NOT_GIVEN,
        extra_kwargs: NotGivenOr[dict[str, Any]] = NOT_GIVEN,
    ) -> LLMStream:
        """Ask for the assistant's next message.

        Args:
            chat_ctx: the conversation.
            tools: that the model may call.
            conn_options: how often to try again.
            parallel_tool_calls: is not supported and ignored.
            tool_choice: ``none`` hides the tools from the model; the others are not supported and ignored.
            extra_kwargs: fields of :class:`parley.llm.messages.Sampling` to use for this message.
        """
        return LLMStream(
            self,
            chat_ctx=chat_ctx,
            tools=[] if tool_choice == "none" else tools or [],
            conn_options=conn_options,
            sampling=msgspec.structs.replace(self._sampling, **(extra_kwargs or {})),
        )

    async def generation(self) -> Generation:
        """The model, when the server is connected.

        Raises:
            ConnectError: it cannot be.
        """
        server = await self._server.get()
        if self._generation is None:
            self._generation = Generation(server, model=self._model, timeout_s=self._timeout_s)
        return self._generation

    async def _prewarm_impl(self) -> None:
        await self._server.get()

    async def aclose(self) -> None:
        """Stop what is under way and close the connection."""
        await super().aclose()
        if self._generation is not None:
            await self._generation.close()
            self._generation = None
        await self._server.close()


class LLMStream(llm.LLMStream):
    """One answer; closing it early stops the model within one of its steps."""

    def __init__(
        self,
        owner: LLM,
        *,
        chat_ctx: llm.ChatContext,
        tools: list[llm.Tool],
        conn_options: APIConnectOptions,
        sampling: Sampling,
    ) -> None:
        super().__init__(owner, chat_ctx=chat_ctx, tools=tools, conn_options=conn_options)
        self._owner = owner
        self._sampling = sampling
        self._retry_on_chunk_sent = False  # half an answer is not said twice

    async def _run(self) -> None:
        request_id = utils.shortuuid()
        try:
            model = await self._owner.generation()
            answer = model.answer(messages_of(self._chat_ctx), tools=self._offered(), sampling=self._sampling)
            async with answer:
                async for event in answer:
                    if isinstance(event, TextDelta | ToolCalled | Completed):
                        self._event_ch.send_nowait(_chunk(event, request_id))
        except ParleyError as error:
            raise api_error(error, request_id=request_id) from error

    def _offered(self) -> list[Tool]:
        schemas = llm.ToolContext(self._tools).parse_function_tools("openai", strict=False)
        return [read_tool(schema["function"]) for schema in schemas]


def messages_of(chat_ctx: llm.ChatContext) -> list[ChatMessage]:
    """A conversation as Parley's models take it: its texts, tool calls and their results.

    An answer that was interrupted ends with "…", as in the conversations of Parley's own agent.

    Raises:
        InvalidMessageError: a tool call's arguments are not a JSON object.
    """
    marked = llm.ChatContext([_marked(item) for item in chat_ctx.items])
    messages, _ = marked.to_provider_format("openai")
    return read_messages(messages)


def _marked(item: llm.ChatItem) -> llm.ChatItem:
    # LiveKit's formats for models leave out that a message was interrupted.
    if item.type != "message" or item.role != "assistant" or not item.interrupted:
        return item
    return item.model_copy(update={"content": [cut_short(item.raw_text_content or "")]})


def _chunk(event: TextDelta | ToolCalled | Completed, request_id: str) -> llm.ChatChunk:
    if isinstance(event, TextDelta):
        return llm.ChatChunk(id=request_id, delta=llm.ChoiceDelta(role="assistant", content=event.text))
    if isinstance(event, ToolCalled):
        call = llm.FunctionToolCall(
            name=event.call.name, arguments=json.dumps(event.call.arguments), call_id=event.call.id
        )
        return llm.ChatChunk(id=request_id, delta=llm.ChoiceDelta(role="assistant", tool_calls=[call]))
    usage = llm.CompletionUsage(
        completion_tokens=event.completion_tokens,
        prompt_tokens=event.prompt_tokens,
        prompt_cached_tokens=event.cached_tokens,
        cache_read_tokens=event.cached_tokens,
        total_tokens=event.prompt_tokens + event.completion_tokens,
    )
    return llm.ChatChunk(id=request_id, usage=usage)
