"""``parley test`` with a scripted agent in place of a server."""

import sys
from xml.etree import ElementTree as ET

import pytest
from scripted_server import HANGS_UP, calls, chat_model, says, scripted

from parley import protocol
from parley_client import ToolTable
from parley_client.agent_program import AgentProgram
from parley_client.agent_registration import Registration
from parley_client.cli.commands import test as test_command
from parley_client.cli.launcher_notes import LauncherNote
from parley_client.cli.own_agent import definition
from parley_client.cli.program import main
from parley_client.errors import ClientError
from parley_client.options import Backoff
from parley_testing import caller as caller_module

AGENT = 'instructions = "You take orders."\n'
PARKING = """
[[scenario]]
title = "Parking"
[[scenario.exchange]]
say = "is there [300] parking"
expect = { answer = ["behind the house"], never = ["/table/"] }
"""
ANSWERS = {"is there parking": says("Yes, behind the house.")}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "shop.toml").write_text(AGENT)

    def write(text):
        (tmp_path / "shop.tests.toml").write_text(text)
        return str(tmp_path / "shop.toml")

    return write


def run(agent, path, *arguments):
    return main(["test", path, "--server", agent.address, *arguments])


def test_scenario_that_passes_ends_with_0(folder, capsys):
    with scripted(ANSWERS) as agent:
        assert run(agent, folder(PARKING)) == 0
    (start,) = agent.starts
    assert (start.agent, start.output) == ("shop", "text")
    assert "1 of 1" in capsys.readouterr().out


def test_agent_in_python_is_served_while_its_scenarios_run(folder, tmp_path, monkeypatch):
    folder(PARKING)
    program, agents = tmp_path / "shop.py", tmp_path / "agents"
    program.write_text("from parley_client import Agent\nagent = Agent(instructions='Take orders.')\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PARLEY_VOICE_AGENT_AGENTS", str(agents))
    with scripted(ANSWERS) as agent:
        assert run(agent, str(program)) == 0
    assert {(start.agent, start.test) for start in agent.starts} == {("shop", True)}
    assert list(agents.iterdir()) == [], "it was there, and is no more"


SHOP = """
from parley_client import Agent, tool
agent = Agent(instructions='Take orders.')

@tool
def get_price(thing: str) -> int:
    'Get a price.'
    return 3
"""


@pytest.mark.parametrize("is_other", [False, True])
def test_agent_that_is_served_already_is_tested_as_it_is(folder, tmp_path, monkeypatch, capsys, is_other):
    folder(PARKING)
    program, agents = tmp_path / "shop.py", tmp_path / "agents"
    program.write_text(SHOP)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PARLEY_VOICE_AGENT_AGENTS", str(agents))
    loaded = AgentProgram(program).load()
    fields = definition(loaded, ToolTable(loaded.functions), "http://127.0.0.1:5/mcp?7")
    with Registration(agents, "shop") as served, scripted(ANSWERS) as agent:
        served.write(fields | ({"greeting": "Hello."} if is_other else {}))
        assert run(agent, str(program)) == 0
        assert "127.0.0.1:5" in served.file.read_text(), "it was not replaced"
    warning = f"another definition of the agent shop than {program} has is served"
    assert (warning in " ".join(capsys.readouterr().err.split())) == is_other


def test_server_that_runs_already_is_pointed_at_before_another_one_is_started(folder, monkeypatch, capsys):
    note = LauncherNote(launcher=1, launcher_started=0.0, endpoints="ready grpc=127.0.0.1:8001")
    monkeypatch.setattr(test_command, "running_servers", lambda _: [(None, note)])

    def fail(*_, **__):
        raise ClientError("no room")

    monkeypatch.setattr(test_command, "running_server", fail)
    assert main(["test", folder(PARKING)]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "a server runs here already, at 127.0.0.1:8001" in said
    assert said.index("--server 127.0.0.1:8001") < said.index("no room")


def test_agents_in_python_and_toml_together_are_refused(folder, tmp_path, capsys):
    program = tmp_path / "other.py"
    program.write_text("from parley_client import Agent\nagent = Agent(instructions='Take orders.')\n")
    assert main(["test", folder(PARKING), str(program)]) == 2
    assert "one after the other" in capsys.readouterr().err


def test_scenario_that_fails_ends_with_1_and_says_why(folder, capsys):
    with scripted({"is there parking": says("You have a table.")}) as agent:
        assert run(agent, folder(PARKING)) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "behind the house not in 'You have a table.'" in out
    assert "/table/ in 'You have a table.'" in out


def test_pass_rate_that_is_reached_ends_with_0(folder):
    with scripted({}) as agent:
        path = folder(PARKING)
        assert run(agent, path, "--repeat", "2", "--pass-rate", "0") == 0
        assert run(agent, path, "--repeat", "2", "--pass-rate", "0.5") == 1
    assert len(agent.starts) == 4


def test_tool_gets_its_canned_result(folder, capsys):
    text = """
[[tool]]
name = "free_tables"
output = { free = false }
[[scenario]]
title = "A table"
expect = { not_called = ["book"], said = ["/nothing free/"] }
[[scenario.exchange]]
say = "a table at half past seven"
expect = { tools = ["free_tables(..., time=re('19.30'))"] }
"""

    def answer(result):
        return "Sorry, nothing free." if result == {"free": False} else "?"

    table = calls("free_tables", answer, time="19:30")
    with scripted({"a table at half past seven": table}) as agent:
        assert run(agent, folder(text)) == 0, capsys.readouterr().out
    (tool,) = agent.starts[0].tools
    assert (tool.name, tool.description, tool.parameters) == ("free_tables", "", {})


def test_agent_that_ends_the_call_as_it_is_expected_to_passes(folder):
    text = '[[exchange]]\nsay = "goodbye"\nexpect = { answered = false }\n'
    with scripted({"goodbye": HANGS_UP}) as agent:
        assert run(agent, folder(f'title = "End"\nexpect = {{ ended_by = "agent" }}\n{text}')) == 0
        assert run(agent, folder(f'title = "End"\nexpect = {{ ended_by = "caller" }}\n{text}')) == 1


PERSONA = """
title = "A guest"
expect = { said = ["behind the house"], judge = ["The agent is polite."] }
[persona]
prompt = "You want to know where to park."
"""


def test_persona_talks_until_it_hangs_up(folder):
    lines = ('"is there parking"', "thanks, goodbye [hang up]", "Yes. It says please.")
    with scripted({**ANSWERS, "thanks, goodbye": says("Goodbye.")}) as agent, chat_model(*lines) as model:
        assert run(agent, folder(PERSONA), "--persona-url", model.url, "--persona-model", "m") == 0
    first, second, judged = model.asked
    assert "where to park" in first["messages"][0]["content"]
    assert [one["content"] for one in second["messages"][1:]] == [
        "is there parking",
        "Yes, behind the house.",
    ]
    assert "The agent is polite." in judged["messages"][1]["content"]


def test_judge_that_does_not_agree_fails_the_call(folder, capsys):
    lines = ("is there parking", "bye [hang up]", "No, it is rude.")
    with scripted(ANSWERS) as agent, chat_model(*lines) as model:
        options = ("--persona-url", model.url, "--persona-model", "m")
        assert run(agent, folder(PERSONA), *options) == 1
    assert "No, it is rude." in capsys.readouterr().out


def test_model_that_fails_fails_the_call(folder, capsys):
    with scripted({}) as agent:
        options = ("--persona-url", "http://127.0.0.1:9/v1", "--persona-model", "m")
        assert run(agent, folder(PERSONA), *options) == 1
    assert "cannot be reached" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "options", "problem"),
    [
        (
            PARKING.replace("answer =", "anser ="),
            (),
            "shop.tests.toml:6: unknown field 'anser' (did you mean answer?)",
        ),
        (PARKING.replace("[300]", "[wibble]"), (), "shop.tests.toml:4: exchange 1"),
        (PARKING + PARKING, (), "shop.tests.toml:8: a second scenario has the title 'Parking'"),
        (PERSONA, (), "--persona-url"),
        (PERSONA, ("--persona-url", "localhost", "--persona-model", "m"), "http:// or https://"),
        (PARKING, ("--scenario", "wine"), "no scenario has wine"),
        (PARKING, ("--loss", "3"), "need --speech"),
        (PARKING, ("--scenarios", "nowhere.toml"), "nowhere.toml: No such file"),
    ],
)
def test_wrong_usage_ends_with_2_and_says_where(folder, capsys, text, options, problem):
    assert main(["test", folder(text), "--server", "127.0.0.1:9", *options]) == 2
    assert problem in " ".join(capsys.readouterr().err.split())


def test_agent_without_scenarios_is_wrong_usage(tmp_path, capsys):
    (tmp_path / "shop.toml").write_text(AGENT)
    assert main(["test", str(tmp_path / "shop.toml")]) == 2
    assert "no scenarios" in capsys.readouterr().err


def test_server_that_refuses_fails_the_calls(folder, tmp_path, capsys):
    report = tmp_path / "junit.xml"
    assert main(["test", folder(PARKING), "--server", "127.0.0.1:9", "--junit", str(report)]) == 1
    assert "connect_failed" in capsys.readouterr().out
    (suite,) = ET.parse(report).getroot()  # noqa: S314 - written by the test
    assert (suite.get("errors"), suite.get("failures")) == ("1", "0")


def test_reports_have_every_call(folder, tmp_path):
    junit, html = tmp_path / "out" / "junit.xml", tmp_path / "report.html"
    text = PARKING.replace("Parking", "<Parking>")
    with scripted({"is there parking": says("A <b>table</b>\x08.")}) as agent:
        assert run(agent, folder(text), "--repeat", "2", "--junit", str(junit), "--html", str(html)) == 1
    (suite,) = ET.parse(junit).getroot()  # noqa: S314 - written by the test
    assert (suite.get("tests"), suite.get("failures")) == ("2", "2")
    assert [case.get("name") for case in suite] == ["<Parking> [1]", "<Parking> [2]"]
    assert "behind the house not in" in suite[0].find("failure").get("message")
    assert "A <b>table</b>" in suite[0].find("system-out").text
    page = html.read_text()
    assert "&lt;Parking&gt; [2]" in page
    assert "<b>" not in page


def test_error_of_the_server_is_named_before_the_criteria_and_is_no_failure(folder, tmp_path, capsys):
    junit, html = tmp_path / "junit.xml", tmp_path / "report.html"
    broken = protocol.ErrorEvent(code="model_unavailable", message="qwen3 is not loaded", retryable=True)
    slow = protocol.ErrorEvent(code="tool_timeout", message="get_price took too long", retryable=False)
    with scripted({"is there parking": [slow, broken, broken]}) as agent:
        assert run(agent, folder(PARKING), "--junit", str(junit), "--html", str(html)) == 1
    out = capsys.readouterr().out
    assert out.index("model_unavailable: qwen3 is not loaded") < out.index("behind the house not in")
    assert out.count("model_unavailable") == 1
    assert "tool_timeout" not in out, "the language model has read it"
    (suite,) = ET.parse(junit).getroot()  # noqa: S314 - written by the test
    assert (suite.get("errors"), suite.get("failures")) == ("1", "0")
    assert "model_unavailable: qwen3 is not loaded" in suite[0].find("error").get("message")
    assert "model_unavailable: qwen3 is not loaded</li>" in html.read_text()
    with scripted({"is there parking": [broken, *ANSWERS["is there parking"]]}) as agent:
        assert run(agent, folder(PARKING)) == 0, "another model may have answered"


def test_list_names_the_scenarios_of_each_agent_once(folder, capsys):
    path = folder(PARKING)
    assert main(["test", path, path.replace(".toml", ".tests.toml"), "--list"]) == 0
    assert capsys.readouterr().out.split("\n") == ["shop: Parking", ""]


HEARING = """
[[scenario]]
title = "A cough"
[[scenario.exchange]]
sound = "cough"
"""


INTERRUPTED = """
[[scenario]]
title = "Interrupted"
[[scenario.exchange]]
say = "is there parking"
[[scenario.exchange]]
say = "stop"
at = "agent+500"
expect = { interrupts = true }
"""


def test_scenario_with_nothing_to_check_as_text_is_skipped_and_named(folder, tmp_path, capsys):
    report, page = tmp_path / "new" / "junit.xml", tmp_path / "report.html"
    options = ("--junit", str(report), "--html", str(page))
    with scripted(ANSWERS) as agent:
        assert run(agent, folder(PARKING + INTERRUPTED + HEARING), *options) == 0
    assert len(agent.starts) == 1
    out = capsys.readouterr().out
    assert out.count("needs --speech") == 2
    assert "1 of 1" in out
    (suite,) = ET.parse(report).getroot()  # noqa: S314 - written by the test
    assert (suite.get("tests"), suite.get("skipped"), suite.get("failures")) == ("3", "2", "0")
    skipped = [case.get("name") for case in suite if case.find("skipped") is not None]
    assert skipped == ["Interrupted", "A cough"]
    assert page.read_text().count("skipped: needs --speech") == 2


def test_scenarios_of_sounds_alone_are_refused_as_text(folder, capsys):
    with scripted(ANSWERS) as agent:
        assert run(agent, folder(HEARING)) == 2
    assert agent.starts == []
    assert "--speech" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--junit", "--html"])
def test_report_that_cannot_be_written_is_refused_before_the_calls(folder, tmp_path, capsys, option):
    (tmp_path / "file").touch()
    with scripted(ANSWERS) as agent:
        assert run(agent, folder(PARKING), option, str(tmp_path / "file" / "report")) == 2
    assert agent.starts == []
    assert "the report cannot be written" in capsys.readouterr().err


def test_paths_of_reports_are_left_as_they_were_where_there_are_no_calls(folder, tmp_path):
    report = tmp_path / "junit.xml"
    assert main(["test", folder(PARKING), "--server", "127.0.0.1:9", "--junit", str(report)]) == 1
    report.unlink()
    judged = f'{PARKING}[scenario.expect]\njudge = ["polite"]\n'
    assert main(["test", folder(judged), "--server", "127.0.0.1:9", "--junit", str(report)]) == 2
    assert not report.exists()


def test_missing_agent_in_python_ends_with_2(tmp_path, capsys):
    assert main(["test", str(tmp_path / "none.py")]) == 2
    assert "none.py" in capsys.readouterr().err


def test_scenarios_of_an_agent_in_python_may_be_named(folder, tmp_path, capsys):
    folder(PARKING)
    (tmp_path / "shop.toml").unlink()
    (tmp_path / "shop.py").write_text(
        "from parley_client import Agent\nagent = Agent(instructions='Take orders.')\n"
    )
    assert main(["test", str(tmp_path / "shop.tests.toml"), "--list"]) == 0
    assert "shop: Parking" in capsys.readouterr().out


def test_call_waits_for_an_instance_that_still_reads_the_agent(folder, monkeypatch):
    monkeypatch.setattr(caller_module, "_RETRY", Backoff(attempts=10, initial_s=0.01, factor=1.0, max_s=0.01))
    with scripted(ANSWERS) as agent:
        agent.refusals = ["model_unavailable: the agent 'shop' is being read"] * 3
        assert run(agent, folder(PARKING)) == 0
        agent.refusals = ["unknown_agent: no agent 'shop'"]
        assert run(agent, folder(PARKING)) == 1


def test_server_that_keeps_its_tools_is_named_with_the_setting_that_replaces_them(folder, capsys):
    with scripted(ANSWERS) as agent:
        agent.refusals = ["invalid_message: tool 'get_price': the server has a tool of this name"]
        assert run(agent, folder(PARKING)) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "the server has a tool of this name. Start it with PARLEY_VOICE_AGENT_REPLACEABLE_TOOLS=true" in said
    )
