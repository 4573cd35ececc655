"""The agents of a folder, whose changes are taken while calls go on."""

from __future__ import annotations

import asyncio
import contextlib
import os

import pytest

from parley.agents import folder as folder_module
from parley.agents import registry as registry_module
from parley.agents.registry import AgentRegistry, ServedAgent
from parley.errors import ModelLoadingError, ModelUnavailableError, UnknownAgentError


class Part:
    """Something that an agent owns."""

    def __init__(self):
        self.closed = False

    async def close(self):
        self.closed = True


class Folder:
    """A folder with files of agents, and a registry of it."""

    def __init__(self, path):
        self.path = path
        self.parts = {}
        self.refused = {}
        self.may_open = asyncio.Event()
        self.may_open.set()
        self.registry = AgentRegistry(path, self.open_agent)

    def define(self, name: str, text: str = 'instructions = "x"') -> None:
        (self.path / f"{name}.toml").write_text(text)

    async def open_agent(self, file):
        await self.may_open.wait()
        if file.name in self.refused:
            raise self.refused[file.name](file)
        part = self.parts[file.name, file.definition.instructions] = Part()
        return ServedAgent(file, owned=(part,))

    async def until(self, condition) -> None:
        async with asyncio.timeout(30):
            while not condition():  # noqa: ASYNC110 - a file has no event
                await asyncio.sleep(0.005)

    async def until_served(self, name: str) -> None:
        await self.until(lambda: name in [one.name for one in self.registry.summaries])

    async def until_instructed(self, name: str, instructions: str) -> None:
        await self.until(lambda: self.registry.find(name).file.definition.instructions == instructions)


@pytest.fixture
async def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(registry_module, "_INTERVAL_S", 0.01)
    folder = Folder(tmp_path)
    yield folder
    await folder.registry.close()
    assert all(part.closed for part in folder.parts.values())


def errors(caplog):
    return [record.message for record in caplog.records if record.levelname == "ERROR"]


async def test_folder_has_the_agents_of_its_files(folder):
    folder.define("restaurant")
    folder.define("clinic", 'instructions = "y"\n[page]\ntitle = "Dr. Y"')
    folder.define("clinic.tests", "turns = []")
    (folder.path / ".#clinic.toml").symlink_to("nowhere")
    (folder.path / "gone.toml").symlink_to("nowhere")
    os.mkfifo(folder.path / "pipe.toml")
    await folder.registry.open()
    assert [(one.name, one.title) for one in folder.registry.summaries] == [
        ("clinic", "Dr. Y"),
        ("restaurant", "restaurant"),
    ]
    assert folder.registry.find("clinic").file.definition.instructions == "y"
    with pytest.raises(UnknownAgentError, match=r"no agent 'restorant' .*\(did you mean restaurant\?\)"):
        folder.registry.find("restorant")


async def test_wrong_files_are_logged_and_others_are_served(folder, caplog):
    folder.define("a", "instructions = 5")
    folder.define("b")
    folder.define("c")
    folder.refused["c"] = lambda file: file.error("instructions", "too long")
    await folder.registry.open()
    assert [one.name for one in folder.registry.summaries] == ["b"]
    assert folder.registry.wrong_files == 2
    name = folder.path.name
    assert errors(caplog) == [
        f"{name}/a.toml:1: instructions: Expected `str`, got `int`",
        f"{name}/c.toml:1: too long",
    ]
    with pytest.raises(UnknownAgentError, match="the file of the agent 'a' is wrong"):
        folder.registry.find("a")


async def test_changed_file_is_taken_and_what_calls_use_stays_open(folder):
    folder.define("a")
    folder.define("b")
    await folder.registry.open()
    old, other = folder.registry.find("a"), folder.registry.find("b")
    old.begin_session()
    folder.define("a", 'instructions = "new"')
    folder.define("c")
    await folder.until_instructed("a", "new")
    await folder.until(lambda: len(folder.registry) == 3)
    assert folder.registry.find("b") is other
    assert not folder.parts["a", "x"].closed
    old.end_session()
    await folder.until(lambda: folder.parts["a", "x"].closed)
    assert not folder.parts["a", "new"].closed


async def test_wrong_change_leaves_the_agent_as_it_was_and_is_logged_once(folder, caplog):
    folder.define("a")
    await folder.registry.open()
    served = folder.registry.find("a")
    folder.define("a", "voise = 1")
    await folder.until(lambda: folder.registry.wrong_files)
    assert folder.registry.find("a") is served
    folder.define("b")  # the wrong file is read again
    await folder.until(lambda: len(folder.registry) == 2)
    (error,) = errors(caplog)
    assert "a.toml:1: " in error
    assert error.endswith("(the agent is served as it was before)")
    folder.define("a", 'instructions = "right"')
    await folder.until_instructed("a", "right")
    assert not folder.registry.wrong_files


async def test_agent_that_could_not_be_opened_is_tried_again_without_a_change(folder, caplog, monkeypatch):
    monkeypatch.setattr(registry_module, "_RETRY_S", 0.02)
    folder.define("a")
    folder.define("b")
    tries = []

    def refuse(file):
        tries.append(file.name)
        return file.error("instructions", "no key yet") if len(tries) < 3 else RuntimeError("broken")

    folder.refused["a"] = refuse
    await folder.registry.open()
    await folder.until(lambda: len(tries) > 4)
    del folder.refused["a"]
    await folder.until_served("a")
    assert not folder.registry.wrong_files
    assert len(errors(caplog)) == 2, "each problem is logged once"
    assert set(tries) == {"a"}


async def test_removed_file_removes_its_agent(folder):
    folder.define("a")
    folder.define("b", "wrong")
    await folder.registry.open()
    for name in ("a", "b"):
        (folder.path / f"{name}.toml").unlink()
    await folder.until(lambda: not len(folder.registry) and not folder.registry.wrong_files)
    await folder.until(lambda: folder.parts["a", "x"].closed)


async def test_folder_that_cannot_be_read_leaves_its_agents(folder, caplog):
    folder.define("a")
    await folder.registry.open()
    hidden = folder.path.with_name("hidden")
    folder.path.rename(hidden)
    await folder.until(lambda: folder.registry.wrong_files)
    assert "cannot be read: No such file" in errors(caplog)[0]
    assert folder.registry.find("a")
    hidden.rename(folder.path)
    await folder.until(lambda: not folder.registry.wrong_files)
    assert len(errors(caplog)) == 1


async def test_folder_with_too_many_files_does_not_load(folder, monkeypatch):
    monkeypatch.setattr(folder_module, "MAX_AGENTS", 2)
    for name in ("a", "b", "c"):
        folder.define(name)
    with pytest.raises(ModelLoadingError, match=r"c\.toml:1: a folder may have 2 agents at most"):
        await folder.registry.open()


def with_number(*numbers: str) -> str:
    return f'instructions = "x"\n[telephone]\nnumbers = {list(numbers)}'


async def test_number_of_two_agents_is_the_first_ones(folder, caplog):
    folder.define("a", with_number("+493012345678"))
    folder.define("b", with_number("+493087654321", "+493012345678"))
    folder.define("c", with_number("+1555000111", "+1555000111"))
    await folder.registry.open()
    assert [one.numbers for one in folder.registry.summaries] == [["+493012345678"]]
    assert [error.partition(": ")[2] for error in errors(caplog)] == [
        "+493012345678 belongs to the agent 'a' already",
        "+1555000111 stands there twice",
    ]
    assert all(".toml:3: " in error for error in errors(caplog))


async def test_number_moves_to_another_agent_by_changes_of_both_files(folder):
    folder.define("b", with_number("+493012345678"))
    await folder.registry.open()
    folder.define("a", with_number("+493012345678"))
    await folder.until(lambda: folder.registry.wrong_files)
    assert [one.name for one in folder.registry.summaries] == ["b"]
    folder.define("b", with_number())
    await folder.until(lambda: [one.numbers for one in folder.registry.summaries] == [["+493012345678"], []])


async def test_agent_whose_file_is_wrong_keeps_its_number(folder):
    folder.define("b", with_number("+493012345678"))
    await folder.registry.open()
    folder.define("b", "wrong")
    folder.define("a", with_number("+493012345678"))
    await folder.until(lambda: folder.registry.wrong_files == 2)
    assert [one.name for one in folder.registry.summaries] == ["b"]


async def test_agent_whose_file_was_found_is_to_be_asked_for_again_until_it_is_taken(folder):
    await folder.registry.open()
    folder.may_open.clear()
    folder.define("restaurant")

    def is_being_read():
        try:
            folder.registry.find("restaurant")
        except ModelUnavailableError as error:
            return error.retryable
        except UnknownAgentError:
            return False
        raise AssertionError("it is not open")

    await folder.until(is_being_read)
    folder.may_open.set()
    await folder.until_served("restaurant")


async def test_agent_that_opens_slowly_holds_up_no_other_one(folder, monkeypatch):
    monkeypatch.setattr(registry_module, "_OPEN_S", 0.01)
    folder.may_open.clear()
    folder.define("slow")
    await folder.registry.open()
    with pytest.raises(ModelUnavailableError, match="'slow' is being read"):
        folder.registry.find("slow")
    folder.define("broken", "wrong")
    await folder.until(lambda: folder.registry.wrong_files)
    (folder.path / "broken.toml").unlink()
    await folder.until(lambda: not folder.registry.wrong_files)
    folder.may_open.set()
    await folder.until_served("slow")
    assert len(folder.parts) == 1


async def test_agent_that_is_still_opening_is_replaced_or_removed_with_its_file(folder, monkeypatch):
    monkeypatch.setattr(registry_module, "_OPEN_S", 0.01)
    folder.may_open.clear()
    folder.define("a")
    folder.define("b")
    await folder.registry.open()
    folder.define("a", 'instructions = "new"')
    (folder.path / "b.toml").unlink()
    await folder.until(lambda: not folder.registry._opening.keys() - {"a"})
    await folder.until(lambda: folder.registry._opening["a"][0].definition.instructions == "new")
    folder.may_open.set()
    await folder.until_served("a")
    assert [*folder.parts] == [("a", "new")]
    with pytest.raises(UnknownAgentError):
        folder.registry.find("b")


async def test_agent_that_is_still_opening_is_cancelled_at_the_end(folder, monkeypatch):
    monkeypatch.setattr(registry_module, "_OPEN_S", 0.01)
    folder.may_open.clear()
    folder.define("a")
    await folder.registry.open()
    await folder.registry.close()
    assert not folder.registry._opening


async def test_opening_that_does_not_end_holds_up_neither_other_agents_nor_the_end(folder, monkeypatch):
    monkeypatch.setattr(registry_module, "_OPEN_S", 0.01)
    monkeypatch.setattr(registry_module, "_CLOSE_S", 0.01)
    monkeypatch.setattr(registry_module, "_RETRY_S", 0.02)
    may_end = asyncio.Event()
    open_agent, opened = folder.registry._open_agent, []

    async def hang(file):
        opened.append(file.definition.instructions)
        if file.name == "a" and file.definition.instructions == "x":
            while not may_end.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await may_end.wait()
            raise asyncio.CancelledError
        return await open_agent(file)

    folder.registry._open_agent = hang
    folder.define("a")
    await folder.registry.open()
    folder.define("a", 'instructions = "new"')
    folder.define("b")
    await folder.until_served("b")
    await folder.until(lambda: folder.registry.wrong_files)
    other = AgentRegistry(folder.path, hang)
    folder.define("a")
    await other.open()
    await other.close()
    folder.define("a", 'instructions = "new"')
    may_end.set()
    await folder.until_served("a")
    await folder.until_instructed("a", "new")
    await folder.until(lambda: not folder.registry.wrong_files)
    assert opened.count("new") == 1
