"""Patterns find files below the folder of agents, or below an absolute folder, and no others."""

from __future__ import annotations

import os

import pytest

from parley.knowledge import documents as documents_module
from parley.knowledge.documents import KnowledgeError, find_documents


@pytest.fixture
def folder(tmp_path):
    agents = tmp_path / "agents"
    for name in (
        "docs/a.md",
        "docs/sub/deep/b.md",
        "docs/sub/c.txt",
        "faq.pdf",
        ".hidden/d.md",
        "docs/.e.md",
    ):
        (agents / name).parent.mkdir(parents=True, exist_ok=True)
        (agents / name).write_text(name)
    (tmp_path / "secret.md").write_text("secret")
    return agents


def names(folder, *patterns):
    return sorted(one.name for one in find_documents(folder, patterns))


@pytest.mark.parametrize(
    ("patterns", "found"),
    [
        (["docs/**/*.md"], ["docs/a.md", "docs/sub/deep/b.md"]),
        (["docs/**"], ["docs/a.md", "docs/sub/c.txt", "docs/sub/deep/b.md"]),
        (["docs/*/*.tx[t]", "faq.pdf"], ["docs/sub/c.txt", "faq.pdf"]),
        (["**/?.md", "docs/a.md"], ["docs/a.md", "docs/sub/deep/b.md"]),
    ],
)
def test_pattern_finds_files(folder, patterns, found):
    assert names(folder, *patterns) == found


def test_absolute_pattern_finds_files_below_its_fixed_part(folder, tmp_path):
    assert names(folder, f"{tmp_path}/secret.md", f"{folder}/docs/**/b.md") == ["secret.md", "sub/deep/b.md"]


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("../secret.md", r"must not be empty or have '\.\.'"),
        ("", "must not be empty"),
        ("/srv\0/*.md", r"'/srv\\x00/\*\.md' is no pattern"),
        ("docs/*.pdf", r"no file matches 'docs/\*\.pdf'"),
        ("docs/link.md", r"docs/link\.md is a link that leads out of"),
        ("there/*.md", r"there/secret\.md is a link that leads out of"),
        ("docs/*.png", r"docs/picture\.png is none of \.md"),
        ("/no/such/*.md", "cannot be read: No such file"),
        ("**/**/**/**/no.md", "look at more than 100 files"),
    ],
)
def test_what_cannot_be_knowledge_is_named(folder, tmp_path, monkeypatch, pattern, words):
    monkeypatch.setattr(documents_module, "_MOST_ENTRIES", 100 if "**/**" in pattern else 1_000)
    (folder / "docs" / "link.md").symlink_to(tmp_path / "secret.md")
    (folder / "there").symlink_to(tmp_path)
    (folder / "docs" / "picture.png").write_bytes(b"x")
    for number in range(20):
        (folder / "docs" / f"f{number}").mkdir()
    with pytest.raises(KnowledgeError, match=words):
        find_documents(folder, [pattern])


def test_link_within_the_folder_is_followed(folder):
    (folder / "current.md").symlink_to("docs/a.md")
    (one,) = find_documents(folder, ["current.md"])
    assert (one.name, one.path) == ("current.md", folder / "docs" / "a.md")


def test_name_that_is_not_utf8_is_shown(folder):
    (folder / os.fsdecode(b"caf\xe9.md")).write_text("text")
    with pytest.raises(KnowledgeError, match=r"^'caf\\udce9\.md': the name is not UTF-8$"):
        find_documents(folder, ["*.md"])


def test_pipe_is_no_file(folder):
    os.mkfifo(folder / "pipe.md")
    with pytest.raises(KnowledgeError, match="no file matches"):
        find_documents(folder, ["pipe.md"])


@pytest.mark.parametrize(
    ("bound", "words"),
    [
        ("MAX_FILES", "c.txt: an agent may have 1 files"),
        ("MAX_BYTES", "the files have more than 0 MiB together"),
        ("MAX_FILE_BYTES", "has more than 0 MiB"),
    ],
)
def test_bounds_name_the_file(folder, monkeypatch, bound, words):
    monkeypatch.setattr(documents_module, bound, 1)
    with pytest.raises(KnowledgeError, match=words):
        find_documents(folder, ["docs/a.md", "docs/sub/c.txt"])
