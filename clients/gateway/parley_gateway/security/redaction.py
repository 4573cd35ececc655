"""Keeps secrets out of logs, whoever writes them there."""

from __future__ import annotations

import logging
import re

_SECRETS = re.compile(
    r"(?P<key>parley_[a-z0-9]+_)[\w-]+"  # the id of an API key may be seen
    r"|(?P<jwt>(?:ek_)?eyJ[\w-]+\.)[\w-]+\.[\w-]*"
    r"|(?P<url>(?:api_?key|access_token|token|key)=)[^\s&\"']+"
    r"|(?P<header>(?:bearer|token|openai-insecure-api-key\.)[ ,]*)[\w.-]{16,}",
    re.IGNORECASE,
)


def redact(text: str) -> str:
    """The text without the secrets in it."""
    return _SECRETS.sub(lambda found: next(part for part in found.groups() if part) + "…", text)


class RedactingFilter(logging.Filter):
    """Put on a handler, it takes secrets out of every record."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Change the record; it is always kept."""
        message = record.getMessage()
        clean = redact(message)
        if clean != message:
            record.msg, record.args = clean, ()
        return True
