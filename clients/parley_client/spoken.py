"""Times and days in words, as callers say them and language models pass them on to functions.

::

    read_time("half past seven", time(17), time(23))    # 19:30
    read_day("tomorrow", date.today())
"""

from __future__ import annotations

from parley.spoken import read_day, read_time, say_time

__all__ = ["read_day", "read_time", "say_time"]
