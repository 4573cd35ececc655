"""``parley test``: run the scenarios of an agent, and check what it does."""

from __future__ import annotations

import argparse
import os
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
from rich.console import Console

from parley.agents.reader import AgentFileError, read_agent
from parley.engines.base import RemoteChat
from parley.errors import ModelLoadingError
from parley_client.agent_registration import AlreadyServedError
from parley_client.cli.arguments import address, count, run_to_end, within
from parley_client.cli.commands.calls import own_calls
from parley_client.cli.commands.run import (
    FOLDER_VARIABLE,
    AgentInPython,
    ServingPlace,
    check_agent,
    folder_of,
    load_agent,
    own_folder,
    serving_agent,
)
from parley_client.cli.launcher_notes import NOTES, running_servers
from parley_client.cli.output import print_warning
from parley_client.cli.own_server import UNLIMITED, add_profile, default_profile, running_server
from parley_client.errors import ToolDefinitionError, UsageError
from parley_testing.from_call import write_scenario
from parley_testing.modes import needs_speech
from parley_testing.persona import ChatClient
from parley_testing.results import Attempt, print_results, write_html, write_junit
from parley_testing.runner import RunPlan, Speak, run_scenarios
from parley_testing.scenario import MOST_LOSS, Background, Scenario, ScenarioError
from parley_testing.scenario_file import load_scenarios
from parley_testing.sounds import LOOPS
from parley_testing.voices import Cast, LineCache, cast_of, speak_all

HELP = "run the scenarios of an agent, as text or as speech, and check what it does"
EXAMPLES = """\
  parley test agents/restaurant.toml               the scenarios in agents/restaurant.tests.toml, as text
  parley test agents/*.toml --repeat 5 --pass-rate 0.8 --junit out/junit.xml --html out/report.html
                                                   five calls of each, of which four have to pass, for CI
  parley test restaurant/restaurant.py             an agent in Python, with its functions
  parley test agents/restaurant.toml --speech --telephone --noise street:15 --loss 3
                                                   as speech, over a bad line
  parley test agents/restaurant.toml --server 127.0.0.1:8001 --scenario parking --show
                                                   one scenario with a running server, in detail
  parley test --from-call 20260504-120000-0f3a9c2b7e0d4411 >> agents/restaurant.tests.toml
                                                   a recorded call becomes a scenario"""
_EPILOG = """\
Scenarios are in NAME.tests.toml beside NAME.toml or NAME.py, or in files of the folder NAME.tests;
clients/parley_testing/README.md describes them. Personas and judges are models behind OpenAI's
chat completions; the variables PARLEY_PERSONA_KEY and PARLEY_JUDGE_KEY have their keys.

exit status: 0 every scenario passed as often as --pass-rate asks, 1 one did not, 2 wrong usage or scenario"""
_PARALLEL = 4
_TESTS = ".tests.toml"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    parser.epilog = _EPILOG
    add = parser.add_argument
    add(
        "agents", nargs="*", type=Path, metavar="AGENT", help="files of agents: TOML in one folder, or Python"
    )
    add("--scenarios", type=Path, nargs="+", metavar="PATH", help="other files or folders of scenarios")
    add(
        "--scenario",
        action="append",
        default=[],
        metavar="TEXT",
        help="only those with TEXT in title or tags",
    )
    add("--list", action="store_true", help="print the scenarios and stop")
    add("--from-call", metavar="ID|FOLDER", help="print a scenario of a recorded call and stop")
    add(
        "--calls",
        type=Path,
        default=own_calls(),
        metavar="FOLDER",
        help="of recorded calls (default: that of `parley calls`)",
    )
    add("--repeat", type=_positive, default=1, metavar="N", help="calls of each scenario (default: 1)")
    add(
        "--pass-rate",
        type=within(0.0, 1.0),
        default=1.0,
        metavar="X",
        help="share of the calls of each scenario that has to pass, 0-1 (default: 1)",
    )
    add(
        "--parallel",
        type=_positive,
        metavar="N",
        help="calls at once (default: 4 as text, if it starts a server)",
    )
    add("--junit", type=Path, metavar="FILE.xml", help="write a report for CI")
    add("--html", type=Path, metavar="FILE.html", help="write a report with all transcripts")
    add("--show", action="store_true", help="print what happens in every call")
    server = parser.add_argument_group("server")
    server.add_argument(
        "--server",
        type=address,
        metavar="HOST:PORT",
        help="a running one that has the agents (default: starts one)",
    )
    add_profile(server, "of the server that is started, and of the callers")
    _add_speech(parser)
    for role, what in (("persona", "callers of scenarios with a persona"), ("judge", "criteria of `judge`")):
        group = parser.add_argument_group(f"model of {what}")
        group.add_argument(f"--{role}-url", metavar="URL", help="such as https://api.example.com/v1")
        group.add_argument(f"--{role}-model", metavar="NAME", help="its name there")


def _add_speech(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("as speech")
    group.add_argument(
        "--speech", action="store_true", help="callers speak, in real time (default: they type)"
    )
    group.add_argument(
        "--voice", action="append", default=[], metavar="NAME", help="of the callers, in turn; repeatable"
    )
    group.add_argument(
        "--noise", type=_noise, metavar="SOUND:DB", help="behind the callers, and how far below"
    )
    group.add_argument("--telephone", action="store_true", help="G.711 at 8 kHz")
    group.add_argument(
        "--loss",
        type=within(0.0, 100 * MOST_LOSS),
        default=0.0,
        metavar="PERCENT",
        help="packets that are lost",
    )


def run(args: argparse.Namespace, console: Console) -> int:
    """Run the scenarios.

    Raises:
        UsageError: an agent, a scenario, a report's path or an option cannot be used.
        ParleyError: the server cannot start.
    """
    try:
        if args.from_call:
            print(write_scenario(args.from_call, args.calls), end="")
            return 0
        return _run(args, console)
    except (ScenarioError, AgentFileError, ToolDefinitionError) as error:
        raise UsageError(str(error)) from error


def _run(args: argparse.Namespace, console: Console) -> int:
    if not args.agents:
        raise UsageError("name the file of an agent, or a recorded call with --from-call")
    if not args.speech and (args.voice or args.noise or args.telephone or args.loss):
        raise UsageError("--voice, --noise, --telephone and --loss need --speech")
    # A pattern such as agents/*.toml matches the scenarios, too.
    args.agents = list(dict.fromkeys(map(_agent_file, args.agents)))
    programs = {path: load_agent(path) for path in args.agents if path.suffix == ".py"}
    if programs and len(programs) < len(args.agents):
        raise UsageError("agents in Python and in TOML are tested one after the other")
    for _, loaded in programs.values():
        check_agent(loaded)
    names = {path: loaded.name for path, (_, loaded) in programs.items()}
    scenarios = [one for path in args.agents for one in _scenarios_of(path, args, names.get(path))]
    scenarios = _chosen(scenarios, args.scenario)
    if args.list:
        for one in scenarios:
            console.print(f"{one.start.agent}: {one.title}", markup=False, highlight=False)
        return 0
    args.skipped = [] if args.speech else _unfit_for_text(scenarios)
    scenarios = [one for one in scenarios if one not in args.skipped]
    for path in filter(None, (args.junit, args.html)):
        _check_report(path)
    return _test(args, console, scenarios, list(programs.values()))


def _agent_file(path: Path) -> Path:
    """The file of the agent that a file, or a file of scenarios, belongs to."""
    if not path.name.endswith(_TESTS):
        return path
    in_toml, in_python = (path.with_name(path.name.removesuffix(_TESTS) + end) for end in (".toml", ".py"))
    return in_python if in_python.exists() and not in_toml.exists() else in_toml


def _unfit_for_text(scenarios: list[Scenario]) -> list[Scenario]:
    """Those of which nothing is left to check as text.

    Raises:
        ScenarioError: all are such.
    """
    found = [one for one in scenarios if needs_speech(one)]
    if len(found) == len(scenarios):
        raise ScenarioError("as text there is nothing to check: all of these scenarios need --speech")
    return found


def _check_report(path: Path) -> None:
    """Raise UsageError for a report that cannot be written, before there is one."""
    try:
        is_new = not path.exists()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("ab").close()
        if is_new:
            path.unlink()
    except OSError as error:
        raise UsageError(f"{path}: the report cannot be written: {error.strerror}") from error


def _scenarios_of(path: Path, args: argparse.Namespace, name: str | None) -> list[Scenario]:
    """The scenarios of an agent, for sessions with it; ``name``: of one in Python.

    Raises:
        AgentFileError: the file does not define an agent.
        ScenarioError: there are no scenarios, or one is not valid.
    """
    name = name or read_agent(path).name
    beside = [path.with_suffix(_TESTS), path.with_suffix(".tests")]
    paths = args.scenarios or [one for one in beside if one.exists()]
    if not paths:
        raise ScenarioError(f"{path}: no scenarios: write {beside[0]}, or name others with --scenarios")
    return [
        replace(one, start=msgspec.structs.replace(one.start, agent=name))
        for one in load_scenarios(paths, own_agent=True)
    ]


def _chosen(scenarios: list[Scenario], wanted: list[str]) -> list[Scenario]:
    chosen = [
        one
        for one in scenarios
        if not wanted or any(text.casefold() in one.title.casefold() or text in one.tags for text in wanted)
    ]
    if not chosen:
        raise ScenarioError(f"no scenario has {' or '.join(wanted)} in its title or tags")
    return chosen


def _test(
    args: argparse.Namespace, console: Console, scenarios: list[Scenario], programs: list[AgentInPython]
) -> int:
    folders = {path.resolve().parent for path in args.agents}
    if programs:
        folders = {folder_of(args.server) if args.server else own_folder("test")}
    if args.server is None and len(folders) > 1:
        raise UsageError("agents of several folders need --server")
    has_persona = any(one.persona for one in scenarios)
    has_judge = any(one.expect.judge for one in scenarios)
    persona = _chat_client(args, "persona", "persona") if has_persona else None
    judged_by = "judge" if args.judge_url else "persona"
    judge = _chat_client(args, "judge", judged_by) if has_judge else None
    profile = args.profile or default_profile()
    changes = {"background": args.noise, "telephone": args.telephone, "loss": args.loss / 100}
    replaceable = {"PARLEY_VOICE_AGENT_REPLACEABLE_TOOLS": "true"}
    environment = {**UNLIMITED, **replaceable, FOLDER_VARIABLE: str(min(folders))}
    if args.server is None:
        for running in (note.endpoint("grpc") for _, note in running_servers(NOTES)):
            print_warning(
                f"a server runs here already, at {running}; another one is started for the tests",
                f"Test with it by --server {running}, or end it.",
            )
    with running_server(
        args.server, console, "test", profile=profile, environment=environment, is_brief=True
    ) as server:
        plan = RunPlan(
            scenarios,
            repeat=args.repeat,
            # A running server may accept few calls, and calls in real time need their time.
            parallel=args.parallel or (1 if args.speech or args.server else _PARALLEL),
            speak=_speak(cast_of(profile)) if args.speech else None,
            voices=args.voice,
            changes={name: value for name, value in changes.items() if value},
            persona=persona,
            judge=judge,
        )
        place = ServingPlace(server, min(folders))
        return run_to_end(_serve_and_run(args, console, place, plan, programs))


async def _serve_and_run(
    args: argparse.Namespace,
    console: Console,
    place: ServingPlace,
    plan: RunPlan,
    programs: list[AgentInPython],
) -> int:
    """Run the scenarios while the agents in Python are served."""
    calls = Console(quiet=not args.show, stderr=True)
    async with AsyncExitStack() as stack:
        for program, loaded in programs:
            try:
                await stack.enter_async_context(serving_agent(program, loaded, place, calls))
            except AlreadyServedError:  # by `parley run`: the server's agent is tested as it is
                from parley_client.cli.own_agent import is_definition_of  # noqa: PLC0415 - an optional extra

                if not is_definition_of(loaded, place.folder / f"{loaded.name}.toml"):
                    other = f"another definition of the agent {loaded.name} than {program.path} has is served"
                    print_warning(f"{other}, and is tested", "End its `parley run`, or start it again.")
        return await _run_plan(args, console, place.server, plan)


async def _run_plan(args: argparse.Namespace, console: Console, server: str, plan: RunPlan) -> int:
    def show(attempt: Attempt) -> None:
        state = "failed" if attempt.problems else "passed"
        line = f"  {attempt.log.scenario.title}: {state} ({attempt.log.ended_s:.1f} s)"
        console.print(line, style="dim", markup=False, highlight=False)
        if args.show:
            console.print(attempt.transcript, markup=False, highlight=False, soft_wrap=True)

    try:
        results = await run_scenarios(server, plan, show)
    finally:
        for client in (plan.persona, plan.judge):
            if client is not None:
                await client.close()
    print_results(console, results, args.pass_rate, args.skipped)
    if args.junit:
        write_junit(args.junit, results, args.skipped)
    if args.html:
        title = f"Tests of {', '.join(path.stem for path in args.agents)}"
        write_html(args.html, title, results, args.skipped)
    return 0 if all(result.rate >= args.pass_rate for result in results) else 1


def _chat_client(args: argparse.Namespace, role: str, named: str) -> ChatClient:
    """The model of a role, by the options of ``named``.

    Raises:
        UsageError: it is not named.
    """
    from parley.engines.openai_chat import OpenAiChatModel  # noqa: PLC0415 - needs an optional extra

    url, model = getattr(args, f"{named}_url"), getattr(args, f"{named}_model")
    if not url or not model:
        raise UsageError(f"a scenario has a {role}: name its model with --{role}-url and --{role}-model")
    key = os.environ.get(f"PARLEY_{named.upper()}_KEY", "")
    try:
        return ChatClient(OpenAiChatModel(RemoteChat(url, model, key)))
    except ModelLoadingError as error:
        raise UsageError(f"--{named}-url {url}: http:// or https:// is expected") from error


def _speak(cast: Cast) -> Speak:
    return LineCache(cast).speak if cast.weights else partial(speak_all, cast=cast)


def _positive(text: str) -> int:
    if (number := count(text)) < 1:
        raise argparse.ArgumentTypeError("at least 1 expected")
    return number


def _noise(text: str) -> Background:
    sound, _, level = text.partition(":")
    try:
        background = Background(sound, float(level or Background(sound).snr_db))
    except ValueError:
        background = Background("")
    if background.sound not in LOOPS:
        raise argparse.ArgumentTypeError(
            f"SOUND:DB expected, with one of {', '.join(sorted(LOOPS))}, not {text!r}"
        )
    return background
