"""The documents of an agent are indexed when it opens, and again when they change."""

from __future__ import annotations

import asyncio
import logging

import pytest
from knowledge_fakes import SynonymEmbedder

from parley.embeddings.messages import EmbeddingSpace
from parley.errors import InferenceError, ModelUnavailableError
from parley.knowledge import chunks as chunks_module
from parley.knowledge import knowledge as knowledge_module
from parley.knowledge.documents import KnowledgeError, read_document
from parley.knowledge.knowledge import Knowledge, check_documents


@pytest.fixture
def place(tmp_path, monkeypatch):
    for name in ("_LOOK_S", "_EMBED_AGAIN_S"):
        monkeypatch.setattr(knowledge_module, name, 0.01)
    (tmp_path / "cars.md").write_text("# Cars\nAn automobile has a cost of 9 euros.")
    (tmp_path / "boats.md").write_text("# Boats\nThey swim.")
    return tmp_path


class Opened:
    """Knowledge that is open."""

    def __init__(self, place, embedder=None, name="helpdesk", pattern="*.md"):
        self.knowledge = Knowledge(name, place, [pattern], embedder, place / "cache")

    async def __aenter__(self):
        await self.knowledge.open()
        return self.knowledge

    async def __aexit__(self, *_):
        await self.knowledge.close()


async def files(knowledge, query):
    return [one.file for one in await knowledge.search(query)]


async def until(knowledge, query, expected):
    async with asyncio.timeout(30):
        while await files(knowledge, query) != expected:  # noqa: ASYNC110 - a file has no event
            await asyncio.sleep(0.005)


async def test_words_alone_find_passages_without_an_embedder(place, caplog):
    async with Opened(place) as knowledge:
        assert await files(knowledge, "do they swim?") == ["boats.md"]
        assert await files(knowledge, "what is the price of a vehicle") == []
    assert "by words alone: there is no embedder" in caplog.text


async def test_vectors_find_synonyms(place):
    async with Opened(place, SynonymEmbedder()) as knowledge:
        assert (await files(knowledge, "what is the price of a car"))[0] == "cars.md"


@pytest.mark.parametrize("query", ["", "okay thank you", "yes please", "?!"])
async def test_words_about_nothing_find_nothing(place, query):
    embedder = SynonymEmbedder()
    async with Opened(place, embedder) as knowledge:
        assert await files(knowledge, query) == []
    assert not [kind for _, kind in embedder.calls if kind == "query"]


async def test_index_is_used_again_as_far_as_files_are_the_same(place):
    first, second = SynonymEmbedder(), SynonymEmbedder()
    async with Opened(place, first):
        pass
    assert sorted(first.passages) == ["Boats\nThey swim.", "Cars\nAn automobile has a cost of 9 euros."]
    (place / "boats.md").write_text("# Boats\nThey sink.")
    async with Opened(place, second) as knowledge:
        assert second.passages == ["Boats\nThey sink."]
        assert (await files(knowledge, "car price"))[0] == "cars.md"


async def test_other_embedder_has_another_index(place):
    first, second = SynonymEmbedder(), SynonymEmbedder()
    second.space = EmbeddingSpace("fake-2", 16, 256)
    for embedder in (first, second, first):
        async with Opened(place, embedder):
            pass
    assert len(first.passages) == len(second.passages) == 2


async def test_changed_file_is_found_and_the_index_stays_after_a_wrong_change(place, caplog, monkeypatch):
    async with Opened(place, SynonymEmbedder()) as knowledge:
        (place / "boats.md").write_text("# Boats\nThey sail to Genoa.")
        (place / "cars.md").unlink()
        (place / "trains.md").write_text("Trains go to Basel.")
        await until(knowledge, "genoa", ["boats.md"])
        assert (await files(knowledge, "basel"))[0] == "trains.md"
        (place / "boats.md").write_bytes(b"\xff")
        async with asyncio.timeout(30):
            while "boats.md:1: the text is not UTF-8" not in caplog.text:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.005)
        monkeypatch.setattr(knowledge_module, "read_documents", pytest.fail)
        await asyncio.sleep(0.05)
        assert (await files(knowledge, "genoa"))[0] == "boats.md"
    assert caplog.text.count("is not UTF-8") == 1
    assert "it stays as it was before" in caplog.text


def test_passages_of_all_files_are_counted_before_the_next_is_read(place, monkeypatch):
    (place / "trains.md").write_bytes(b"\xff")
    monkeypatch.setattr(chunks_module, "MAX_CHUNKS", 1)
    with pytest.raises(KnowledgeError, match=r"cars\.md: an agent may have 1 passages"):
        check_documents(place, ["*.md"])


async def test_other_patterns_have_an_index_of_their_own(place):
    async with Opened(place) as before, Opened(place, pattern="cars.*") as after:
        assert await files(before, "swim") == ["boats.md"]
        assert await files(after, "swim") == []


async def test_embedder_that_comes_late_makes_the_vectors_then(place, caplog):
    embedder = SynonymEmbedder()
    embedder.failures += [ModelUnavailableError("loading")] * 3
    async with Opened(place, embedder) as knowledge:
        assert await files(knowledge, "swim") == ["boats.md"]
        assert await files(knowledge, "price") == []
        await until(knowledge, "price", ["cars.md"])
    assert caplog.text.count("by words alone for now") == 1


async def test_question_is_searched_by_words_where_the_embedder_fails(place):
    embedder = SynonymEmbedder()
    async with Opened(place, embedder) as knowledge:
        embedder.failures.append(InferenceError("it has failed"))
        assert await files(knowledge, "do they swim") == ["boats.md"]


async def test_embedder_with_other_weights_has_its_passages_again(place, caplog):
    embedder = SynonymEmbedder()
    async with Opened(place, embedder) as knowledge:
        embedder.space = EmbeddingSpace("fake-2", 256, 256)
        embedder.failures.append(InferenceError("other weights"))
        assert await files(knowledge, "do they swim") == ["boats.md"]
        await until(knowledge, "price", ["cars.md"])
    assert len(embedder.passages) == 4
    assert "for now: inference_failed" in caplog.text


async def test_other_weights_that_another_agent_has_noticed_are_noticed(place):
    embedder = SynonymEmbedder()
    async with Opened(place, embedder) as knowledge:
        embedder.space = EmbeddingSpace("fake-2", 16, 256)
        assert await files(knowledge, "price") == []
        await until(knowledge, "price", ["cars.md"])


async def test_passage_that_cannot_be_represented_is_found_by_words_alone(place):
    (place / "boats.md").write_text("# ~\n---")
    async with Opened(place, SynonymEmbedder()) as knowledge:
        assert (await files(knowledge, "car price"))[0] == "cars.md"


async def test_wrong_file_is_an_error_of_the_agent(place):
    (place / "notes.md").write_text("  ")
    with pytest.raises(KnowledgeError, match=r"notes\.md has no text"):
        async with Opened(place):
            pass
    with pytest.raises(KnowledgeError, match=r"notes\.md has no text"):
        check_documents(place, ["*.md"])


def test_refused_file_and_those_beside_it_are_read_again_only_after_a_change(place, monkeypatch):
    read = []
    monkeypatch.setattr(
        knowledge_module,
        "read_document",
        lambda document: read.append(document.name) or read_document(document),
    )
    (place / "cars.md").write_text("  ")
    for _ in range(3):
        with pytest.raises(KnowledgeError, match=r"^cars\.md has no text$"):
            check_documents(place, ["*.md"])
    assert read == ["boats.md", "cars.md"]
    (place / "cars.md").write_text("An automobile.")
    check_documents(place, ["*.md"])
    assert read[2:] == ["boats.md", "cars.md"]


async def test_files_of_one_name_are_refused(place):
    (place / "other").mkdir()
    (place / "other" / "cars.md").write_text("x")
    with pytest.raises(KnowledgeError, match=r"two files of different folders are called cars\.md"):
        check_documents(place, ["cars.md", str(place / "other" / "cars.md")])


async def test_two_servers_may_have_one_index(place):
    async with Opened(place, SynonymEmbedder()) as first, Opened(place, SynonymEmbedder()) as second:
        (place / "boats.md").write_text("# Boats\nThey sail to Genoa.")
        for knowledge in (first, second):
            await until(knowledge, "sail", ["boats.md"])


async def test_old_indexes_are_removed(place, monkeypatch):
    monkeypatch.setattr(knowledge_module, "_MOST_INDEXES", 2)
    for name in ("a", "b", "c"):
        async with Opened(place, name=name):
            pass
    assert sorted(path.name[0] for path in (place / "cache").iterdir()) == ["b", "c"]


@pytest.fixture(autouse=True)
def _log_level(caplog):
    caplog.set_level(logging.INFO)
