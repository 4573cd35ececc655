"""Tools that are HTTP requests."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping
from typing import Any

import httpx2
import msgspec

from parley.protocol import Tool
from parley.tools.base import ToolOutcome
from parley.tools.settings import HttpToolSettings
from parley.tools.templates import ArgumentRefusedError, UrlTemplate

_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
_MAX_REASON = 500
"""Characters of a refusal's text that the language model gets to see."""
_CLOSED = {"type": "object", "additionalProperties": False}
_HIDDEN = "[hidden]"
_MIN_SECRET = 4
_log = logging.getLogger(__name__)


class HttpTool:
    """Runs one tool; whoever calls it sees to ``timeout_s``.

    Arguments without a place in the URL are sent as a JSON object where the method has a body, else as
    part of the query.

    Args:
        settings: what the tool is.
        headers: of its requests.
        secrets: what must not be in any answer, because a server may repeat what it was sent.
        client: sends the requests.

    Raises:
        ValueError: the URL does not suit the schema.
    """

    def __init__(
        self,
        settings: HttpToolSettings,
        headers: Mapping[str, str],
        secrets: Collection[str],
        client: httpx2.AsyncClient,
    ) -> None:
        # Arguments that nobody described would become part of the request.
        closed = {name: value for name, value in _CLOSED.items() if name not in settings.parameters}
        parameters = {**settings.parameters, **closed}
        self.tool = Tool(name=settings.name, description=settings.description, parameters=parameters)
        self.timeout_s = settings.timeout_ms / 1000
        self._settings = settings
        self._template = UrlTemplate(settings.url, parameters)
        self._headers = dict(headers)
        self._secrets = [secret for secret in secrets if len(secret) >= _MIN_SECRET]
        self._client = client

    async def call(self, arguments: Mapping[str, Any]) -> ToolOutcome:
        """Run it; cancellation closes the connection, and failures are outcomes and lines in the log."""
        try:
            return await self._request(arguments)
        except ArgumentRefusedError as error:
            return self._failed(str(error))
        except _TooLongError:
            return self._failed(f"the answer is longer than {self._settings.max_bytes} bytes")
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            # The exception's own text may hold the URL, and with it what the user said.
            return self._failed(f"the tool cannot be reached ({type(error).__name__})")

    def _failed(self, reason: str) -> ToolOutcome:
        """A failure; ``reason`` holds neither arguments nor secrets."""
        self._log_failure(reason)
        return ToolOutcome.failed(reason)

    def _log_failure(self, reason: str) -> None:
        _log.warning("tool %s failed: %s", self._settings.name, reason)

    async def _request(self, arguments: Mapping[str, Any]) -> ToolOutcome:
        method = self._settings.method
        with_body = method in _WITH_BODY
        url = self._template.fill(arguments, others_in_query=not with_body)
        headers = {"Accept": "application/json, text/*;q=0.9", **self._headers}
        content = None
        if with_body:
            body = {name: value for name, value in arguments.items() if name not in self._template.names}
            content = msgspec.json.encode(body)
            headers["Content-Type"] = "application/json"
        request = self._client.build_request(method, url, headers=headers, content=content)
        response = await self._client.send(request, stream=True)
        try:
            return self._read(response, await self._body(response))
        finally:
            await response.aclose()

    async def _body(self, response: httpx2.Response) -> bytes:
        body = bytearray()
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > self._settings.max_bytes:
                raise _TooLongError
        return bytes(body)

    def _read(self, response: httpx2.Response, body: bytes) -> ToolOutcome:
        text = body.decode(errors="replace")
        status = response.status_code
        if response.is_success:
            return ToolOutcome(self._hide_secrets(_value(text)))
        if response.is_redirect:
            return self._failed(f"HTTP {status}: redirects are not followed")
        self._log_failure(f"HTTP {status}")
        value = _value(text)
        answer = self._hide_secrets(value)
        if answer != value:
            text = answer if isinstance(answer, str) else msgspec.json.encode(answer).decode()
        return ToolOutcome({"error": f"HTTP {status}", "answer": text[:_MAX_REASON]}, is_error=True)

    def _hide_secrets(self, value: Any) -> Any:
        """In a decoded value, because JSON can write the same text in many ways."""
        try:
            return self._without_secrets(value) if self._secrets else value
        except RecursionError:  # nobody can say what is in there
            return _HIDDEN

    def _without_secrets(self, value: Any) -> Any:
        if isinstance(value, str):
            for secret in self._secrets:
                value = value.replace(secret, _HIDDEN)
            return value
        if isinstance(value, list):
            return [self._without_secrets(item) for item in value]
        if isinstance(value, dict):
            return {self._without_secrets(key): self._without_secrets(item) for key, item in value.items()}
        # A secret may be nothing but digits.
        return _HIDDEN if any(secret in json.dumps(value) for secret in self._secrets) else value


class _TooLongError(Exception):
    """The answer is longer than allowed."""


def _value(text: str) -> Any:
    """JSON if it is any, else the text."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text
