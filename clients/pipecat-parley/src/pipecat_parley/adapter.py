"""Pipecat's conversations as Parley's language models take them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict, cast

from pipecat.adapters.llm.base_llm_adapter import BaseLLMAdapter, LLMContextConversionError
from pipecat.adapters.llm.schemas.tools_schema import ToolsSchema
from pipecat.processors.aggregators.llm_context import LLMContext, LLMContextMessage, LLMSpecificMessage

from parley.chat import ChatMessage
from parley.errors import InvalidMessageError
from parley.protocol import Tool
from parley_client.chat_format import read_messages, read_tool


class ParleyInvocation(TypedDict):
    """What a generation is asked for."""

    messages: list[ChatMessage]
    tools: list[Tool]


class ParleyLLMAdapter(BaseLLMAdapter[ParleyInvocation]):
    """Turns universal contexts and tools into Parley's messages.

    Images, audio and files are left out: the models read text. A message with the role ``developer``
    becomes the user's. A message for this service alone holds the fields of a standard message.
    """

    @property
    def id_for_llm_specific_messages(self) -> str:
        """Whose messages of a special kind are meant for this service."""
        return "parley"

    async def get_llm_invocation_params(self, context: LLMContext, **kwargs: Any) -> ParleyInvocation:
        """What a generation is asked for.

        Args:
            context: the conversation.
            **kwargs: ``system_instruction``: of the service, or None.

        Raises:
            LLMContextConversionError: a message is not as Pipecat writes it.
        """
        given = [_fields(message) for message in self.get_messages(context)]
        instruction = kwargs.get("system_instruction")
        # The system prompt is one message at the start, so there is room for one of the two.
        of_context = self._extract_initial_system(given, system_instruction=instruction)
        system = self._resolve_system_instruction(of_context, instruction, discard_context_system=True)
        try:
            messages = read_messages(given)
        except InvalidMessageError as error:
            raise LLMContextConversionError(error) from error
        if system:
            messages.insert(0, ChatMessage(role="system", content=system))
        tools = None if context.tool_choice == "none" else self.from_standard_tools(context.tools)
        return {"messages": messages, "tools": tools if isinstance(tools, list) else []}

    def to_provider_tools_format(self, tools_schema: ToolsSchema) -> list[Tool]:
        """The tools of a schema; those in another provider's own format are left out."""
        return [read_tool(schema.to_default_dict()) for schema in tools_schema.standard_tools]

    def get_messages_for_logging(self, context: LLMContext) -> list[dict[str, Any]]:
        """The messages, with what is long cut short."""
        return [_fields(message) for message in self.get_messages(context, truncate_large_values=True)]


def _fields(message: LLMContextMessage) -> dict[str, Any]:
    content = message.message if isinstance(message, LLMSpecificMessage) else message
    return dict(cast("Mapping[str, Any]", content))
