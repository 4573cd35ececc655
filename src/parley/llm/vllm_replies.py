"""Answers of models for whose formats vLLM has the parsers. Imports vLLM."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

from parley.errors import InvalidMessageError, ModelLoadingError
from parley.llm.guidance import CACHED_TOOL_SETS, ToolSetCache, guidable, is_supported
from parley.llm.prompt import described
from parley.llm.replies import BadCall, ParsedCall, Piece, Reply, TextPiece
from parley.llm.vllm_api import ChatCompletionRequest, get_parser
from parley.protocol import ANY_TOOL, Tool


class VllmFormat:
    """A format that vLLM reads.

    Args:
        tool_parser: name of one of vLLM's tool parsers, as ``vllm serve --tool-call-parser`` has it.
        reasoning_parser: name of one of its reasoning parsers, for models that think before they answer;
            empty: none. What they think is dropped.
        template_options: variables of the model's chat template.
        check: takes a structural tag and raises an error of any kind if it is not supported. None: tool
            calls are not guided. They are not either if vLLM has no grammar for the tool parser's format.

    Raises:
        ModelLoadingError: vLLM has no such parser, or the tokenizer lacks what it needs.
    """

    def __init__(
        self,
        tokenizer: Any,
        tool_parser: str,
        reasoning_parser: str,
        template_options: Mapping[str, Any],
        check: Callable[[str], object] | None,
    ) -> None:
        # A model that thinks would go on within its thoughts.
        self.continues = not reasoning_parser
        self._tokenizer = tokenizer
        self._options = dict(template_options)
        self._check = check
        self._offered = ToolSetCache(_guided if check else _described)
        self._supported = lru_cache(CACHED_TOOL_SETS)(self._is_supported)
        try:
            parser = get_parser(tool_parser, reasoning_parser, strict=check is not None, tokenizer=tokenizer)
        except TypeError as error:
            raise ModelLoadingError(f"answers cannot be read: {error}") from error
        assert parser is not None  # there is a name
        self._parser = parser

    def begin(
        self,
        tools: Sequence[Tool],
        prompt: Sequence[int],
        *,
        after_results: bool = False,  # noqa: ARG002 - others need it
        continued: bool = False,
    ) -> Reply:
        """Prepare to read an answer."""
        return self._begin(tools, prompt, "auto" if tools else "none", continued=continued)

    def begin_call(self, tools: Sequence[Tool], prompt: Sequence[int], name: str) -> Reply:
        """See :class:`parley.llm.replies.ReplyFormat`."""
        named = {"type": "function", "function": {"name": name}}
        return self._begin(tools, prompt, "required" if name == ANY_TOOL else named)

    def _begin(
        self,
        tools: Sequence[Tool],
        prompt: Sequence[int],
        choice: str | dict[str, Any],
        *,
        continued: bool = False,
    ) -> Reply:
        try:
            request = ChatCompletionRequest(
                messages=[],
                tools=self._offered(tools) or None,
                tool_choice=choice,
                include_reasoning=False,
                stream=True,
            )
            offered = request.tools
            make = partial(self._parser, self._tokenizer, offered, chat_template_kwargs=self._options)
            request = make().adjust_request(request)
            # A call that the request does not offer is still no text to be spoken.
            request = request.model_copy(update={"tool_choice": "auto"})
        except ValueError as error:  # pydantic's and vLLM's own
            raise InvalidMessageError(f"the model cannot call these tools: {error}") from error
        return _VllmReply(make, request, list(prompt), self._tag(request), continued=continued)

    def _tag(self, request: ChatCompletionRequest) -> str | None:
        structured = request.structured_outputs
        tag: str | None = structured.structural_tag if structured and self._check else None
        return tag if tag and self._supported(tag) else None

    def _is_supported(self, tag: str) -> bool:
        assert self._check is not None  # there is a tag
        return is_supported(self._check, tag, "calls are not guided")


def _described(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    return [described(tool) for tool in tools]


def _guided(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    offered = _described(tools)
    for tool, schema in zip(offered, guidable(tools), strict=True):
        tool["function"]["parameters"] = schema
    return offered


class _VllmReply:
    """Joins the pieces of calls, and drops white space around them and at the answer's ends."""

    is_over = False

    def __init__(
        self,
        make: Callable[[], Any],
        request: ChatCompletionRequest,
        prompt: list[int],
        tag: str | None,
        *,
        continued: bool,
    ) -> None:
        self.structural_tag = tag
        self.skip_special_tokens: bool = request.skip_special_tokens
        self._make = make
        self._parser = make()
        self._request = request
        self._prompt = prompt
        self._written: list[str] = []
        self._ids: list[int] = []
        self._calls = 0
        self._index = -1
        self._call: list[str] | None = None  # the name, then pieces of the arguments
        self._blank = ""  # white space that may be the end
        self._spoken = continued

    def read(self, text: str, token_ids: Sequence[int], *, last: bool) -> list[Piece]:
        """Read what was written since the last call."""
        self._written.append(text)
        self._ids += token_ids
        delta = self._parser.parse_delta(text, list(token_ids), self._request, self._prompt, finished=last)
        pieces: list[Piece] = []
        if delta is not None:
            if delta.content:
                self._say(delta.content, pieces)
            for call in delta.tool_calls or ():
                self._add(call, pieces)
        if last:
            self._end(pieces)
        return pieces

    def _end(self, pieces: list[Piece]) -> None:
        # Some parsers lose what comes in one piece with the end. Calls that are complete stay as they were.
        whole = "".join(self._written)
        _, _, calls = self._make().parse(whole, self._request, True, self._ids)
        missing = (calls or [])[self._calls :]
        if missing:
            self._call = None
        self._end_call(pieces)
        pieces += [_call(call.name, call.arguments) for call in missing]

    def _say(self, text: str, pieces: list[Piece]) -> None:
        text = self._blank + text
        if not self._spoken:
            text = text.lstrip()
        said = text.rstrip()
        self._blank = text[len(said) :]
        if said:
            self._end_call(pieces)
            self._spoken = True
            pieces.append(TextPiece(said))

    def _add(self, delta: Any, pieces: list[Piece]) -> None:
        if delta.index != self._index or self._call is None:
            self._end_call(pieces)
            self._index, self._call = delta.index, [""]
            self._blank, self._spoken = "", False
        if delta.function is not None:
            self._call[0] = self._call[0] or delta.function.name or ""
            self._call.append(delta.function.arguments or "")

    def _end_call(self, pieces: list[Piece]) -> None:
        if self._call is None:
            return
        pieces.append(_call(self._call[0], "".join(self._call[1:])))
        self._calls += 1
        self._call = None


def _call(name: str, raw: str) -> Piece:
    try:
        arguments = json.loads(raw or "{}")
    except ValueError as error:
        return BadCall(raw, str(error))
    if not isinstance(arguments, dict) or not name:
        return BadCall(raw, "a call has a name, and its arguments are an object")
    return ParsedCall(name, arguments)
