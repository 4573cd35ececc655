"""One kind of services under rising load, in a process of its own; prints one line of JSON per level.

The exit status is 1 where a load gave no figures.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# The packages of the frameworks that the serving environment lacks; what both have is the serving one's.
_FRAMEWORKS = next((ROOT / ".venv-frameworks" / "lib").glob("python*/site-packages"))
sys.path[:0] = [
    str(ROOT / "perf"),
    str(ROOT / "tests" / "frameworks"),
    str(ROOT / "clients" / "pipecat-parley" / "src"),
]
sys.path.append(str(_FRAMEWORKS))

from loguru import logger  # noqa: E402
from pipecat_parley import ParleyLLMService, ParleySTTService, ParleyTTSService  # noqa: E402
from pipecat_parley.stt import CHUNK_MS  # noqa: E402

from frameworks.sessions import PROMPT, NothingMeasuredError, Services, run_level  # noqa: E402


def remote(server: str, *, interim: bool, chunk_ms: int) -> Callable[[], Services]:
    """Services of a Parley server."""
    settings = ParleyLLMService.Settings(system_instruction=PROMPT)
    texts = ParleySTTService.Settings(partial_interval_ms=240 if interim else 0)
    return lambda: (
        ParleySTTService(server=server, settings=texts, chunk_ms=chunk_ms),
        ParleyLLMService(server=server, settings=settings),
        ParleyTTSService(server=server),
    )


def local() -> Callable[[], Services]:
    """Services with the models in this process."""
    from frameworks.local_services import (  # noqa: PLC0415 - loads vLLM
        LocalLLMService,
        LocalSTTService,
        LocalTTSService,
        open_chat,
        open_synthesizer,
    )

    chat, synthesizer = open_chat(), open_synthesizer()
    return lambda: (
        LocalSTTService(),
        LocalLLMService(chat, system_instruction=PROMPT),
        LocalTTSService(synthesizer),
    )


async def _main(args: argparse.Namespace) -> None:
    server = args.server
    make = remote(server, interim=args.interim, chunk_ms=args.chunk_ms) if server else local()
    await run_level(make, 1, 2)  # what only the first call pays for
    for sessions in args.sessions:
        waits = await run_level(make, sessions, max(args.turns, -(-args.fewest // sessions)))
        print(json.dumps({"sessions": sessions, **waits.as_json()}), flush=True)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", default="", help="of Parley; without: the models in this process")
    parser.add_argument("--interim", action="store_true", help="with interim texts, as it is by default")
    parser.add_argument(
        "--chunk-ms", type=int, default=CHUNK_MS, help="of audio in a request to the server's recogniser"
    )
    parser.add_argument("--sessions", type=lambda text: [int(part) for part in text.split(",")])
    parser.add_argument("--turns", type=int, help="of each session at least")
    parser.add_argument(
        "--fewest",
        type=int,
        default=8,
        help="turns of all sessions at least, so that a percentile says something",
    )
    logger.remove()
    logger.add(sys.stderr, level="ERROR")
    try:
        asyncio.run(_main(parser.parse_args()))
    except NothingMeasuredError as error:
        sys.exit(f"frameworks: {error}")


if __name__ == "__main__":
    main()
