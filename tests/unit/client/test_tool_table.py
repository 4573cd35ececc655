"""Tools: definitions from hints, answers, failures, limits."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Annotated, Literal

import pytest

from parley.protocol import ToolRequest
from parley_client import ToolDefinitionError, ToolOptions, ToolTable, report_progress, tool
from parley_client.cli.demo_tools import DEMO_TOOLS, get_weather
from parley_client.tools import load_tools, schema_of


def ask(name, **arguments):
    return ToolRequest(turn=1, call_id="c", name=name, arguments=arguments)


def test_a_schema_follows_the_type_hints():
    def order(
        item: Annotated[str, "What."],
        count: int,
        size: Literal["small", "large"] = "small",
        notes: list[str] | None = None,
        *,
        express: bool = False,
        price: float | None = None,
    ):
        pass

    assert schema_of(order) == {
        "type": "object",
        "properties": {
            "item": {"type": "string", "description": "What."},
            "count": {"type": "integer"},
            "size": {"type": "string", "enum": ["small", "large"]},
            "notes": {"type": "array", "items": {"type": "string"}},
            "express": {"type": "boolean"},
            "price": {"type": "number"},
        },
        "required": ["item", "count"],
    }


def test_functions_without_a_schema_are_refused():
    def untyped(x):
        """Do."""

    def strange(x: threading.Thread):
        """Do."""

    def many(*x: int):
        """Do."""

    def silent(x: int):
        pass

    for function, why in (
        (untyped, "needs a type"),
        (strange, "explicitly"),
        (many, "by name"),
        (silent, "docstring"),
    ):
        with pytest.raises(ToolDefinitionError, match=why):
            ToolTable([function])


def test_the_demo_tools_are_defined_as_the_models_know_them():
    definitions = {definition.name: definition for definition in ToolTable(DEMO_TOOLS).definitions}
    assert list(definitions) == ["get_weather", "get_time", "set_timer"]
    assert definitions["get_weather"].description == "Get the weather in a city."
    assert definitions["get_weather"].parameters == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "The name of the city."},
            "day": {"type": "string", "description": "The day, if it is not now."},
        },
        "required": ["city"],
    }
    assert definitions["set_timer"].parameters["required"] == ["minutes"]


async def test_the_demo_tools_answer():
    table = ToolTable(DEMO_TOOLS)
    weather = (await table.answer(ask("get_weather", city="Paris"))).output
    assert weather == get_weather("paris")
    assert set(weather) == {"temperature", "sky"}
    assert get_weather("Paris", "tomorrow") != get_weather("Paris")
    time = (await table.answer(ask("get_time", city="Tokyo"))).output["time"]
    assert [len(part) for part in time.split(":")] == [2, 2]
    assert (await table.answer(ask("set_timer", minutes=10, label="pasta"))).output == {"ok": True}
    unknown = await table.answer(ask("get_time", city="Atlantis"))
    assert (unknown.is_error, unknown.output) == (True, {"error": "unknown city"})
    assert (await table.answer(ask("set_timer", minutes=0))).is_error


async def test_arguments_are_converted_and_checked():
    @tool
    def double(n: int) -> int:
        """Double."""
        return 2 * n

    table = ToolTable([double])
    assert (await table.answer(ask("double", n="21"))).output == 42
    for arguments, why in (({"n": "x"}, "int"), ({}, "n"), ({"n": 1, "m": 2}, "unknown argument 'm'")):
        response = await table.answer(ask("double", **arguments))
        assert response.is_error
        assert why in response.output["error"]


async def test_failures_become_error_responses():
    def breaks() -> None:
        """Break."""
        raise LookupError("nothing there")

    def odd() -> object:
        """Return what JSON does not have."""
        return object()

    table = ToolTable([breaks, odd])
    assert (await table.answer(ask("breaks"))).output == {"error": "nothing there"}
    assert (await table.answer(ask("odd"))).is_error
    assert (await table.answer(ask("missing"))).output == {"error": "there is no tool 'missing'"}


async def test_a_slow_tool_is_given_up_and_a_slow_thread_keeps_its_place():
    release = threading.Event()

    @tool(timeout_s=0.05)
    def slow() -> str:
        """Take long."""
        release.wait(10)
        return "late"

    @tool(timeout_s=0.05)
    async def waits() -> None:
        """Take for ever."""
        await asyncio.Event().wait()

    @tool(timeout_s=0.05)
    async def quick() -> str:
        """Be quick."""
        return "done"

    table = ToolTable([slow, waits, quick], parallel=1)
    assert "within 0.05 s" in (await table.answer(ask("waits"))).output["error"]
    assert (await table.answer(ask("quick"))).output == "done"
    assert (await table.answer(ask("slow"))).is_error
    assert (await table.answer(ask("quick"))).is_error  # the thread still holds the only place
    release.set()
    async with asyncio.timeout(5):
        while (await table.answer(ask("quick"))).is_error:
            pass


async def test_a_coroutine_that_ignores_its_time_limit_keeps_its_place_too(monkeypatch):
    monkeypatch.setattr("parley_client.tools.CANCEL_GRACE_S", 0.01)
    release = asyncio.Event()

    @tool(timeout_s=0.05)
    async def stubborn() -> str:
        """Go on whatever happens."""
        while not release.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await release.wait()
        return "late"

    @tool(timeout_s=0.05)
    async def quick() -> str:
        """Be quick."""
        return "done"

    table = ToolTable([stubborn, quick], parallel=1)
    assert "within 0.05 s" in (await table.answer(ask("stubborn"))).output["error"]
    assert (await table.answer(ask("quick"))).is_error
    release.set()
    async with asyncio.timeout(5):
        while (await table.answer(ask("quick"))).is_error:
            pass


async def test_a_tool_that_cancels_itself_is_answered_for():
    async def gives_up() -> None:
        """Give up."""
        raise asyncio.CancelledError

    answer = await ToolTable([gives_up]).answer(ask("gives_up"))
    assert (answer.is_error, answer.output) == (True, {"error": "it has cancelled itself"})


async def test_tools_run_side_by_side():
    first, second = asyncio.Event(), asyncio.Event()

    async def one() -> str:
        """Wait for two."""
        first.set()
        await second.wait()
        return "one"

    async def two() -> str:
        """Let one go on."""
        await first.wait()
        second.set()
        return "two"

    seen = []
    table = ToolTable([one, two], on_answer=lambda request, response: seen.append((request.name, response)))
    answers = await asyncio.gather(table.answer(ask("one")), table.answer(ask("two")))
    assert [answer.output for answer in answers] == ["one", "two"]
    assert [name for name, _ in seen] == ["two", "one"]


async def test_an_observer_that_fails_does_not_cost_the_answer(caplog):
    @tool
    def one() -> str:
        """One."""
        return "one"

    def fail(request, response):
        raise ZeroDivisionError("observer")

    assert (await ToolTable([one], on_answer=fail).answer(ask("one"))).output == "one"
    assert "observer" in caplog.text


def test_an_explicit_schema_replaces_the_hints():
    def free(**anything):
        return anything

    schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
    table = ToolTable()
    table.add(free, ToolOptions(name="anything", description="Do anything.", parameters=schema))
    assert table.definitions[0].parameters == schema
    assert asyncio.run(table.answer(ask("anything", x=1))).output == {"x": 1}


def test_tools_are_loaded_from_a_file(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from parley_client import tool\n"
        "@tool\ndef ring(times: int = 1) -> str:\n    '''Ring the bell.'''\n    return 'ding ' * times\n"
        "def helper(): pass\n"
    )
    table = ToolTable(load_tools(file))
    assert [definition.name for definition in table.definitions] == ["ring"]


@pytest.mark.parametrize(
    ("text", "why"), [("x = 1", "no function"), ("1/0", "ZeroDivisionError"), (None, "no such file")]
)
def test_an_unusable_file_says_why(tmp_path, text, why):
    file = tmp_path / "mine.py"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ToolDefinitionError, match=why):
        load_tools(file)


@pytest.mark.parametrize("error", [SystemExit, StopIteration, KeyboardInterrupt, asyncio.CancelledError])
async def test_a_tool_that_ends_its_thread_gives_its_place_back(error):
    def leave():
        """Leave."""
        raise error("no more")

    table = ToolTable([leave, get_weather], parallel=1)
    answer = await table.answer(ask("leave"))
    assert (answer.is_error, answer.output) == (True, {"error": f"{error.__name__}: no more"})
    assert not (await table.answer(ask("get_weather", city="Paris"))).is_error


def test_a_tool_in_the_background_says_so_to_the_server():
    @tool(background=True, announce=False, cancel_on_interruption=True)
    def make_report():
        """Make a report."""

    (definition,) = ToolTable([make_report]).definitions
    assert (definition.mode, definition.announce, definition.cancel_on_interruption) == (
        "background",
        False,
        True,
    )


async def test_tools_in_the_background_leave_room_for_others():
    done = asyncio.Event()

    @tool(background=True)
    async def make_report():
        """Make a report."""
        await done.wait()

    @tool
    async def get_time():
        """Get the time."""
        return "noon"

    table = ToolTable([make_report, get_time], parallel=1, background=1)
    reports = [asyncio.create_task(table.answer(ask("make_report"))) for _ in range(2)]
    assert (await table.answer(ask("get_time"))).output == "noon"
    done.set()
    assert [one.is_error for one in await asyncio.gather(*reports)] == [False, False]


@pytest.mark.parametrize("in_thread", [False, True])
async def test_progress_comes_before_the_answer_and_is_bounded(in_thread):
    def work():
        """Work."""
        for number in range(150):
            report_progress(number)
        return "done"

    async def work_in_task():
        """Work."""
        return work()

    table = ToolTable()
    table.add(work if in_thread else work_in_task, ToolOptions(name="work", background=True))
    reports = []
    response = await table.answer(ask("work"), reports.append)
    assert (response.output, response.final) == ("done", True)
    assert [one.output for one in reports] == list(range(100))
    assert {(one.call_id, one.final) for one in reports} == {("c", False)}
    assert (await table.answer(ask("work"))).output == "done", "nothing is asked for"


async def test_progress_behind_the_end_of_a_call_is_dropped():
    release = threading.Event()

    @tool(timeout_s=0.05)
    def work():
        """Work."""
        release.wait(5)
        report_progress("late")

    reports = []
    response = await ToolTable([work]).answer(ask("work"), reports.append)
    assert response.is_error
    release.set()
    while any(thread.name == "tool-work" for thread in threading.enumerate()):  # noqa: ASYNC110 - no event
        await asyncio.sleep(0.01)
    assert reports == []


async def test_progress_that_is_too_long_fails_in_the_function():
    @tool
    async def work():
        """Work."""
        report_progress("x" * 5_000)

    response = await ToolTable([work]).answer(ask("work"), lambda _: None)
    assert response.is_error
    assert "4000 characters" in response.output["error"]
    report_progress("x")  # outside of a call
