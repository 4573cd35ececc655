"""The language prompt of a NeMo model, which NeMo's own export leaves out."""

from __future__ import annotations

import numpy as np
import onnx
from nemo.collections.asr.models import ASRModel
from onnx import TensorProto, helper, numpy_helper

from comparison import ExportError
from parley.asr.streaming.prompt_graph import PARAMETERS, PROMPT, prompt_nodes, prompt_tensors

AUTO = "auto"
"""The prompt with which the model finds out the language."""
_ENCODED, _OWN = "outputs", "outputs.of_no_language"


def dictionary(model: ASRModel) -> dict[str, int]:
    """Indices of prompts by language tag; empty: the model has none.

    Raises:
        ExportError: it has a prompt, but no names for it.
    """
    if not getattr(model, "concat", False):
        return {}
    found = {str(tag): int(at) for tag, at in model.cfg.model_defaults.get("prompt_dictionary", {}).items()}
    if not found or not all(0 <= at < model.num_prompts for at in found.values()):
        raise ExportError(f"its prompt_dictionary is {found}, for {model.num_prompts} prompts")
    return found


def compared(model: ASRModel) -> list[str]:
    """Tags with which an export is compared: of the first prompt, and of the last or ``auto``."""
    tags = dictionary(model)
    by_index = sorted(tags, key=lambda tag: tags[tag])
    return [by_index[0], AUTO if AUTO in tags else by_index[-1]] if tags else []


def add_prompt(encoder: onnx.ModelProto, model: ASRModel) -> None:
    """Put the prompt of ``model`` behind its exported encoder; its input is ``prompt_index`` i64 ``[B]``."""
    graph = encoder.graph
    for node in graph.node:
        for names in (node.input, node.output):
            for at, name in enumerate(names):
                names[at] = _OWN if name == _ENCODED else name
    parameters = {name: model.get_parameter(name).detach().numpy() for name in PARAMETERS}
    for kind, inputs, outputs in prompt_nodes(_OWN, _ENCODED):
        graph.node.append(helper.make_node(kind, inputs, outputs, name=outputs[0]))
    for name, values in prompt_tensors(parameters).items():
        graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
    streams = graph.input[0].type.tensor_type.shape.dim[0].dim_param
    graph.input.append(helper.make_tensor_value_info(PROMPT, TensorProto.INT64, [streams]))
