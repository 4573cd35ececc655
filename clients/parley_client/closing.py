"""What is closed when its ``async with`` is left."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class ClosedAtTheEnd(ABC):
    """Has a :meth:`close`, which leaving the ``async with`` calls."""

    @abstractmethod
    async def close(self) -> None:
        """End what is under way, and free everything."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        await self.close()
