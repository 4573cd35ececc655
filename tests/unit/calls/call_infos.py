"""Calls for the list."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from parley.calls.database import CallInfo
from parley.calls.folder import make_call_id, to_iso

NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)


def info(at: datetime = NOW, agent: str = "restaurant", days: int = 36_500, **fields) -> CallInfo:
    due = to_iso(at + timedelta(days=days))
    named = {"call": make_call_id(at), "session": "s1", **fields}
    return CallInfo(agent=agent, started=to_iso(at), delete_at=due, **named)
