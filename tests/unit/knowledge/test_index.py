"""Passages are found by words and by vectors; the index has what its files have, and no more."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import numpy as np
import pytest

from parley.errors import ModelLoadingError
from parley.knowledge import chunks as chunks_module
from parley.knowledge import index as index_module
from parley.knowledge.chunks import Chunk
from parley.knowledge.documents import KnowledgeError
from parley.knowledge.index import KnowledgeIndex

CHUNKS = {
    "h1": [Chunk("Printers", "They are repaired on Tuesdays."), Chunk("Printers > Toner", "Room 12.")],
    "h2": [Chunk("", "The VPN is called Cerberus.")],
}
FILES = {"a.md": "h1", "b.md": "h2"}
AXES = np.eye(3, dtype=np.float32)


@pytest.fixture
def index(tmp_path):
    index = KnowledgeIndex(tmp_path / "cache" / "a.sqlite", 3)
    assert index.replace(FILES, CHUNKS)
    yield index
    index.close()


def texts(found):
    return [one.text for one in found]


def embed(index):
    numbers = [number for number, _ in index.without_vectors(100)]
    index.add_vectors(numbers, AXES[: len(numbers)])
    index.load_vectors()


def rows(path, table):
    db = sqlite3.connect(path)
    count = db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]  # noqa: S608
    db.close()
    return count


def test_words_find_passages_with_their_file_and_heading(index):
    (found,) = index.search(["repair", "tuesday"])
    assert (found.file, found.heading, found.score) == ("a.md", "Printers", 1.0)
    assert texts(index.search(["toner"])) == ["Room 12."]
    assert index.search(["unknown"]) == index.search([]) == []


@pytest.mark.parametrize("word", ["NEAR", "and", 'a"b'.replace('"', ""), "text", "*"])
def test_words_are_no_query_language(index, word):
    assert isinstance(index.search([word, "vpn"]), list)


def test_vectors_find_what_has_no_word_in_common(index):
    embed(index)
    assert texts(index.search([], AXES[2], count=1)) == ["The VPN is called Cerberus."]


def test_both_rankings_are_joined(index):
    embed(index)
    first, second = index.search(["cerberus"], AXES[1] * 0.9 + AXES[2] * 0.4)
    assert texts([first, second]) == [
        "The VPN is called Cerberus.",  # the first by words, and the second by its vector
        "Room 12.",
    ]
    assert 1 > first.score > 0.5 >= second.score > 0


def test_passages_that_are_much_worse_than_the_best_are_left_out(index):
    embed(index)
    assert texts(index.search([], AXES[1] * 0.9 + AXES[2] * 0.3)) == ["Room 12."]
    dogs = [Chunk("Dogs", "Cerberus guards the way."), Chunk("", "A way is long.")]
    assert index.replace({**FILES, "c.md": "h3"}, {"h3": dogs})
    assert texts(index.search(["cerberus", "guards", "way"])) == ["Cerberus guards the way."]


def test_only_what_is_missing_is_read_again(index):
    assert index.missing(["h1", "h2", "h3"]) == {"h3"}
    assert not index.replace({"a.md": "h3"}, {})
    assert index.size == 3
    assert index.replace({"a.md": "h1", "c.md": "h3"}, {"h3": [Chunk("", "New.")]})
    assert index.search(["cerberus"]) == []
    assert texts(index.search(["new"])) == ["New."]
    assert [one.file for one in index.search(["toner"])] == ["a.md"]


def test_index_does_not_grow_by_changes(index, tmp_path):
    for number in range(20):
        content = f"v{number}"
        assert index.replace({"a.md": content}, {content: [Chunk("", f"Version {number}."), Chunk("", "x")]})
        embed(index)
    path = tmp_path / "cache" / "a.sqlite"
    counts = [rows(path, table) for table in ("files", "contents", "passages", "vectors")]
    assert counts == [1, 1, 2, 2]
    assert texts(index.search(["version"])) == ["Version 19."]


def test_files_of_the_same_content_share_it(index):
    assert index.replace({"b.md": "h1", "a.md": "h1"}, {})
    assert index.size == 2
    assert [one.file for one in index.search(["toner"])] == ["a.md"]


def test_passage_that_was_replaced_meanwhile_is_left_out(index):
    embed(index)
    assert index.replace({"b.md": "h2"}, {})
    assert texts(index.search([], AXES[0] + AXES[2])) == ["The VPN is called Cerberus."]


def test_index_is_used_again_with_its_vectors(index, tmp_path):
    embed(index)
    again = KnowledgeIndex(tmp_path / "cache" / "a.sqlite", 3)
    assert again.missing(["h1", "h2"]) == set()
    assert again.without_vectors(10) == []
    again.load_vectors()
    assert texts(again.search([], AXES[0], count=1)) == ["They are repaired on Tuesdays."]
    again.close()


def test_damaged_file_is_made_anew(tmp_path):
    path = tmp_path / "a.sqlite"
    path.write_bytes(b"no database " * 100)
    index = KnowledgeIndex(path)
    assert index.replace(FILES, CHUNKS)
    index.close()


def test_folder_that_cannot_be_written_to_is_named(tmp_path):
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(ModelLoadingError, match="cannot be opened"):
        KnowledgeIndex(tmp_path / "cache" / "a.sqlite")


def test_search_does_not_wait_for_a_change(index):
    with index._writing() as db:
        db.execute("DELETE FROM passages")
        assert texts(index.search(["toner"])) == ["Room 12."]


def test_too_many_passages_name_the_file(index, monkeypatch):
    monkeypatch.setattr(chunks_module, "MAX_CHUNKS", 3)
    with pytest.raises(KnowledgeError, match=r"c\.md: an agent may have 3 passages"):
        index.replace({**FILES, "c.md": "h3"}, {"h3": [Chunk("", "New.")]})
    assert index.size == 3
    assert texts(index.search(["cerberus"]))


def test_writing_goes_on_after_a_reader_has_blocked_a_commit(tmp_path, monkeypatch):
    monkeypatch.setattr(index_module, "_BUSY_S", 0.0)
    path = tmp_path / "a.sqlite"
    index = KnowledgeIndex(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM files").fetchall()
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            index.replace(FILES, CHUNKS)
    assert index.replace(FILES, CHUNKS)
    assert index.size == 3
    index.close()
