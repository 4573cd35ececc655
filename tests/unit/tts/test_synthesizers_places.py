"""How many callers the synthesizers take at once, as they are configured."""

from __future__ import annotations

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from parley.launcher.options import ROOT
from parley.runtime.sessions import default_sessions


def read(model, profile):
    folder = ROOT / "model_repository" / model
    path = folder / "config.pbtxt" if profile == "gpu" else folder / "configs" / f"{profile}.pbtxt"
    return text_format.Parse(path.read_text(), model_config_pb2.ModelConfig())


def number(config, name):
    return int(config.parameters[name].string_value)


@pytest.mark.parametrize("profile", ["gpu", "tiny"])
@pytest.mark.parametrize(
    ("model", "parameter"),
    [
        ("chatterbox", "max_utterances"),
        ("s3gen", "max_utterances"),
        ("t3", "max_requests"),
        ("qwen3", "max_requests"),
        ("espeak", "max_requests"),
    ],
)
def test_every_session_may_speak_while_what_it_no_longer_wants_is_being_stopped(profile, model, parameter):
    # An answer that was prepared or interrupted keeps its place until the model has stopped it.
    agent = read("voice_agent", profile)
    instances = sum(group.count for group in agent.instance_group)
    # On however many cores.
    each = default_sessions(profile, 1_000) or number(agent, "max_sessions")
    sessions = each * instances
    assert number(read(model, profile), parameter) >= 2 * sessions
