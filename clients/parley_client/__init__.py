"""A client for Parley voice agents.

::

    async with connect("127.0.0.1:8001", tools=[get_weather]) as call:
        await call.send_audio(pcm)
        async for event in call:
            ...
"""

from __future__ import annotations

from parley.errors import ParleyError
from parley.protocol import (
    AgentState,
    BargeInOptions,
    Checkpoint,
    Closed,
    CollectField,
    Connected,
    DataCollected,
    Decision,
    DecisionQuestion,
    EndingOptions,
    ErrorEvent,
    GoAway,
    Interrupted,
    KnowledgeUsed,
    Paused,
    ResponseDone,
    ResponseText,
    Resumed,
    SamplingOptions,
    SilenceOptions,
    SpeechIgnored,
    SpeechStarted,
    SpeechStopped,
    Step,
    StepChanged,
    StepDecision,
    Tool,
    ToolCancelled,
    ToolProgress,
    ToolRequest,
    ToolResponse,
    ToolRun,
    Transcript,
    Transfer,
    TransferTarget,
    Transition,
    Truncated,
    TurnDecision,
    TurnMetrics,
    TurnOptions,
    Update,
    Updated,
    VadOptions,
)
from parley.tls import TlsOptions
from parley_client.agent_program import Agent
from parley_client.audio.files import read_speech, write_speech
from parley_client.call import Call
from parley_client.connection import DEFAULT_SERVER, connect
from parley_client.errors import (
    CallEndedError,
    CallLostError,
    CallRefusedError,
    ClientError,
    ConnectError,
    SlowConsumerError,
    ToolDefinitionError,
)
from parley_client.events import AgentAudio, CallEvent, Reconnected, Reconnecting
from parley_client.options import NO_RETRY, Backoff, Bounds, Deadlines, Keepalive
from parley_client.tools import ToolOptions, ToolTable, report_progress, tool

__version__ = "0.2.0"

__all__ = [
    "DEFAULT_SERVER",
    "NO_RETRY",
    "Agent",
    "AgentAudio",
    "AgentState",
    "Backoff",
    "BargeInOptions",
    "Bounds",
    "Call",
    "CallEndedError",
    "CallEvent",
    "CallLostError",
    "CallRefusedError",
    "Checkpoint",
    "ClientError",
    "Closed",
    "CollectField",
    "ConnectError",
    "Connected",
    "DataCollected",
    "Deadlines",
    "Decision",
    "DecisionQuestion",
    "EndingOptions",
    "ErrorEvent",
    "GoAway",
    "Interrupted",
    "Keepalive",
    "KnowledgeUsed",
    "ParleyError",
    "Paused",
    "Reconnected",
    "Reconnecting",
    "ResponseDone",
    "ResponseText",
    "Resumed",
    "SamplingOptions",
    "SilenceOptions",
    "SlowConsumerError",
    "SpeechIgnored",
    "SpeechStarted",
    "SpeechStopped",
    "Step",
    "StepChanged",
    "StepDecision",
    "TlsOptions",
    "Tool",
    "ToolCancelled",
    "ToolDefinitionError",
    "ToolOptions",
    "ToolProgress",
    "ToolRequest",
    "ToolResponse",
    "ToolRun",
    "ToolTable",
    "Transcript",
    "Transfer",
    "TransferTarget",
    "Transition",
    "Truncated",
    "TurnDecision",
    "TurnMetrics",
    "TurnOptions",
    "Update",
    "Updated",
    "VadOptions",
    "connect",
    "read_speech",
    "report_progress",
    "tool",
    "write_speech",
]
