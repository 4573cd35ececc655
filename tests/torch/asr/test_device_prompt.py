"""Language prompts: the two layers, and recognition with them on torch and on ONNX Runtime."""

import json
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from device_fakes import CPU, make_recognizer, recognize, same_tokens
from prompt_fakes import COUNT, EXPORT, PROMPTS, make_prompted_export, random_kernel

from parley.asr import checkpoint
from parley.asr.streaming.encoder import CHANNEL, HISTORY, CacheAwareEncoder, with_keys
from parley.asr.streaming.prompt_graph import PARAMETERS
from parley.errors import ModelLoadingError, UnsupportedLanguageError
from parley.models.nemotron_streaming import load_recognizer
from parley.runtime.onnx import open_session
from parley_torch.asr import memory
from parley_torch.asr.loading import DeviceSettings, load_streaming
from parley_torch.asr.memory import PromptSizes
from parley_torch.asr.prompt import LanguagePrompt
from parley_torch.asr.weights import read_weights

LANGUAGES = ("en", "es", "auto", "en-GB")
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def published():
    """The modules of transformers, whose import takes seconds: not in every process that collects tests."""
    folder = "transformers.models.nemotron3_5_asr"
    names = ("modeling", "configuration", "processing")
    return SimpleNamespace(**{name: import_module(f"{folder}.{name}_nemotron3_5_asr") for name in names})


@pytest.fixture(scope="module")
def export(tmp_path_factory):
    return make_prompted_export(tmp_path_factory.mktemp("prompted"))


@pytest.fixture(scope="module")
def recognizer(export):
    return make_recognizer(export)


@pytest.fixture(scope="module")
def onnx(export):
    return load_recognizer(export, (80, 160, 560, 1120), open_session, slots=8, audio=400_000)[0]


@pytest.fixture(scope="module")
def recordings(spoken):
    return sorted((clip.audio for clip in spoken), key=len)[-4:]


def tensors(kernel):
    return {name: torch.from_numpy(values) for name, values in kernel.items()}


def frames_of(rows, width=144):
    rng = np.random.default_rng(3)
    return torch.from_numpy(rng.standard_normal((rows, 5, width)).astype(np.float32))


def test_the_layers_are_those_of_nemo_on_a_vector_with_a_one_in_it():
    kernel = tensors(random_kernel())
    first, second = torch.nn.Linear(144 + COUNT, 288), torch.nn.Linear(288, 144)
    nemo = torch.nn.Sequential(first, torch.nn.ReLU(), second)
    nemo.load_state_dict({name.removeprefix("prompt_kernel."): own for name, own in kernel.items()})
    frames, languages = frames_of(3), torch.tensor([6, 0, 3])
    one_hot = torch.zeros(3, 5, COUNT)
    for row, language in enumerate(languages.tolist()):
        one_hot[row, :, language] = 1.0
    with torch.inference_mode():
        expected = nemo(torch.cat([frames, one_hot], dim=-1))
        found = LanguagePrompt.of(kernel, PROMPTS, 144, CPU)(frames, languages)
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)


def test_the_layers_are_those_of_transformers(published):
    config = published.configuration.Nemotron3_5AsrConfig(
        encoder_config={"hidden_size": 144}, num_prompts=COUNT, prompt_intermediate_size=288
    )
    kernel = tensors(random_kernel(seed=1))
    theirs = published.modeling.Nemotron3_5AsrPromptProjector(config).eval()
    names = ("linear_1.weight", "linear_1.bias", "linear_2.weight", "linear_2.bias")
    theirs.load_state_dict(dict(zip(names, (kernel[name] for name in PARAMETERS), strict=True)))
    frames, languages = frames_of(4), torch.tensor([0, 1, 6, 2])
    one_hot = torch.nn.functional.one_hot(languages, COUNT).float()[:, None].expand(-1, 5, -1)
    with torch.inference_mode():
        expected = theirs(torch.cat([frames, one_hot], dim=-1))
        found = LanguagePrompt.of(kernel, PROMPTS, 144, CPU)(frames, languages)
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)


def test_a_memory_plan_counts_its_parameters(published):
    found = LanguagePrompt.of(tensors(random_kernel()), PROMPTS, 144, CPU)
    own = sum(tensor.numel() for tensor in vars(found).values() if isinstance(tensor, torch.Tensor))
    assert own == PromptSizes(prompts=COUNT, inner=288, width=144).parameters
    with torch.device("meta"):
        config = published.configuration.Nemotron3_5AsrConfig()
        projector = published.modeling.Nemotron3_5AsrPromptProjector(config)
    theirs = sum(parameter.numel() for parameter in projector.parameters())
    assert theirs == memory.NEMOTRON_35_PROMPT.parameters
    assert config.vocab_size == memory.NEMOTRON_35_DECODER.tokens + 1


def test_languages_have_the_published_prompts(published, tmp_path):
    prompts = published.processing.DEFAULT_PROMPT_DICTIONARY
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "rnnt", "prompts": prompts}))
    (tmp_path / "vocab.txt").write_text("<blk> 0\n")
    found = checkpoint.load(tmp_path, checkpoint.DESCRIPTION)
    expected = {"en": 0, "en-gb": 1, "es": 3, "es-MX": 3, "pt_BR": 12, "pt": 13, "zh": 4, "auto": 101}
    assert {tag: found.prompt(tag) for tag in expected} == expected
    with pytest.raises(UnsupportedLanguageError, match="'tlh' is not understood; only en-US, en, en-GB"):
        found.prompt("tlh")


def speak(model, export, recordings, chunks, languages):
    """Tokens of recordings that are recognised side by side, each in its language."""
    prompts = [export.checkpoint.prompt(language) for language in languages]
    utterances = recognize(model, recordings, chunks, prompts=prompts)
    assert not [utterance.failure for utterance in utterances if utterance.failure]
    return [utterance.tokens() for utterance in utterances]


def test_streams_of_several_languages_get_what_each_gets_alone_and_on_onnx(
    export, recognizer, onnx, recordings
):
    chunks = [16, 8, 16, 8]
    together = speak(recognizer, export, recordings, chunks, LANGUAGES)
    for own, other in zip(together, speak(onnx, export, recordings, chunks, LANGUAGES), strict=True):
        assert same_tokens(own, other)
    assert sum(len(tokens.ids) for tokens in together) > 10
    for row in (1, 2):
        (alone,) = speak(recognizer, export, [recordings[row]], [chunks[row]], [LANGUAGES[row]])
        assert same_tokens(alone, together[row])


def test_the_language_decides_what_is_recognised(export, recognizer, recordings):
    found = speak(recognizer, export, [recordings[3]] * 4, [16] * 4, ["en", "es", "es-ES", "en-US"])
    texts = [tuple(tokens.ids.tolist()) for tokens in found]
    assert texts[0] == texts[3]
    assert len(set(texts)) > 1


def test_a_graph_that_keeps_keys_keeps_its_prompt(export):
    path, channel = export.encoder(1), export.streaming.cache_last_channel
    shapes = {"lookahead": 1, "channel": channel, "time": export.streaming.cache_last_time}
    plain = CacheAwareEncoder(open_session(path), **shapes)
    keeping = CacheAwareEncoder(open_session(path, part=with_keys(path.read_bytes(), channel)), **shapes)
    assert plain.is_prompted
    assert keeping.is_prompted
    assert CHANNEL in plain.initial
    assert CHANNEL not in keeping.initial
    rng = np.random.default_rng(0)
    rows = [{name: np.stack([value] * 3) for name, value in one.initial.items()} for one in (plain, keeping)]
    for languages in ([0, 2, 6], [3, 2, 1]):
        features = rng.normal(-9.0, 4.0, (3, 80, HISTORY + 16)).astype(np.float32)
        (expected, _, rows[0]), (found, _, rows[1]) = (
            one.encode(features, caches, np.array(languages))
            for one, caches in zip((plain, keeping), rows, strict=True)
        )
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_graph_gives_its_weights_back(export):
    common = export.checkpoint
    weights = read_weights(common.folder, export.encoder(0), common.decoder)
    for name, values in random_kernel().items():
        np.testing.assert_array_equal(weights[name], values)
    plain = EXPORT.checkpoint
    assert not set(PARAMETERS) & set(read_weights(plain.folder, EXPORT.encoder(0), plain.decoder))


def test_a_model_without_prompts_has_one_prompt_for_everything():
    assert EXPORT.checkpoint.prompt("es") == 0
    assert LanguagePrompt.of({}, {}, 144, CPU) is None


@pytest.mark.parametrize(
    ("weights", "prompts", "words"),
    [
        (random_kernel(), {}, "is in the weights, but not in config.json"),
        ({}, PROMPTS, "is in config.json, but not in the weights"),
        (random_kernel(), {"en": COUNT}, "highest prompt 8"),
        (random_kernel(width=100), PROMPTS, "for frames of 144"),
        (dict(list(random_kernel().items())[:3]), PROMPTS, "for frames of 144"),
    ],
)
def test_weights_and_names_that_do_not_belong_together_are_refused(weights, prompts, words):
    with pytest.raises(ModelLoadingError, match=words):
        LanguagePrompt.of(tensors(weights), prompts, 144, CPU)


def test_an_export_without_its_prompt_is_refused_by_both_engines(tmp_path):
    """NeMo's own export is one: its decoder would write hardly anything."""
    export = make_prompted_export(tmp_path)
    for look_ahead in EXPORT.streaming.look_aheads:
        file = EXPORT.encoder(look_ahead)
        (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(ModelLoadingError, match=r"is in config\.json, but not in encoder-r1\.onnx"):
        load_recognizer(export, [160], open_session, slots=1, audio=16_000)
    with pytest.raises(ModelLoadingError, match="not in the weights"):
        load_streaming(export, [160], DeviceSettings(CPU), slots=1, audio=16_000)


def test_a_prompt_that_the_network_does_not_have_is_found_at_the_load(tmp_path):
    export = make_prompted_export(tmp_path, prompts={"en": 0, "es": COUNT})
    with pytest.raises(ModelLoadingError, match="cannot be run"):
        load_recognizer(export, [160], open_session, slots=1, audio=16_000)
