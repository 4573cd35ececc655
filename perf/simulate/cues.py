"""When an exchange begins."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, cast

from simulate.errors import ScenarioError

After = Literal["idle", "agent", "caller"]
_CUE = re.compile(r"(idle|agent|caller)\+(\d{1,6})")


@dataclass(frozen=True)
class Cue:
    """A moment.

    ``idle``: so long after nobody had anything to say any more. ``agent``: when so much of the answer has
    been heard. ``caller``: so long after the end of the exchange before, whatever the agent does.
    """

    after: After
    ms: int


def parse_cue(written: str) -> Cue:
    """Read ``agent+1500``.

    Raises:
        ScenarioError: not such a moment.
    """
    match = _CUE.fullmatch(written)
    if match is None:
        raise ScenarioError(f"at = {written!r} is not idle+MS, agent+MS or caller+MS")
    return Cue(cast("After", match[1]), int(match[2]))
