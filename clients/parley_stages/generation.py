"""The language model alone.

::

    async with open_server("127.0.0.1:8001") as server, Generation(server) as chat:
        async with chat.answer([ChatMessage(role="user", content="Hello!")]) as answer:
            async for event in answer:
                if isinstance(event, TextDelta):
                    print(event.text, end="")
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias
from uuid import uuid4

from parley.chat import ChatMessage
from parley.engines.qwen3 import MODEL, Qwen3ChatModel
from parley.llm.messages import GenerateRequest, LlmEvent, Priority, Sampling, new_cache_salt
from parley.protocol import Tool
from parley.triton.grpc_client import GrpcModelClient
from parley_stages.server import ClosedAtTheEnd, StageServer
from parley_stages.streams import ModelStream, Requests

Answer: TypeAlias = ModelStream[LlmEvent]
"""``TextDelta`` and ``ToolCalled``, at last ``Completed`` (:mod:`parley.llm.messages`)."""


class Generation(ClosedAtTheEnd):
    """Chat completions; any number may be under way.

    Args:
        server: where the model is.
        model: its name.
        timeout_s: seconds until the first event of an answer, or the next one, is overdue.
        cache_salt: answers with one salt share the prefix cache. Empty: only these answers do.
    """

    def __init__(
        self, server: StageServer, *, model: str = MODEL, timeout_s: float = 30.0, cache_salt: str = ""
    ) -> None:
        self._client = GrpcModelClient(lambda: server.channel)
        self._model = Qwen3ChatModel(self._client, model=model, timeout_s=timeout_s)
        self._name = model
        self._cache_salt = cache_salt or new_cache_salt()
        self._requests = Requests()

    def answer(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Tool] = (),
        must_call: str = "",
        json_schema: dict[str, Any] | None = None,
        sampling: Sampling | None = None,
        priority: Priority = Priority.ANSWER,
        traceparent: str = "",
    ) -> Answer:
        """The assistant's next message; nothing is sent before it is iterated.

        Its iteration raises ``InvalidMessageError`` where the model does not accept the request,
        ``ContextTooLongError``, ``OverloadedError``, ``ModelUnavailableError``,
        ``DeadlineExceededError``, or another ``InferenceError`` where the model failed.

        Args:
            messages: the conversation so far.
            tools: that the model may call; the caller runs them.
            must_call: name of the tool whose call the message is, or ``ANY_TOOL``; empty: the model chooses.
            json_schema: of the message, which is JSON then; only without tools. None: it is text.
            sampling: of tokens; None: greedy, at most 256.
            priority: the order where not all requests fit.
            traceparent: span of the caller (W3C Trace Context); empty: there is none.
        """
        request = GenerateRequest(
            request_id=uuid4().hex,
            messages=list(messages),
            tools=list(tools),
            must_call=must_call,
            json_schema=json_schema,
            sampling=sampling or Sampling(),
            priority=priority,
            cache_salt=self._cache_salt,
            traceparent=traceparent,
        )
        return ModelStream(
            self._model.generate(request),
            lambda: self._model.abort(request.request_id),
            self._requests,
            self._name,
        )

    async def close(self) -> None:
        """Stop what is under way."""
        await self._requests.close()
        await self._client.close()
