"""The file of an agent in the folder that a server watches, for as long as its functions are served."""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from parley_client.errors import ClientError

MARK = "# Written by parley run, which removes it when it ends.\n"
"""The first line. A file without it was written by hand and is never replaced."""
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


class AlreadyServedError(ClientError):
    """Another program serves an agent of this name."""


class Registration:
    """Owns ``NAME.toml`` in a folder: a context manager that writes, replaces and removes it.

    A lock file beside it keeps two programs from serving one agent. The system releases it when a program is
    killed; the file that such a program leaves is replaced.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.file = folder / f"{name}.toml"
        self._lock_file = folder / f".{name}.lock"
        self._lock = -1

    def __enter__(self) -> Self:
        """Take the place.

        Raises:
            AlreadyServedError: another program has it.
            ClientError: the file was not written by ``parley run``, or the folder
                cannot be written to.
        """
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self._lock = _lock(self._lock_file)
            self._check_own()
        except BaseException as error:
            self._unlock()
            if isinstance(error, OSError):
                raise ClientError(f"{self.file.parent} cannot be written to: {error.strerror}") from error
            raise
        return self

    def __exit__(self, *problem: object) -> None:
        """Remove the file."""
        with suppress(OSError, ClientError):
            self._check_own()
            self.file.unlink(missing_ok=True)
        self._unlock()

    def write(self, fields: Mapping[str, Any]) -> None:
        """Define the agent, or define it anew.

        The file can be read by its owner alone, since it has the secret address of the functions.

        Raises:
            ClientError: it cannot be written.
        """
        draft = self.file.with_name(f".{self.file.name}.new")
        try:
            draft.unlink(missing_ok=True)
            with open(draft, "x", encoding="utf-8", opener=_open_private) as file:
                file.write(MARK + to_toml(fields))
            draft.replace(self.file)
        except OSError as error:
            raise ClientError(f"{self.file} cannot be written: {error.strerror}") from error

    def _check_own(self) -> None:
        with suppress(FileNotFoundError):
            if not self.file.read_bytes().startswith(MARK.encode()):
                raise ClientError(
                    f"{self.file} was not written by `parley run`, and is not replaced; "
                    "move it away, or choose another name with Agent(name=...)"
                )

    def _unlock(self) -> None:
        if self._lock >= 0:
            self._lock_file.unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = -1


def remove_left(folder: Path) -> None:
    """Remove the files of programs that were killed: their functions are out of order for ever."""
    for file in folder.glob("*.toml"):
        with suppress(OSError, ClientError), Registration(folder, file.stem):
            pass


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _lock(path: Path) -> int:
    """A descriptor that holds the lock.

    Raises:
        AlreadyServedError: another program has it.
    """
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Its owner may have removed it in between: then it locks nothing.
            if os.fstat(file).st_ino == path.stat().st_ino:
                return file
        except BlockingIOError:
            os.close(file)
            raise AlreadyServedError(
                f"`parley run` serves this agent already: end it first, with Ctrl-C (it holds {path})"
            ) from None
        except FileNotFoundError:
            pass
        os.close(file)


def to_toml(fields: Mapping[str, Any]) -> str:
    """Plain values as TOML: each field is one line, and tables are written inline.

    Raises:
        ClientError: a value that TOML does not have.
    """
    return "".join(f"{_key(name)} = {_value(value)}\n" for name, value in fields.items())


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _string(name)


def _value(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            return _string(value)
        case dict():
            return f"{{ {', '.join(f'{_key(name)} = {_value(one)}' for name, one in value.items())} }}"
        case list():
            return f"[{', '.join(map(_value, value))}]"
    raise ClientError(f"a definition cannot have a value of the type {type(value).__name__}")


def _string(text: str) -> str:
    # A string of JSON is one of TOML, but for DEL, which TOML wants escaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
