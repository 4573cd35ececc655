"""The command."""

from __future__ import annotations

import argparse
import dataclasses
import os
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import msgspec
from harness.program import run_program
from harness.report import describe_processor, make_table, write_json
from rich.console import Console
from tritonclient.grpc import InferenceServerClient
from tritonclient.utils import InferenceServerException

from parley.launcher import ServerOptions
from parley.launcher.models import leave_out_absent, model_folders, model_names
from parley.launcher.options import TINY_PROFILE
from parley_client.cli.own_server import add_profile, running_server
from parley_client.errors import ClientError
from perf_analyzer.export import Figures, RunFailedError, Runner, provide_program
from perf_analyzer.inputs import REPOSITORY, drive_of

_LEVELS = "1,4,16"
_LIMIT_S = 300.0
"""Of one run."""
_HEAD = ("at once", "requests", "per second", "p50", "p95", "p99", "first p50", "first p95")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure; the exit status is 1 if a run failed, and 2 for wrong usage."""
    args = _arguments(argv)
    failures = (RunFailedError, OSError, ValueError)
    return run_program("perf-analyzer", lambda console: _measure(args, console), *failures)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    models = sorted(path.parent.name for path in REPOSITORY.glob("*/config.pbtxt"))
    parser = argparse.ArgumentParser(
        prog="perf-analyzer", description="Drive the models with Triton's perf_analyzer."
    )
    add = parser.add_argument
    add("models", nargs="*", metavar="MODEL", help=f"of {', '.join(models)} (default: all that are served)")
    add_profile(parser, "default: %(default)s", TINY_PROFILE)
    add("--server", metavar="HOST:PORT", help="gRPC address of a running server (default: one is started)")
    add(
        "--concurrency",
        type=_levels,
        default=_levels(_LEVELS),
        metavar="N,...",
        help=f"requests or sequences at once (default: {_LEVELS})",
    )
    add("--scale", type=float, default=1.0, help="of the number of requests (default: %(default)s)")
    add("--json", type=Path, metavar="FILE", help="write every figure to FILE")
    args = parser.parse_args(argv)
    if unknown := set(args.models) - set(models):
        parser.error(f"there is no model {', '.join(sorted(unknown))}; there are {', '.join(models)}")
    args.models = args.models or models
    return args


def _levels(text: str) -> list[int]:
    levels = [int(part) for part in text.split(",")]
    if min(levels) < 1:
        raise ValueError(text)
    return levels


def _measure(args: argparse.Namespace, console: Console) -> int:
    measured: list[tuple[str, int, Figures]] = []
    failed: list[str] = []
    provide_program()
    options = _options(args)
    with (
        tempfile.TemporaryDirectory(prefix="perf-analyzer-") as folder,
        running_server(
            args.server,
            console,
            "perf-analyzer",
            profile=options.profile,
            environment=options.environment,
            load_models=options.load_models,
        ) as address,
    ):
        runner = Runner(address, Path(folder), limit_s=_LIMIT_S)
        for model in _served(address, args.models):
            if (drive := drive_of(model, args.profile)) is None:
                console.print(f"{model}: no requests follow from its configuration")
                continue
            for concurrency in args.concurrency:
                name = f"{model}, {concurrency} at once"
                try:
                    figures = runner.run(model, drive, concurrency, args.scale)
                except RunFailedError as error:
                    failed.append(f"{name}: {error}")
                    console.print(failed[-1], style="red", markup=False)
                else:
                    measured.append((model, concurrency, figures))
                    console.print(f"{name}: {figures.per_second:.1f} per second", style="dim")
    _report(args, console, measured, failed)
    return 1 if failed or not measured else 0


def _options(args: argparse.Namespace) -> ServerOptions:
    """Those of the server, which loads some models only where they are named."""
    options = ServerOptions(profile=args.profile)
    _, absent = leave_out_absent(options, os.environ)
    usual = {folder.name for folder in model_folders(options)}
    extra = [name for name in model_names(options) if name not in usual and name in args.models]
    models = tuple(name for name in (*sorted(usual), *extra) if name not in absent)
    return dataclasses.replace(options, load_models=models) if extra else options


def _served(address: str, models: Collection[str]) -> list[str]:
    """The models that the server has ready.

    Raises:
        ClientError: it does not answer.
    """
    client = InferenceServerClient(address)
    try:
        return [model for model in models if client.is_model_ready(model)]
    except InferenceServerException as error:
        raise ClientError(f"the server at {address} does not answer: {error}") from error
    finally:
        client.close()


def _report(
    args: argparse.Namespace,
    console: Console,
    measured: Sequence[tuple[str, int, Figures]],
    failed: Sequence[str],
) -> None:
    """Print the table, and what is not in it; write every figure."""
    machine = describe_processor()
    table = make_table(f"perf_analyzer, profile {args.profile}, {machine}; times in ms", "model", *_HEAD)
    rows: list[dict[str, Any]] = []
    for model, concurrency, one in measured:
        times = (one.p50, one.p95, one.p99, one.first_p50, one.first_p95)
        cells = ("-" if time is None else f"{time:.1f}" for time in times)
        table.add_row(model, str(concurrency), str(one.requests), f"{one.per_second:.1f}", *cells)
        rows.append({"model": model, "concurrency": concurrency, **msgspec.structs.asdict(one)})
    left_out = sorted(set(args.models) - {model for model, _, _ in measured})
    console.print(table)
    console.print("What counts as first response: perf/README.md.")
    console.print(f"Not measured: {', '.join(left_out) or 'none'}", markup=False)
    if args.json:
        figures = {"machine": machine, "profile": args.profile, "measured": rows}
        write_json(args.json, {**figures, "failed": failed, "left_out": left_out})
