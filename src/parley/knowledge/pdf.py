"""The text of a PDF, read in a process of its own, whose processor time and memory are bounded.

A file of a few KB can take minutes and gigabytes. ``python -m parley.knowledge.pdf SECONDS BYTES`` reads one
from its input and writes JSON: the texts of the pages, or one text, why it is refused.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import subprocess
import sys
from io import BytesIO

from parley.errors import ModelLoadingError
from parley.knowledge.documents import MAX_FILE_BYTES, KnowledgeError
from parley.python import find_python

_MOST_PAGES = 2_000
_MOST_S = 60
"""Processor time to read a PDF."""
_MOST_BYTES = 1 << 30
"""Memory of the process that reads it."""


def read_pdf(name: str, raw: bytes) -> list[str]:
    """The texts of the pages.

    Raises:
        KnowledgeError: it is no PDF that can be read within the limits.
        ModelLoadingError: the process that reads it has failed.
    """
    python = find_python(os.environ) or "python3"
    command = [python, "-m", "parley.knowledge.pdf", str(_MOST_S), str(_MOST_BYTES)]
    try:
        ended = subprocess.run(command, input=raw, stdout=subprocess.PIPE, check=False)
    except OSError as error:
        raise ModelLoadingError(f"{name}: the process that reads PDF cannot be started: {error}") from error
    if ended.returncode == -signal.SIGXCPU:
        raise KnowledgeError(f"{name} takes more than {_MOST_S} s of processor time")
    if ended.returncode:
        raise ModelLoadingError(f"{name}: the process that reads PDF ended with status {ended.returncode}")
    read = json.loads(ended.stdout)
    if isinstance(read, str):
        raise KnowledgeError(f"{name} {read}")
    return list(read)


def pages_of(raw: bytes) -> list[str]:
    """The texts of the pages, read in this process.

    Raises:
        KnowledgeError: there are too many, or it is encrypted; other errors of the library are of many kinds.
    """
    from pypdf import PdfReader  # noqa: PLC0415 - read_pdf does not need it

    reader = PdfReader(BytesIO(raw))
    if reader.is_encrypted:
        raise KnowledgeError("is encrypted")
    if len(reader.pages) > _MOST_PAGES:
        raise KnowledgeError(f"has more than {_MOST_PAGES} pages")
    texts: list[str] = []
    left = MAX_FILE_BYTES
    for page in reader.pages:
        texts.append(page.extract_text().replace("\0", ""))
        left -= len(texts[-1])
        if left < 0:
            raise KnowledgeError(f"has more than {MAX_FILE_BYTES >> 20} Mi characters")
    return texts


def _main(most_s: int, most_bytes: int) -> None:
    logging.getLogger("pypdf").setLevel(logging.CRITICAL + 1)  # thousands of lines for some files
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is for the server
    os.nice(10)
    for limit, most in (
        (resource.RLIMIT_CPU, most_s),
        (resource.RLIMIT_AS, most_bytes),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(limit)[1]
        resource.setrlimit(limit, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    result: list[str] | str
    try:
        result = pages_of(sys.stdin.buffer.read())
    except KnowledgeError as error:
        result = str(error)
    except MemoryError:
        result = f"takes more than {most_bytes >> 20} MiB of memory"
    except Exception as error:  # noqa: BLE001 - the library raises many kinds for a file that is broken
        result = f"cannot be read as PDF: {type(error).__name__}: {error}"
    sys.stdout.buffer.write(json.dumps(result, ensure_ascii=False).encode("utf-8", "surrogatepass"))


if __name__ == "__main__":
    _main(int(sys.argv[1]), int(sys.argv[2]))
