"""Settings of a chat model that are wrong."""

from __future__ import annotations

import pytest

from parley.errors import ModelLoadingError
from parley.llm.loading import load_chat_service
from parley.serving.parameters import Parameters


@pytest.mark.parametrize("raw", ["{", "[]", "true"])
def test_template_variables_that_are_no_object(tmp_path, raw):
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_text("{}")
    values = {"weights": str(tmp_path), "chat_template_kwargs": raw}
    with pytest.raises(ModelLoadingError, match="chat_template_kwargs"):
        load_chat_service(Parameters("qwen3", values, environment={}), "")
