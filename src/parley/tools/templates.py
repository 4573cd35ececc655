"""URLs that arguments are put into, so that no argument can lead a request elsewhere."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote_plus, urlsplit

_PLACE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_SCALARS = frozenset({"string", "number", "integer", "boolean"})


class ArgumentRefusedError(ValueError):
    """An argument that cannot stand in the URL; the message says which and why."""


class UrlTemplate:
    """A URL with ``{argument}`` in its path and in the values of its query.

    Args:
        template: the URL.
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
