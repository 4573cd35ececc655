"""Tools that are HTTP requests."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import quote, unquote_plus, urlsplit

import httpx2
import msgspec

from parley.protocol import Tool
from parley.tools.addresses import AnswerTooLongError
from parley.tools.base import ReportProgress, ToolOutcome, read_value
from parley.tools.settings import HttpToolSettings

_PLACE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_SCALARS = frozenset({"string", "number", "integer", "boolean"})
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
_MAX_REASON = 500
"""Characters of a refusal's text that the language model gets to see."""
_CLOSED = {"type": "object", "additionalProperties": False}
_HIDDEN = "[hidden]"
_MIN_SECRET = 4
_log = logging.getLogger(__name__)


class ArgumentRefusedError(ValueError):
    """An argument that cannot stand in the URL; the message says which and why."""


class UrlTemplate:
    """A URL with ``{argument}`` in its path and in the values of its query.

    Args:
        parameters: schema of the arguments.

    Raises:
        ValueError: the template does not suit the schema.
    """

    def __init__(self, template: str, parameters: Mapping[str, Any]) -> None:
        parts = urlsplit(template)
        self._base = f"{parts.scheme}://{parts.netloc}"
        self._path = parts.path or "/"
        self._query = [tuple(pair.partition("=")[::2]) for pair in parts.query.split("&") if pair]
        self._in_path = _PLACE.findall(self._path)
        values = [value for _, value in self._query]
        in_query = [name for value in values for name in _PLACE.findall(value)]
        rest = _PLACE.sub("", "".join([self._path, *values]))
        if any("{" in name or "}" in name for name in [rest, *(key for key, _ in self._query)]):
            raise ValueError("a brace in the url stands for no argument")
        self.names = frozenset([*self._in_path, *in_query])
        """Arguments that the URL holds."""
        self._fixed = frozenset(unquote_plus(key) for key, _ in self._query)
        self._check(parameters)

    def _check(self, parameters: Mapping[str, Any]) -> None:
        properties = parameters.get("properties", {})
        required = parameters.get("required", [])
        for name in self.names:
            kind = properties.get(name, {}).get("type")
            if not isinstance(kind, str) or kind not in _SCALARS:
                raise ValueError(
                    f"the argument {name!r} of the url must be described as one of {sorted(_SCALARS)}"
                )
        for name in self._in_path:
            if name not in required:
                raise ValueError(f"the argument {name!r} in the path of the url must be required")
        for name in properties:
            if name not in self.names and name in self._fixed:
                raise ValueError(_repeated(name))

    def fill(self, arguments: Mapping[str, Any], *, others_in_query: bool) -> str:
        """The URL for a call.

        Args:
            arguments: that suit the schema.
            others_in_query: whether arguments without a place in the URL become part of its query.

        Raises:
            ArgumentRefusedError: an argument would change the path, or a fixed part of the query.
        """
        for name in self._in_path:
            pieces = re.split(r"[/\\]", _text(arguments[name]))
            if any(piece.strip() in ("", ".", "..") for piece in pieces):
                raise ArgumentRefusedError(f"the argument {name!r} cannot be part of a path")
        pairs = [
            f"{key}={_fill(value, arguments)}"
            for key, value in self._query
            if all(arguments.get(name) is not None for name in _PLACE.findall(value))
        ]
        if others_in_query:
            for name in arguments:
                if name not in self.names and name in self._fixed:
                    raise ArgumentRefusedError(_repeated(name))
            pairs += [
                f"{quote(name, safe='')}={quote(_text(value), safe='')}"
                for name, value in arguments.items()
                if name not in self.names and value is not None
            ]
        url = f"{self._base}{_fill(self._path, arguments)}"
        return f"{url}?{'&'.join(pairs)}" if pairs else url


def _repeated(name: str) -> str:
    return f"the argument {name!r} has the name of a fixed part of the query"


def _fill(template: str, arguments: Mapping[str, Any]) -> str:
    return _PLACE.sub(lambda match: quote(_text(arguments[match[1]]), safe=""), template)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


class HttpTool:
    """One tool, as :class:`parley.tools.base.ServerTools`; its owner closes the client.

    Arguments without a place in the URL are sent as a JSON object where the method has a body, else as
    part of the query.

    Args:
        secrets: what must not be in any answer, because a server may repeat what it was sent.

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
        # Undescribed arguments would become part of the request.
        closed = {name: value for name, value in _CLOSED.items() if name not in settings.parameters}
        parameters = {**settings.parameters, **closed}
        tool = Tool(
            name=settings.name,
            description=settings.description,
            parameters=parameters,
            mode=settings.mode,
            announce=settings.announce,
            cancel_on_interruption=settings.cancel_on_interruption,
        )
        self.names = (tool.name,)
        self.tools = (tool,)
        self._settings = settings
        self._template = UrlTemplate(settings.url, parameters)
        self._headers = dict(headers)
        self._secrets = [secret for secret in secrets if len(secret) >= _MIN_SECRET]
        self._client = client

    def timeout_s(self, name: str) -> float:  # noqa: ARG002 - of the protocol
        """The time of one call."""
        return self._settings.limit_ms / 1000

    async def call(
        self,
        name: str,  # noqa: ARG002 - of the protocol
        arguments: Mapping[str, Any],
        *,
        traceparent: str = "",
        on_progress: ReportProgress | None = None,  # noqa: ARG002
    ) -> ToolOutcome:
        """Run it; cancellation closes the connection, and failures are outcomes and lines in the log.

        ``traceparent`` is sent as the header of that name, unless it is empty or the tool's headers have one.
        """
        try:
            return await self._request(arguments, traceparent)
        except (ArgumentRefusedError, AnswerTooLongError) as error:
            return self._failed(str(error))
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            # The exception's own text may hold the URL, and with it what the user said.
            return self._failed(f"the tool cannot be reached ({type(error).__name__})")

    def _failed(self, reason: str) -> ToolOutcome:
        """A failure; ``reason`` holds neither arguments nor secrets."""
        self._log_failure(reason)
        return ToolOutcome.failed(reason)

    def _log_failure(self, reason: str) -> None:
        _log.warning("tool %s failed: %s", self._settings.name, reason)

    async def _request(self, arguments: Mapping[str, Any], traceparent: str) -> ToolOutcome:
        method = self._settings.method
        with_body = method in _WITH_BODY
        url = self._template.fill(arguments, others_in_query=not with_body)
        headers = httpx2.Headers({"Accept": "application/json, text/*;q=0.9"})
        if traceparent:
            headers["traceparent"] = traceparent
        headers.update(self._headers)
        content = None
        if with_body:
            body = {name: value for name, value in arguments.items() if name not in self._template.names}
            content = msgspec.json.encode(body)
            headers["Content-Type"] = "application/json"
        limit = {"max_bytes": self._settings.max_bytes}
        request = self._client.build_request(method, url, headers=headers, content=content, extensions=limit)
        return self._read(await self._client.send(request))

    def _read(self, response: httpx2.Response) -> ToolOutcome:
        text = response.content.decode(errors="replace")
        status = response.status_code
        if response.is_success:
            return ToolOutcome(self._hide_secrets(read_value(text)))
        if response.is_redirect:
            return self._failed(f"HTTP {status}: redirects are not followed")
        self._log_failure(f"HTTP {status}")
        answer = self._hide_secrets(read_value(text))
        text = answer if isinstance(answer, str) else msgspec.json.encode(answer).decode()
        if len(text) > _MAX_REASON:
            answer = text[:_MAX_REASON]
        return ToolOutcome({"error": f"HTTP {status}", "answer": answer}, is_error=True)

    def _hide_secrets(self, value: Any) -> Any:
        """In a decoded value, because JSON can write the same text in many ways."""
        try:
            return self._without_secrets(value) if self._secrets else value
        except RecursionError:  # the value cannot be searched
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
