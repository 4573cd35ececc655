"""Writes the Grafana dashboards in deploy/grafana; run it after changing one.

Each panel is a row of a table here. A test runs every expression against a Prometheus that has scraped a
server with calls.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from grafana_foundation_sdk.builders import common, prometheus, stat, timeseries
from grafana_foundation_sdk.builders.dashboard import Dashboard, DatasourceVariable
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as shown
from grafana_foundation_sdk.models.dashboard import DataSourceRef

FOLDER = Path(__file__).parents[1] / "deploy" / "grafana"
_SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
_RATE = "$__rate_interval"
_WIDTH, _HEIGHT = 8, 8
"""Of a graph, in Grafana's grid of 24 columns."""
_OF_OLDER_GRAFANA = ("auto", "auto_count", "auto_min", "id")
"""Fields of every variable that the builders write; Grafana has none of them any more, nor a ``style``."""
PanelT = TypeVar("PanelT", timeseries.Panel, stat.Panel)


@dataclass(frozen=True)
class Query:
    """An expression and the legend of its series."""

    expression: str
    legend: str = ""
    rare: bool = False
    """Whether there are series only on a machine with a GPU, or after an incident."""


@dataclass(frozen=True)
class Panel:
    """A graph, or a single number."""

    title: str
    queries: tuple[Query, ...]
    unit: str = "short"
    """Of Grafana: ``s``, ``bytes``, ``percentunit``, ``ops`` ..."""
    single: bool = False


@dataclass(frozen=True)
class Board:
    """A dashboard."""

    uid: str
    title: str
    panels: tuple[Panel, ...]


def _rate(counter: str, by: str = "") -> str:
    return f"sum{f' by ({by})' if by else ''} (rate({counter}[{_RATE}]))"


def _quantiles(histogram: str, by: str = "") -> tuple[Query, ...]:
    """p50, p95 and p99; with ``by`` p95 only, by that label."""
    if by:
        buckets = f"sum by (le, {by}) (rate({histogram}_bucket[{_RATE}]))"
        return (Query(f"histogram_quantile(0.95, {buckets})", f"p95 {{{{{by}}}}}"),)
    buckets = f"sum by (le) (rate({histogram}_bucket[{_RATE}]))"
    return tuple(Query(f"histogram_quantile({q}, {buckets})", f"p{int(q * 100)}") for q in (0.5, 0.95, 0.99))


def _by(title: str, counter: str, by: str, *, rare: bool = False) -> Panel:
    """A counter's rate by labels, whose values are the legend."""
    legend = ": ".join(f"{{{{{label}}}}}" for label in by.split(", "))
    return Panel(title, (Query(_rate(counter, by), legend, rare),), "ops")


def _ratio(part: str, whole: str) -> str:
    return f"{part} / {whole}"


_FILL = _ratio("sum(voice_agent_active_sessions)", "sum(voice_agent_sessions_limit)")

BOARDS = (
    Board(
        "parley-calls",
        "Parley: calls",
        (
            Panel("Open calls", (Query("sum(voice_agent_active_sessions)"),), single=True),
            Panel("Sessions in use", (Query(_FILL),), "percentunit", single=True),
            Panel(
                "Answered within the goal",
                (
                    Query(
                        "1 - "
                        + _ratio(
                            _rate("voice_agent_slow_answers_total"),
                            _rate("voice_agent_e2e_latency_seconds_count"),
                        )
                    ),
                ),
                "percentunit",
                single=True,
            ),
            Panel(
                "Open calls",
                (
                    Query("sum(voice_agent_active_sessions)", "open"),
                    Query("sum(voice_agent_sessions_limit)", "limit"),
                    Query("sum(voice_agent_draining)", "draining instances"),
                ),
            ),
            _by("Calls asked for", "voice_agent_sessions_total", "outcome"),
            _by("Calls ended", "voice_agent_sessions_ended_total", "reason"),
            _by("Turns of the agent", "voice_agent_turns_total", "outcome"),
            _by(
                "Sounds that were no interruption",
                "voice_agent_false_interruptions_total",
                "reason",
                rare=True,
            ),
            _by("Preemptive answers", "parley_speculations_total", "outcome"),
            Panel(
                "Calls at the gateway",
                (
                    Query("sum by (api) (parley_gateway_calls)", "{{api}}"),
                    Query("sum(parley_gateway_draining)", "draining gateways"),
                ),
            ),
            Panel(
                "Requests for single stages",
                (Query("sum by (api) (parley_gateway_stage_requests)", "{{api}}", rare=True),),
            ),
            Panel(
                "Audio",
                (
                    Query(_rate("voice_agent_audio_bytes_received_total"), "received"),
                    Query(_rate("voice_agent_audio_bytes_sent_total"), "sent"),
                ),
                "Bps",
            ),
        ),
    ),
    Board(
        "parley-latency",
        "Parley: latency by stage",
        (
            Panel("End of speech to first audio", _quantiles("voice_agent_e2e_latency_seconds"), "s"),
            Panel(
                "Silence noticed to final transcript",
                _quantiles("voice_agent_asr_latency_seconds", "model"),
                "s",
            ),
            Panel("Language model: first token", _quantiles("voice_agent_llm_ttft_seconds", "model"), "s"),
            Panel("Language model: whole answer", _quantiles("voice_agent_llm_total_seconds", "model"), "s"),
            Panel("Speech: first audio", _quantiles("voice_agent_tts_ttfb_seconds", "model"), "s"),
            Panel("Tools, of a turn", _quantiles("voice_agent_tool_seconds"), "s"),
            Panel("Barge-in: onset to silence", _quantiles("voice_agent_barge_in_seconds"), "s"),
            Panel(
                "Chunk of audio: all but the networks", _quantiles("voice_agent_chunk_overhead_seconds"), "s"
            ),
            Panel("Gateway: message to network", _quantiles("parley_gateway_added_seconds"), "s"),
            Panel("First response of a model", _quantiles("parley_first_response_seconds", "model"), "s"),
            Panel(
                "Queue of models that Triton batches, mean",
                (
                    Query(
                        _ratio(
                            f"sum by (model) (rate(nv_inference_queue_duration_us[{_RATE}]))",
                            f"(sum by (model) (rate(nv_inference_request_success[{_RATE}])) > 0)",
                        ),
                        "{{model}}",
                    ),
                ),
                "µs",
            ),
        ),
    ),
    Board(
        "parley-capacity",
        "Parley: capacity and GPU",
        (
            Panel("Sessions in use", (Query(_FILL),), "percentunit"),
            Panel(
                "Calls by instance",
                (Query("voice_agent_active_sessions", "{{model_instance}} {{instance}}"),),
            ),
            Panel("Requests at models", (Query("sum by (model) (parley_requests)", "{{model}}"),)),
            Panel(
                "Load of models that batch by themselves",
                (Query(_rate("parley_batch_seconds_total", "model"), "{{model}}"),),
                "percentunit",
            ),
            Panel(
                "Mean batch",
                (
                    Query(
                        _ratio(
                            _rate("parley_batch_items_total", "model"),
                            f"({_rate('parley_batches_total', 'model')} > 0)",
                        ),
                        "{{model}}",
                    ),
                    Query(
                        _ratio(
                            f"sum by (model) (rate(nv_inference_count[{_RATE}]))",
                            f"(sum by (model) (rate(nv_inference_exec_count[{_RATE}])) > 0)",
                        ),
                        "{{model}} (Triton)",
                    ),
                ),
            ),
            _by("Tokens of the language model", "voice_agent_tokens_generated_total", "model"),
            Panel(
                "Requests in engines",
                (Query("sum by (model, state) (parley_engine_requests)", "{{model}} {{state}}"),),
            ),
            Panel(
                "KV cache of engines in use",
                (Query("max by (model) (parley_engine_kv_cache_ratio)", "{{model}}"),),
                "percentunit",
            ),
            Panel("Queue of engines", _quantiles("parley_engine_queue_seconds", "model"), "s"),
            _by("Requests that engines put back", "parley_engine_preemptions_total", "model"),
            Panel("Used memory of the machine", (Query("nv_cpu_memory_used_bytes", "used"),), "bytes"),
            Panel("Processors", (Query("nv_cpu_utilization", "used"),), "percentunit"),
            Panel(
                "Used memory of GPUs",
                (Query("max by (gpu) (voice_agent_gpu_memory_used_bytes)", "GPU {{gpu}}", rare=True),),
                "bytes",
            ),
            Panel("GPUs", (Query("nv_gpu_utilization", "{{gpu_uuid}}", rare=True),), "percentunit"),
        ),
    ),
    Board(
        "parley-errors",
        "Parley: errors",
        (
            _by("Errors that clients were sent", "voice_agent_errors_total", "type, code", rare=True),
            _by("Refused at the gateway", "parley_gateway_refusals_total", "code", rare=True),
            _by("Lost calls", "parley_gateway_calls_lost_total", "code"),
            _by("Calls that change their server", "parley_gateway_moves_total", "reason, outcome"),
            Panel("Ready servers", (Query("parley_gateway_server_ready", "{{server}}"),)),
            Panel(
                "Restarts in an hour",
                (
                    Query(
                        "sum by (model) (increase(parley_model_restarts_total[1h])) > 0",
                        "{{model}}",
                        rare=True,
                    ),
                    Query("sum(increase(parley_server_restarts_total[1h]))", "server"),
                ),
            ),
            Panel(
                "Failed requests to models",
                (Query(f"{_rate('nv_inference_request_failure', 'model')} > 0", "{{model}}", rare=True),),
                "ops",
            ),
            Panel(
                "Replaced engines",
                (
                    Query(
                        _rate("parley_asr_fallback_total", "from_model"),
                        "recogniser {{from_model}}",
                        rare=True,
                    ),
                    Query(
                        _rate("parley_tts_fallback_total", "from_engine"),
                        "synthesizer {{from_engine}}",
                        rare=True,
                    ),
                    Query(_rate("parley_turn_unscored_total", "reason"), "turn model {{reason}}", rare=True),
                ),
                "ops",
            ),
            Panel(
                "Crowded and slow connections",
                (
                    Query(
                        _rate("parley_gateway_connections_crowded_total", "reason"), "{{reason}}", rare=True
                    ),
                    Query(_rate("parley_gateway_slow_readers_total"), "slow readers"),
                ),
                "ops",
            ),
            Panel("Metrics that were dropped", (Query(_rate("parley_metrics_dropped_total")),), "ops"),
        ),
    ),
)


def build(board: Board) -> str:
    """The dashboard as JSON."""
    made = (
        Dashboard(board.title)
        .uid(board.uid)
        .tags(["parley"])
        .time("now-1h", "now")
        .refresh("30s")
        .timezone("browser")
        .readonly()
        .with_variable(DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
    )
    for panel in board.panels:
        made.with_panel(_single(panel) if panel.single else _graph(panel))
    fields = json.loads(JSONEncoder().encode(made.build()))
    del fields["style"]
    for variable in fields["templating"]["list"]:
        for name in _OF_OLDER_GRAFANA:
            del variable[name]
    return f"{json.dumps(fields, sort_keys=True, indent=2)}\n"


def _graph(panel: Panel) -> timeseries.Panel:
    graph = (
        timeseries.Panel()
        .title(panel.title)
        .datasource(_SOURCE)
        .unit(panel.unit)
        .min(0)
        .no_value("0")
        .height(_HEIGHT)
        .span(_WIDTH)
        .line_width(1)
        .fill_opacity(8)
        .legend(
            common.VizLegendOptions()
            .display_mode(shown.LegendDisplayMode.LIST)
            .placement(shown.LegendPlacement.BOTTOM)
            .show_legend(True)
        )
        .tooltip(common.VizTooltipOptions().mode(shown.TooltipDisplayMode.MULTI))
    )
    return _with_queries(graph, panel)


def _single(panel: Panel) -> stat.Panel:
    number = (
        stat.Panel()
        .title(panel.title)
        .datasource(_SOURCE)
        .unit(panel.unit)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .height(_HEIGHT // 2)
        .span(_WIDTH)
    )
    return _with_queries(number, panel)


def _with_queries(made: PanelT, panel: Panel) -> PanelT:
    for number, query in enumerate(panel.queries):
        made.with_target(
            prometheus.Dataquery()
            .ref_id(chr(ord("A") + number))
            .expr(query.expression)
            .legend_format(query.legend or "__auto")
            .datasource(_SOURCE)
        )
    return made


def write(folder: Path) -> Sequence[Path]:
    """Write every dashboard into a folder; returns the files."""
    files = []
    for board in BOARDS:
        file = folder / f"{board.uid}.json"
        file.write_text(build(board), encoding="utf-8")
        files.append(file)
    return files


if __name__ == "__main__":
    write(FOLDER)
