"""Reading Triton's log: progress while models load, and why one did not."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec

_TRITON_LINE = re.compile(r"^(?P<level>[IWEF])\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ [\w.]+:\d+\] +(?P<text>.*)$")
_JSON_LINE = '{"ts": '
"""How lines of models begin with ``PARLEY_LOG_FORMAT=json``."""
_LOADING = re.compile(r'^"loading: (?P<model>[^:"]+):\d+"$')
_LOADED = re.compile(r"^\"successfully loaded '(?P<model>[^']+)'\"$")
_FAILED = re.compile(r"^\"failed to load '(?P<model>[^']+)' version \d+: (?:\w[\w ]*: )?(?P<error>.*)\"$")
_POLL_FAILED = re.compile(r"^\"Poll failed for model directory '(?P<model>[^']+)': (?P<error>.*)\"$")
_NOT_FOUND = re.compile(r"^\"failed to load '(?P<model>[^']+)': (?P<error>.*)\"$")
# Triton 24.10 waits without end after this line.
_STUB_FAILED = re.compile(r"^\"?Failed to preinitialize Python stub: (?P<error>.*?)\"?$")
_PORT_TAKEN = re.compile(r"failed to start (?P<service>\w+) service: .*already in use")

# The texts of these errors are for people; their traces are not.
_EXPLAINED = re.compile(
    r"(?:ModelLoadingError|UnsupportedVersionError|WeightsNotFoundError): (?P<text>.*?)\s*\n+At:\n.*",
    re.DOTALL,
)
_ESCAPE = re.compile(r"\\(.)")
_PLAIN = {"n": "\n", "t": "\t", "r": ""}
_NOISE = (
    "Unable to allocate pinned system memory",
    "CUDA memory pool disabled",
    "CudaDriverHelper has not been initialized",
    "Failed to initialize NVML",
    "DCGM unable to start",
)
_COMPLAINTS = ("warning", "error", "critical")
MAX_LOG_BYTES = 64 << 20
"""Of the file; what is beyond begins it anew: a server that runs for months must not fill its volume."""
PREVIOUS = ".previous.log"
TAIL_LINES = 12
"""Lines of an error message, each of at most :data:`LINE_CHARS`."""
LINE_CHARS = 300


class _JsonRecord(msgspec.Struct):
    """What is read of a model's JSON line."""

    level: str
    source: str
    message: str


@dataclass
class LogState:
    """State of the server as its log shows it."""

    loading: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    serving: bool = False
    """All models are loaded and the endpoints are open."""
    unloading: bool = False
    """The server got a signal to end, and no request is under way any more."""
    port_taken: str = ""
    """The service that found its port in use."""
    printed: deque[str] = field(default_factory=partial(deque, maxlen=TAIL_LINES))
    """The last lines that models printed: tracebacks and messages."""
    complaints: deque[str] = field(default_factory=partial(deque, maxlen=TAIL_LINES))

    def feed(self, line: str) -> None:
        """Parse the next line of the log."""
        match = _TRITON_LINE.match(line)
        if match is None and line.startswith(_JSON_LINE):
            self._feed_json(line)
            return
        if match is None:
            if line.strip() and not line.startswith(("+", "|")) and not _is_noise(line):
                self.printed.append(line[:LINE_CHARS])
            return
        text = match["text"]
        if match["level"] in "WEF" and not _is_noise(line):
            self.complaints.append(text[:LINE_CHARS])
        self._feed_progress(text)
        if text.startswith('"Started HTTPService'):
            self.serving = True
        elif text.startswith('"All models are stopped'):
            self.unloading = True
        elif found := _PORT_TAKEN.search(text):
            self.port_taken = found["service"]

    def _feed_json(self, line: str) -> None:
        """Keep a model's warning or error, as those that Triton writes."""
        try:
            record = msgspec.json.decode(line, type=_JsonRecord)
        except msgspec.MsgspecError:  # another program's line, or one that was cut
            self.printed.append(line[:LINE_CHARS])
            return
        if record.level in _COMPLAINTS:
            self.complaints.append(f"{record.source}: {record.message}"[:LINE_CHARS])

    def _feed_progress(self, text: str) -> None:
        if found := _LOADING.match(text):
            _add(self.loading, found["model"])
        elif found := _LOADED.match(text):
            _add(self.loaded, found["model"])
        elif found := _FAILED.match(text) or _POLL_FAILED.match(text) or _NOT_FOUND.match(text):
            self.failed.setdefault(found["model"], unescape(found["error"]))
        elif found := _STUB_FAILED.match(text):
            error = unescape(found["error"])
            self.failed.setdefault(_model_of_path(error), error)

    def describe_failures(self) -> str:
        """The failed models' own errors, and what they printed if that is all there is."""
        parts = []
        for model, error in self.failed.items():
            parts.append(f"Model {model!r} did not load:\n{_indent(_explanation(error))}")
            if "is not healthy" in error:
                tail = "\n".join(self.printed) or "(nothing)"
                parts.append(f"Its process died. The last lines that models printed:\n{_indent(tail)}")
        return "\n".join(parts)

    def tail(self) -> str:
        """The last lines, for an end without a known cause."""
        return _indent("\n".join([*self.complaints, *self.printed]) or "(nothing)")


class LogReader:
    """Follows a log file to which other processes append, and begins it anew where it has become too large.

    Args:
        max_bytes: size from which on its content is moved to the file with the suffix :data:`PREVIOUS`.
    """

    def __init__(self, path: Path, max_bytes: int = MAX_LOG_BYTES) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._offset = 0
        self._rest = b""

    def lines(self) -> list[str]:
        """The complete lines that were added since the last call.

        Raises:
            OSError: the file cannot be read.
        """
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        self._offset += len(data)
        if self._offset >= self._max_bytes:
            # The writers keep the file open, so it is copied. What they add meanwhile is in neither file.
            with contextlib.suppress(OSError):  # without room on the disk, the room is what counts
                shutil.copyfile(self._path, self._path.with_suffix(PREVIOUS))
            os.truncate(self._path, 0)
            self._offset = 0
        *complete, self._rest = (self._rest + data).split(b"\n")
        return [line.decode(errors="replace") for line in complete]


def unescape(text: str) -> str:
    """Undo the escapes with which Triton keeps a message on one line."""
    return _ESCAPE.sub(lambda found: _PLAIN.get(found[1], found[1]), text).strip()


def _model_of_path(text: str) -> str:
    """The model in ``…/model/1/model.py``."""
    found = re.search(r"([^/']+)/\d+/[^/']+\.py", text)
    return found[1] if found else "unknown"


def _is_noise(line: str) -> bool:
    return any(word in line for word in _NOISE)


def _explanation(error: str) -> str:
    found = _EXPLAINED.fullmatch(error)
    return found["text"] if found else error


def _add(models: list[str], model: str) -> None:
    """Append unless present: a model may be loaded again."""
    if model not in models:
        models.append(model)


def _indent(text: str) -> str:
    return "\n".join(f"    {line}" if line else "" for line in text.splitlines())
