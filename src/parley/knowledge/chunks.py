"""Cuts documents into chunks: pieces that are found and read by themselves."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import StringIO
from itertools import chain, islice
from types import SimpleNamespace

from parley.knowledge.documents import KnowledgeError
from parley.knowledge.pdf import read_pdf

CHUNKING = 4
"""Version of the cut: an index of another version is made anew."""
LONGEST = 700
"""Characters of a chunk, and of its heading."""
MAX_CHUNKS = 20_000
"""Of an agent."""
_HEADING = re.compile(r"(#{1,6})[ \t]+")
_FENCE = re.compile(r" {0,3}(```+|~~~+)")
_PARAGRAPH = re.compile(r"\n[ \t]*\n")
_BLANKS = re.compile(r"\s+")
_SPACES = re.compile(" +")
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_FED = 1 << 16
"""Characters of HTML that are read at once."""
_HIDING_STYLE = re.compile(r"\b(?:display\s*:\s*none|visibility\s*:\s*hidden)\b", re.IGNORECASE)
_HIDDEN = frozenset("head script style nav template noscript svg iframe object button select".split())
_LINES = frozenset("br dd dt li td th tr".split())
_INLINE = frozenset(
    """a abbr b bdi bdo big cite code data del dfn em font i img ins kbd label mark q s samp small span strong
    sub sup time tt u var wbr""".split()
)
"""Tags that part no paragraphs."""
_SENTENCE = re.compile(r"(?<=[.!?。！？])\s+|\n")  # noqa: RUF001 - the ends of Chinese and Japanese sentences


@dataclass(frozen=True)
class Chunk:
    """A piece of a document."""

    heading: str
    """Titles of the sections around it, outermost first, joined with " > "; of PDF the number of the page."""
    text: str


def split_document(name: str, raw: bytes) -> list[Chunk]:
    """The chunks of a file, in order; the end of its name says of which kind it is.

    Raises:
        KnowledgeError: it is neither PDF nor UTF-8, has no text, or takes too long or has too many chunks.
        ModelLoadingError: the process that reads PDF has failed.
    """
    suffix = name.rpartition(".")[2].lower()
    if suffix == "pdf":
        pages = enumerate(read_pdf(name, raw), 1)
        sections = iter([(f"page {number}", text) for number, text in pages])
    else:
        text = _decode(name, raw)
        read = _READERS.get(suffix)
        sections = _sections(read(text)) if read else iter([("", text)])
    found = (Chunk(heading, piece) for heading, text in sections for piece in _cut(text))
    chunks = list(islice(found, MAX_CHUNKS + 1))
    check_count(name, len(chunks))
    if not chunks:
        hint = "; pictures of pages are not read" if suffix == "pdf" else ""
        raise KnowledgeError(f"{name} has no text{hint}")
    return chunks


def check_count(name: str, count: int) -> None:
    """Refuse so many chunks of the files of an agent up to this one.

    Raises:
        KnowledgeError: they are more than :data:`MAX_CHUNKS`.
    """
    if count > MAX_CHUNKS:
        raise KnowledgeError(f"{name}: an agent may have {MAX_CHUNKS} passages of knowledge")


def _decode(name: str, raw: bytes) -> str:
    try:
        return raw.decode("utf-8-sig").replace("\r\n", "\n").replace("\0", "")
    except UnicodeDecodeError as error:
        line = 1 + raw[: error.start].count(b"\n")
        raise KnowledgeError(f"{name}:{line}: the text is not UTF-8") from error


def _sections(parts: Iterable[tuple[int, str]]) -> Iterator[tuple[str, str]]:
    """The text below each heading, with the path of headings.

    Args:
        parts: level of each heading, and its title; level 0: lines of text.
    """
    path: list[tuple[int, str]] = []
    lines: list[str] = []
    for level, text in chain(parts, [(1, "")]):
        if not level:
            lines.append(text)
            continue
        yield " > ".join(title for _, title in path)[:LONGEST], "\n".join(lines)
        lines.clear()
        path = [*(one for one in path if one[0] < level), (level, text[:LONGEST])]


def _read_markdown(text: str) -> Iterator[tuple[int, str]]:
    fence = ""
    for line in _without_comments(text).split("\n"):
        mark = _FENCE.match(line)
        if mark is not None and (not fence or mark[1].startswith(fence)):
            fence = "" if fence else mark[1]
        heading = None if fence else _HEADING.match(line)
        if heading is None:
            yield 0, line
        else:
            yield len(heading[1]), line[heading.end() :].rstrip(" \t").rstrip("#").rstrip(" \t")


def _without_comments(text: str) -> str:
    """The text without comments of HTML; one that does not end is text."""
    kept = []
    at = 0
    while (begin := text.find("<!--", at)) >= 0 and (end := text.find("-->", begin)) >= 0:
        kept.append(text[at:begin])
        at = end + len("-->")
    return "".join([*kept, text[at:]])


def _read_html(text: str) -> Iterator[tuple[int, str]]:
    from lxml import etree  # noqa: PLC0415 - few agents have HTML

    # Python's own parser needs hours for some pages of a MiB, lxml's tree minutes; it has 2,048 levels.
    events: list[tuple[int, str, bool]] = []  # 1: a tag begins, -1: it ends, 0: text; whether it is hidden
    target = SimpleNamespace(
        start=lambda tag, attributes: events.append((1, tag, tag in _HIDDEN or _hides(attributes))),
        end=lambda tag: events.append((-1, tag, False)),
        data=lambda text: events.append((0, text, False)),
        close=lambda: events.append((1, "h1", False)),  # takes the last text
    )
    parser = etree.HTMLParser(target=target, encoding="utf-8", huge_tree=True)
    parser.feed(b"<html>")

    def feed() -> Iterator[tuple[int, str, bool]]:
        for at in range(0, len(text), _FED):
            parser.feed(text[at : at + _FED].encode())
            yield from events
            events.clear()
        parser.close()
        yield from events

    read = StringIO()
    hidden = 0
    for event, found, hides in feed():
        if hidden:
            hidden += event
            continue
        hidden = int(hides)
        if not event:
            read.write(_BLANKS.sub(" ", found))
        elif found in _HEADINGS:
            part = _SPACES.sub(" ", read.getvalue())
            yield (0, part) if event > 0 else (_HEADINGS[found], " ".join(part.split()))
            read = StringIO()
        elif found in _LINES:
            read.write("\n" if event > 0 else "")
        elif found not in _INLINE:
            read.write("\n\n")


def _hides(attributes: Mapping[str, str]) -> bool:
    return bool(attributes) and (
        "hidden" in attributes
        or attributes.get("aria-hidden", "").lower() == "true"
        or _HIDING_STYLE.search(attributes.get("style", "")) is not None
    )


_READERS = {"md": _read_markdown, "markdown": _read_markdown, "html": _read_html, "htm": _read_html}


def _cut(text: str) -> Iterator[str]:
    """Paragraphs that are joined to chunks, or cut at sentences where they are too long."""
    joined = ""
    for piece in _pieces(_PARAGRAPH.split(text)):
        if joined and len(joined) + len(piece) + 2 > LONGEST:
            yield joined
            joined = ""
        joined = f"{joined}\n\n{piece}" if joined else piece
    if joined:
        yield joined


def _pieces(paragraphs: Iterable[str]) -> Iterator[str]:
    for paragraph in (one.strip() for one in paragraphs):
        if len(paragraph) <= LONGEST:
            if paragraph:
                yield paragraph
            continue
        held = ""
        for sentence in _SENTENCE.split(paragraph):
            if held and len(held) + len(sentence) + 1 > LONGEST:
                yield held
                held = ""
            held = f"{held} {sentence}" if held else sentence
            at = 0
            while len(held) - at > LONGEST:
                end = held.rfind(" ", at + LONGEST // 2, at + LONGEST)
                end = end if end > 0 else at + LONGEST
                yield held[at:end]
                at = end + (held[end] == " ")
            held = held[at:]
        if held:
            yield held
