"""What is checked of a protocol, and what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from inspect import cleandoc
from typing import Literal, TypeAlias

import msgspec

from parley_testing.conform.connection import FailedError, RefusedByServerError, Target

_CHECK_S = 180.0
"""The longest time that one check may take."""
Run: TypeAlias = Callable[[Target], Awaitable[None]]


@dataclass(frozen=True)
class ProtocolCheck:
    """One statement about a protocol."""

    name: str
    title: str
    """In Markdown."""
    run: Run


@dataclass
class Checks:
    """Those of one protocol, in the order in which they are run."""

    checks: list[ProtocolCheck] = field(default_factory=list)

    def add(self, run: Run) -> Run:
        """Take a function as a check; its docstring is the title."""
        name: str = run.__name__
        self.checks.append(ProtocolCheck(name, cleandoc(run.__doc__ or name), run))
        return run


class CheckResult(msgspec.Struct, frozen=True):
    """What came of a check."""

    name: str
    title: str
    result: Literal["passed", "refused", "failed"]
    """``refused``: the server answered with an error of the protocol. ``failed``: anything else."""
    detail: str = ""
    """Why it did not pass."""


async def run_checks(
    checks: Sequence[ProtocolCheck], target: Target, *, pause_s: float = 0.0
) -> AsyncIterator[CheckResult]:
    """The outcomes, one check after the other, each with connections of its own, and with pauses between."""
    for number, check in enumerate(checks):
        await asyncio.sleep(pause_s if number else 0.0)
        result, detail = await _run(check, target)
        yield CheckResult(check.name, check.title, result, detail)


async def _run(check: ProtocolCheck, target: Target) -> tuple[Literal["passed", "refused", "failed"], str]:
    try:
        async with asyncio.timeout(_CHECK_S):
            await check.run(target)
    except RefusedByServerError as error:
        return "refused", str(error)
    except FailedError as error:
        return "failed", str(error)
    except TimeoutError:
        return "failed", f"not over within {_CHECK_S:g} s"
    except (LookupError, TypeError, ValueError) as error:  # of a message that lacks what the check reads
        return "failed", f"a message cannot be read: {type(error).__name__}: {error}"
    return "passed", ""
