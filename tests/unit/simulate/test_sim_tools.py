import pytest
from simulate.tool_scripts import ToolScript, make_table

from parley.protocol import ToolRequest


def request(name: str) -> ToolRequest:
    return ToolRequest(turn=1, call_id="c1", name=name, arguments={"city": "Paris"})


async def test_tools_answer_as_the_scenario_says():
    table = make_table(
        (
            ToolScript(name="get_weather"),
            ToolScript(name="get_time", output={"time": "9:00"}),
            ToolScript(name="set_timer", error="no bell"),
        )
    )
    assert (await table.answer(request("get_weather"))).output == {"temperature": 8, "sky": "foggy"}
    assert (await table.answer(request("get_time"))).output == {"time": "9:00"}
    failed = await table.answer(request("set_timer"))
    assert failed.is_error
    assert failed.output == {"error": "no bell"}


def test_the_model_is_told_of_the_samples_own_parameters():
    (tool,) = make_table((ToolScript(name="get_weather", delay_ms=5),)).definitions
    assert tool.description
    assert set(tool.parameters["properties"]) == {"city", "day"}


def test_a_tool_of_ones_own_needs_a_description():
    with pytest.raises(ValueError, match="needs a description"):
        make_table((ToolScript(name="get_price"),))
