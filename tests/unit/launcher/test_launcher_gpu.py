"""The memory plan of the GPU at a start of the launcher."""

from __future__ import annotations

import pytest

from parley.launcher.checks import check_agent_models
from parley.launcher.errors import LauncherSettingsError
from parley.launcher.gpu import find_server_plan, follow_plan
from parley.launcher.models import model_folders
from parley.launcher.options import ServerOptions
from parley.launcher.server import EmbeddedServer

GPU = ServerOptions(profile="gpu")
T4 = {"PARLEY_GPU_CLASS": "T4"}


def test_only_the_profile_for_gpus_has_a_plan():
    assert find_server_plan(ServerOptions(), T4) is None
    assert find_server_plan(GPU, T4).name == "T4"
    assert find_server_plan(GPU, {"PARLEY_GPU_CLASS": "none"}) is None


def test_models_without_memory_are_left_out_and_every_process_gets_the_class():
    options, line = follow_plan(GPU, find_server_plan(GPU, T4))
    usual = {folder.name for folder in model_folders(GPU)}
    assert usual - set(options.load_models) == {"chatterbox", "s3gen", "t3"}
    assert line == (
        "memory plan T4: 2 sessions for each instance of voice_agent; "
        "left out, no memory for them: chatterbox, s3gen, t3"
    )
    assert options.environment["PARLEY_GPU_CLASS"] == "T4"
    check_agent_models(options, {})


def test_a_plan_with_room_for_all_leaves_the_models_as_they_were():
    options, line = follow_plan(GPU, find_server_plan(GPU, {"PARLEY_GPU_CLASS": "H100"}))
    assert options.load_models == ()
    assert line == "memory plan H100: 16 sessions for each instance of voice_agent"


def test_a_model_that_is_chosen_by_name_and_has_no_memory_is_refused():
    chosen = ServerOptions(profile="gpu", load_models=("t3", "qwen3"))
    with pytest.raises(LauncherSettingsError, match="class T4 has no memory for t3 beside"):
        find_server_plan(chosen, T4)
    with pytest.raises(LauncherSettingsError, match="class T4 has no memory for t3 beside"):
        EmbeddedServer(ServerOptions(profile="gpu", load_models=("t3",), environment=T4)).check_settings()


def test_a_class_that_there_is_not_is_refused():
    with pytest.raises(LauncherSettingsError, match="'T5'; it must be one of"):
        find_server_plan(GPU, {"PARLEY_GPU_CLASS": "T5"})
