"""Files with one JSON object per line: read with a bound on the line, errors with the line's number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from parley.errors import InvalidMessageError
from parley_client.errors import TraceFileError

T = TypeVar("T")
MAX_LINE_BYTES = 16 * 1024 * 1024


def read_lines(path: Path, read: Callable[[bytes], T]) -> Iterator[T]:
    """What ``read`` makes of each line that is not empty.

    Raises:
        TraceFileError: the file or a line cannot be read, or a line is too long.
    """
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    raise TraceFileError(f"{path}, line {number}: has more than {MAX_LINE_BYTES} bytes")
                if not line.strip():
                    continue
                try:
                    result = read(line)
                except InvalidMessageError as error:
                    raise TraceFileError(f"{path}, line {number}: {error}") from error
                yield result
    except OSError as error:
        raise TraceFileError(f"{path}: cannot be read: {error.strerror or error}") from error
