"""The command line of ``make bench-stages``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from harness.program import run_program
from harness.recordings import RecordingError
from harness.report import describe_machine, describe_run, write_html, write_json
from harness.servers import local_gateway
from rich.console import Console

from parley.engines.registry import RECOGNIZERS
from parley.launcher import DEFAULT_PROFILE, EmbeddedServer
from parley_client.cli.arguments import run_to_end
from parley_client.cli.own_server import UNLIMITED, add_profile, own_server
from parley_stages.transcription import TRANSCRIBERS
from stages.drivers import DRIVERS, EndpointSpec, parse_endpoint
from stages.material import Material, load_material
from stages.protocols import EndpointError, Level, Stage
from stages.results import LevelResult, load_table, notes, published_table, stage_tables
from stages.runner import Runner
from stages.turns import Patience, Turn

_STAGES = {stage.value.replace(" ", "-"): stage for stage in Stage}
_MOST = 10_000
_EXAMPLES = """\
  make bench-stages                          a server and a gateway of one's own, everything
  make bench-stages ARGS="--only recognizer --profile tiny"
  make bench-stages ARGS="--no-own --endpoint openai-chat,model=gpt-4o-mini,key=OPENAI_API_KEY
      --endpoint deepgram-recognizer,model=nova-3,key=DEEPGRAM_API_KEY --html out/hosted.html\""""


def own_endpoints(models: Sequence[str], server: str, page: str) -> list[str]:
    """What is measured of a Parley of one's own, as it would be written on the command line."""
    grpc, http, deepgram = f"url={server}", f"url={page}/v1", f"url={page}"
    return [
        *(
            f"parley-recognizer,{grpc},model={name},name={name} by gRPC{also}"
            for name in RECOGNIZERS
            if name in models
            for also in ("", " without partials,finals=yes")
        ),
        *(
            f"parley-recording,{grpc},model={name},name={name} by gRPC"
            for name in TRANSCRIBERS
            if name in models
        ),
        f"openai-realtime-recognizer,{http},turn_detection=server_vad,name=gateway: OpenAI Realtime",
        f"openai-recording,{http},name=gateway: OpenAI transcriptions",
        f"deepgram-recognizer,{deepgram},name=gateway: Deepgram listen",
        f"parley-llm,{grpc},name=language model by gRPC",
        f"openai-chat,{http},name=gateway: OpenAI chat",
        f"parley-voice,{grpc},name=synthesizer by gRPC",
        f"openai-speech,{http},name=gateway: OpenAI speech",
        f"deepgram-speech,{deepgram},name=gateway: Deepgram speak",
        f"parley-call,{grpc},name=voice_agent by gRPC",
        f"openai-realtime,{http},name=gateway: OpenAI Realtime",
    ]


@dataclass(frozen=True)
class _Targets:
    """What is measured, and how busy the server behind it is."""

    endpoints: Sequence[EndpointSpec]
    server_cpu_s: Callable[[], float | None]


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The arguments."""
    drivers = "\n".join(f"  {name:27} {driver.what}" for name, driver in DRIVERS.items())
    parser = argparse.ArgumentParser(
        description="Measure recognisers, language models, voices and whole calls of any stack alike.",
        epilog=f"drivers:\n{drivers}\n\nexamples:\n{_EXAMPLES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--endpoint",
        action="append",
        default=[],
        type=_endpoint,
        metavar="DRIVER[,option=value]...",
        help="measure this, too; options are url, key (a variable's name), model, voice, name; repeatable",
    )
    parser.add_argument(
        "--no-own",
        action="store_true",
        help="start no server: measure what --endpoint names, and nothing else",
    )
    add_profile(parser, "of the own server (default: %(default)s)", DEFAULT_PROFILE)
    parser.add_argument(
        "--only",
        action="append",
        choices=_STAGES,
        default=[],
        help="measure this stage; repeatable (default: all)",
    )
    parser.add_argument(
        "--match", action="append", default=[], metavar="TEXT", help="only endpoints with this in their name"
    )
    parser.add_argument(
        "--concurrency",
        type=_levels,
        default=[1, 4, 16],
        metavar="N,N,...",
        help="streams, requests or calls at once (default: 1,4,16)",
    )
    parser.add_argument(
        "--turns",
        type=_whole,
        default=24,
        help="of each endpoint and level, 3 at least of each stream (default: %(default)s; p99 needs 100)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every value")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a report that can be handed on")
    args = parser.parse_args(argv)
    if args.no_own and not args.endpoint:
        parser.error("--no-own needs an --endpoint")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Measure; the exit status is 1 if something could not be measured at all."""
    args = parse(argv)
    failures = (EndpointError, RecordingError, OSError)
    return run_program("bench-stages", lambda console: _bench(args, console), *failures)


def _bench(args: argparse.Namespace, console: Console) -> int:
    run = describe_run(["-m", "perf", "bench-stages", *sys.argv[1:]])
    with _targets(args, console) as targets:
        material = load_material(args.profile)
        console.print(f"Recognisers hear {material.about}.", highlight=False)
        results: list[LevelResult] = []
        try:
            run_to_end(_measure(args, console, targets, material, results))
        finally:
            _report(args, console, {**describe_machine(), **run, "spoken": material.about}, results)
    return 1 if any(not one.figure_names() for one in results) else 0


@contextmanager
def _targets(args: argparse.Namespace, console: Console) -> Iterator[_Targets]:
    """The endpoints that are wanted; starts the own server and its gateway."""
    if args.no_own:
        yield _Targets(_wanted(args, args.endpoint), lambda: None)
        return
    with (
        own_server(console, "bench-stages", profile=args.profile, environment=UNLIMITED) as server,
        local_gateway(server.endpoints.grpc) as gateway,
    ):
        own = map(parse_endpoint, own_endpoints(server.models, server.endpoints.grpc, gateway.url))
        cpu_s = partial(_cpu_s, server)
        yield _Targets(_wanted(args, [*own, *args.endpoint]), cpu_s)


def _wanted(args: argparse.Namespace, endpoints: Sequence[EndpointSpec]) -> list[EndpointSpec]:
    """Raises EndpointError: none is left."""
    stages = {_STAGES[name] for name in args.only} or set(Stage)
    found = [
        one
        for one in endpoints
        if one.driver.stage in stages and (not args.match or any(text in one.name for text in args.match))
    ]
    if not found:
        raise EndpointError("no endpoint has this stage and name")
    return found


def _cpu_s(server: EmbeddedServer) -> float:
    return sum(process.cpu_s for process in server.usage())


async def _measure(
    args: argparse.Namespace,
    console: Console,
    targets: _Targets,
    material: Material,
    results: list[LevelResult],
) -> int:
    """Measure endpoint by endpoint; what is finished is in ``results`` even where the rest is not."""
    runner = Runner(material, Patience(), targets.server_cpu_s)
    for spec in targets.endpoints:
        stage = spec.driver.stage
        console.print(f"{stage.value}: {spec.name}", markup=False, highlight=False)
        waiting = list(args.concurrency)
        try:
            async with spec.driver.open(spec.options) as endpoint:
                await runner.run(spec.name, stage, endpoint, Level(1, 1))  # what only the first turns pay
                while waiting:
                    level = Level(waiting[0], args.turns)
                    results.append(await runner.run(spec.name, stage, endpoint, level))
                    waiting.pop(0)
                    _print_progress(console, results[-1])
        except EndpointError as error:
            console.print(f"  {error}", style="red", markup=False)
            lost = [Turn(failure=str(error))]
            results += [LevelResult(spec.name, stage, concurrency, lost, 0.0) for concurrency in waiting]
    return 0


def _print_progress(console: Console, level: LevelResult) -> None:
    turns = f"{len(level.turns)} turns in {level.wall_s:.0f} s, {level.failures.total()} failed"
    console.print(f"  {level.concurrency} at once: {turns}", style="dim", highlight=False)


def _report(
    args: argparse.Namespace, console: Console, machine: dict[str, str], results: Sequence[LevelResult]
) -> None:
    """Print and write what was measured."""
    if not results:
        return
    tables = [*stage_tables(results), load_table(results), published_table({one.stage for one in results})]
    remarks = notes(results)
    for table in tables:
        table.print(console)
    for line in [*(f"{name}: {value}" for name, value in machine.items()), *remarks]:
        console.print(line, style="dim", markup=False, highlight=False)
    if args.json:
        measured = [one.summary() for one in results]
        write_json(args.json, {"machine": machine, "notes": remarks, "levels": measured})
        console.print(f"All figures: {args.json}", highlight=False)
    if args.html:
        title = "Stages and calls, measured"
        write_html(args.html, title, about=machine, tables=tables, notes=remarks)
        console.print(f"The report: {args.html}", highlight=False)


def _endpoint(written: str) -> EndpointSpec:
    try:
        return parse_endpoint(written)
    except EndpointError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _levels(written: str) -> list[int]:
    return [_whole(part) for part in written.split(",")]


def _whole(written: str) -> int:
    if not written.isdecimal() or not 0 < int(written) <= _MOST:
        raise argparse.ArgumentTypeError(f"a number from 1 to {_MOST} expected, not {written!r}")
    return int(written)
