"""The work of ``parley test``."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from parley.agents.reader import AgentFileError, read_agent
from parley.engines.base import RemoteChat
from parley.errors import ModelLoadingError
from parley.launcher import ServerOptions, bring_weights
from parley_client.cli.arguments import run_to_end
from parley_client.cli.own_server import UNLIMITED, default_profile, running_server
from parley_client.errors import UsageError
from parley_testing.modes import Conditions
from parley_testing.persona import ChatClient
from parley_testing.results import Attempt, Result, print_results, write_html, write_junit
from parley_testing.runner import Plan, Speak, run_scenarios
from parley_testing.scenario import Scenario, ScenarioError
from parley_testing.scenario_file import load_scenarios
from parley_testing.voices import LineCache, cast_of, speak_all

_REPLACEABLE = "PARLEY_VOICE_AGENT_REPLACEABLE_TOOLS"


def run_tests(args: argparse.Namespace, console: Console) -> int:
    """Hold the scenarios of the command's arguments; the exit status.

    Raises:
        UsageError: an agent, a scenario or an option cannot be used.
        ParleyError: the server cannot start.
    """
    try:
        scenarios = [one for path in args.agents for one in _scenarios_of(path, args)]
        scenarios = _chosen(scenarios, args.scenario)
        if args.list:
            for one in scenarios:
                console.print(f"{one.start.agent}: {one.title}", markup=False, highlight=False)
            return 0
        return _test(args, console, scenarios)
    except (ScenarioError, AgentFileError) as error:
        raise UsageError(str(error)) from error


def _scenarios_of(path: Path, args: argparse.Namespace) -> list[Scenario]:
    """The scenarios of an agent, for sessions with it.

    Raises:
        AgentFileError: the file does not define an agent.
        ScenarioError: there are no scenarios, or one is not valid.
    """
    name = read_agent(path).name
    beside = [path.with_suffix(".tests.toml"), path.with_suffix(".tests")]
    paths = args.scenarios or [one for one in beside if one.exists()]
    if not paths:
        raise ScenarioError(f"{path}: no scenarios: write {beside[0]}, or name others with --scenarios")
    return [
        replace(one, start=msgspec.structs.replace(one.start, agent=name))
        for one in load_scenarios(paths, own_agent=True)
    ]


def _chosen(scenarios: list[Scenario], wanted: list[str]) -> list[Scenario]:
    if not wanted:
        return scenarios
    chosen = [
        one
        for one in scenarios
        if any(text.casefold() in one.title.casefold() or text in one.tags for text in wanted)
    ]
    if not chosen:
        raise ScenarioError(f"no scenario has {' or '.join(wanted)} in its title or tags")
    return chosen


def _test(args: argparse.Namespace, console: Console, scenarios: list[Scenario]) -> int:
    folders = {path.resolve().parent for path in args.agents}
    if args.server is None and len(folders) > 1:
        raise UsageError("agents of several folders need --server")
    clients = {
        role: _chat_client(args, role, needed)
        for role, needed in (
            ("persona", any(one.persona for one in scenarios)),
            ("judge", any(one.expect.criteria.judge for one in scenarios)),
        )
    }
    profile = args.profile or default_profile()
    plan = Plan(
        scenarios,
        repeat=args.repeat,
        parallel=args.parallel,
        speak=_speak(profile, args) if args.speech else None,
        conditions=Conditions(tuple(args.voice), args.noise, args.telephone, args.loss / 100),
        persona=clients["persona"],
        judge=clients["judge"],
    )
    environment = {**UNLIMITED, "PARLEY_VOICE_AGENT_AGENTS": str(min(folders)), _REPLACEABLE: "true"}
    options: dict[str, Any] = {"profile": profile, "environment": environment, "is_brief": True}
    with running_server(args.server, console, "test", **options) as server:
        return run_to_end(_hold(args, console, server, plan))


async def _hold(args: argparse.Namespace, console: Console, server: str, plan: Plan) -> int:
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
    _report(args, console, results)
    return 0 if all(result.rate >= args.pass_rate for result in results) else 1


def _report(args: argparse.Namespace, console: Console, results: list[Result]) -> None:
    print_results(console, results, args.pass_rate)
    if args.junit:
        write_junit(args.junit, results)
    if args.html:
        title = f"Tests of {', '.join(path.stem for path in args.agents)}"
        write_html(args.html, title, results)


def _chat_client(args: argparse.Namespace, role: str, needed: bool) -> ChatClient | None:
    """The model of a role; a judge that is not named is the model of the personas.

    Raises:
        UsageError: it is needed and not named.
    """
    if not needed:
        return None
    found = role if getattr(args, f"{role}_url") or role == "persona" else "persona"
    url, model = getattr(args, f"{found}_url"), getattr(args, f"{found}_model")
    if not url or not model:
        raise UsageError(f"a scenario has a {role}: name its model with --{role}-url and --{role}-model")
    key = os.environ.get(f"PARLEY_{found.upper()}_KEY", "")
    from parley.engines.openai_chat import OpenAiChatModel  # noqa: PLC0415 - needs an optional extra

    try:
        return ChatClient(OpenAiChatModel(RemoteChat(url, model, key)))
    except ModelLoadingError as error:
        raise UsageError(f"--{found}-url {url}: http:// or https:// is expected") from error


def _speak(profile: str, args: argparse.Namespace) -> Speak:
    """The callers' voices of a profile.

    Raises:
        ScenarioError: their weights are missing.
    """
    cast = cast_of(profile)
    if not cast.weights:
        return partial(speak_all, cast=cast)
    if args.server is None:
        bring_weights(ServerOptions(profile=profile))
    return LineCache(cast).speak
