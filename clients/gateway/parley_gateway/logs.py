"""Where the log goes: standard error, without secrets and control characters."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from parley_gateway.errors import SettingsError
from parley_gateway.security.audit import write_audit_to
from parley_gateway.security.redaction import LogFormatter


@contextmanager
def log_to_stderr(audit_file: str, level: int) -> Iterator[None]:
    """Write the gateway's log, and the audit log, for a while.

    Args:
        audit_file: Where the audit log goes; empty: to standard error too.
        level: The least that is logged.

    Raises:
        SettingsError: the audit log's file cannot be opened.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(LogFormatter())
    root = logging.getLogger()
    before = root.level
    try:
        audit = write_audit_to(audit_file)
    except OSError as error:
        raise SettingsError(f"security.audit_file: {error}") from error
    root.addHandler(handler)
    root.setLevel(level)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(before)
        logging.getLogger("parley.audit").removeHandler(audit)
        for one in (handler, audit):
            one.close()
