"""``parley gateway``: every protocol that clients speak, translated to the one of the server."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import logging
import os
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from parley_client.cli.advice import advice_on_waiting
from parley_client.cli.arguments import address
from parley_client.cli.commands import gateway_keys
from parley_client.cli.output import discard_output, print_warning
from parley_client.errors import OutputClosedError, UsageError

if TYPE_CHECKING:
    from parley_gateway.app import Api
    from parley_gateway.serving import Running
    from parley_gateway.settings import Settings
    from parley_gateway.settings_sections import ListenSettings

EXAMPLES = """\
  parley gateway                                  a page and every protocol at http://127.0.0.1:8080/
  parley gateway --listen 9000 --server 10.0.0.5:8001,10.0.0.6:8001
                                                  another port, in front of two servers
  parley gateway --config sip.toml sip           telephone calls by SIP
  parley gateway keys new --name kiosk >> keys.toml
  PARLEY_GATEWAY_SECURITY_KEYS_FILE=keys.toml parley gateway
                                                  only for those who have a key"""
HELP = "let browsers, OpenAI clients and others in, by their own protocols"
_HEALTH_S = 4.0
_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - not to listen there
_NEEDS = (
    "parley gateway needs the packages of the extra “gateway”; install them in the checkout with: "
    "pip install ./clients/parley-client '.[gateway]'"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments; the environment and a file have the rest."""
    parser.add_argument(
        "--listen",
        type=_listen,
        metavar="[HOST:]PORT",
        help="where to listen; 0: any free port (default: 127.0.0.1:8080)",
    )
    parser.add_argument(
        "--server",
        dest="servers",
        type=_servers,
        metavar="HOST:PORT[,...]",
        help="Triton's gRPC endpoints; dns://NAME:PORT: all addresses of a name (default: 127.0.0.1:8001)",
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="settings in TOML (docs/settings.md lists them)"
    )
    parser.add_argument("--certificate", metavar="FILE", help="PEM: serve HTTPS, TLS 1.3 only")
    parser.add_argument("--key", metavar="FILE", help="PEM: the certificate's private key")
    parser.set_defaults(action=None)
    actions = parser.add_subparsers(
        dest="action", metavar="[keys|health|sip]", help="instead of running one:"
    )
    gateway_keys.add_arguments(actions.add_parser("keys", help="make, list and revoke API keys"))
    actions.add_parser("health", help="whether the gateway of these settings takes calls: a health check")
    actions.add_parser("sip", help="take telephone calls by SIP, and no others (the settings [sip])")
    parser.add_argument("--log-level", choices=["debug", "info", "warning", "error"], default="info")


def run(args: argparse.Namespace, console: Console) -> int:
    """Listen until a signal ends it.

    Raises:
        SettingsError: the settings cannot be used.
        UsageError: the gateway is not installed.
    """
    if importlib.util.find_spec("fastapi") is None:
        raise UsageError(_NEEDS)
    if args.action == "keys":
        return gateway_keys.run(args, console, lambda: _settings(args).security.keys_file)
    if args.action == "health":
        return _ask_health(_settings(args).listen)
    from parley_gateway.app import create_app  # noqa: PLC0415 - an optional extra
    from parley_gateway.logs import log_to_stderr  # noqa: PLC0415
    from parley_gateway.serving import serve  # noqa: PLC0415

    settings, is_sip = _settings(args), args.action == "sip"
    if is_sip and not settings.sip.listen:
        raise UsageError("sip.listen is empty: name the address for telephones, such as sip:10.0.0.5:5060")

    def announce(one: Running) -> None:
        try:
            _announce(one, settings, console, settings.sip.listen if is_sip else f"{one.url}/")
        except (OSError, OutputClosedError) as error:  # calls need no output
            discard_output()
            logging.getLogger("parley.gateway").warning("where it listens cannot be written: %s", error)

    level = logging.getLevelName(args.log_level.upper())
    with log_to_stderr(settings.security.audit_file, level, settings.log.format):
        app = create_app(settings, apis=_sip_apis()) if is_sip else None
        asyncio.run(serve(settings, announce, app=app))
    return 0


def _sip_apis() -> tuple[Api, ...]:
    from parley_gateway.sip.routes import APIS  # noqa: PLC0415 - other gateways do not need it

    return APIS


def _announce(one: Running, settings: Settings, console: Console, url: str) -> None:
    """Print where the gateway listens, for people and for programs, and which servers it lacks."""
    for source, problem in one.gateway.servers.discovery_problems.items():
        if problem:
            print_warning(f"{source} has no server yet: {problem}", "calls are refused until it has one")
    for server in one.gateway.servers.all:
        if not server.is_ready:
            what, until = (
                (f"the server at {server.address} is not ready", "it is")
                if server.is_connected
                else (f"nothing answers at {server.address}", "a server does")
            )
            print_warning(
                f"{what}: calls are refused until {until}",
                advice_on_waiting(server.address, server.problem, is_connected=server.is_connected),
            )
    console.print(f"Talk to the agent at [bold]{url}[/] (Ctrl-C ends it).")
    health = f" health={one.health_url}" if one.health_url else ""
    metrics = f" metrics={one.metrics_url}" if one.metrics_url else ""
    servers = settings.servers.file or ",".join(settings.servers.addresses)
    print(f"ready http={one.url}{health}{metrics} servers={servers}", flush=True)


def _settings(args: argparse.Namespace) -> Settings:
    from parley_gateway.settings import CONFIG_VARIABLE, load_settings  # noqa: PLC0415 - an optional extra

    named = os.environ.get(CONFIG_VARIABLE)
    file = args.config or (Path(named) if named else None)
    return load_settings(file, os.environ, _flags(args))


def _flags(args: argparse.Namespace) -> Mapping[str, Mapping[str, Any]]:
    host, port = args.listen or (None, None)
    return {
        "listen": {"host": host, "port": port, "certificate": args.certificate, "key": args.key},
        "servers": {"addresses": args.servers},
    }


def _listen(text: str) -> tuple[str | None, int]:
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) >= 65_536:
        raise argparse.ArgumentTypeError(f"[HOST:]PORT expected, for example 127.0.0.1:8080, not {text!r}")
    return host.strip("[]") or None, int(port)


def _servers(text: str) -> list[str]:
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        address(part.removeprefix("dns://"))
    return parts


def _ask_health(listen: ListenSettings) -> int:
    """Ask ``/readyz`` of the gateway on this machine; 0: it takes calls, 1: it does not, and says why.

    Raises:
        UsageError: the settings leave the port to the system.
    """
    port = listen.port if listen.health_port is None else listen.health_port
    if port == 0:
        raise UsageError("listen.health_port is 0, any free port: name one")
    host = _LOOPBACK.get(listen.host, listen.host)
    scheme = "https" if listen.certificate else "http"
    url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}/readyz"
    try:
        with urllib.request.urlopen(url, timeout=_HEALTH_S, context=_context()):  # noqa: S310 - its scheme is ours
            return 0
    except urllib.error.HTTPError as error:
        print(error.read().decode(errors="replace"), file=sys.stderr)
    except OSError as error:
        reason = getattr(error, "reason", error)
        print(f"error: no gateway answers at {url} ({reason}); start one: parley gateway", file=sys.stderr)
    return 1


def _context() -> ssl.SSLContext:
    """The certificate is of the name that clients use, and this is the same machine."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
