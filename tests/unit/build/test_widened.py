"""Models that were made larger compute what the small ones compute."""

from __future__ import annotations

import wave

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

from chatterbox_export.small_t3 import write_small_t3
from parley.asr import checkpoint
from parley.asr.features import SILENCE, LogMel
from parley.asr.streaming import encoder as streaming
from parley.launcher.options import GPU_PROFILE, ROOT
from parley.runtime.repository import read_parameters
from parley_torch.asr.fastconformer import EncoderPool, EncoderSizes, FastConformer
from parley_torch.asr.loading import DeviceSettings, load_decoder, load_encoder
from parley_torch.asr.offline import RunSizes
from parley_torch.asr.weights import read_weights
from parley_torch.tts.t3.checkpoint import read_shape
from parley_torch.tts.t3.prompt import PromptEncoder
from parley_torch.tts.t3.request import SPEAKER_EMBEDDING_SIZE, SPEECH_CODES, TokenVoice
from widened import chatterbox, real_size
from widened.decoder import DecoderSize, widen_layers, widen_qwen3
from widened.fastconformer import TransducerSize, widen_recognizer

MODELS = ROOT / "models"
HEARD = TransducerSize(copies=2, layers=6, heads=6, inner=640, channels=72, decoder=200, tokens=140)
SETTINGS = DeviceSettings(torch.device("cpu"), row_sizes=(1,))
REPOSITORY = ROOT / "model_repository"


@pytest.fixture(autouse=True)
def one_thread():
    """Threads of several test processes on few processors wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def speech():
    with wave.open(str(ROOT / "tests" / "data" / "conversation" / "04-timer.wav")) as file:
        assert file.getframerate() == 16_000
        return np.frombuffer(file.readframes(file.getnframes()), "<i2")


def recognized(folder):
    """The encoder's frames ``[width, T]`` of a recording, and its tokens."""
    export = checkpoint.load(folder, checkpoint.DESCRIPTION)
    mel = LogMel(export.config)
    audio = speech().astype(np.float32) / 32_768
    emphasized = audio[1:] - mel.preemphasis * audio[:-1]
    features = mel.frames(emphasized[None])
    features = (features - features.mean(-1, keepdims=True)) / features.std(-1, keepdims=True)
    frames = features.shape[2]
    encoder = load_encoder(export, SETTINGS, RunSizes((frames,), (1,), frames))
    encoded, counts = encoder.encode(features, np.array([frames]))
    decoder = load_decoder(export, SETTINGS, piece_frames=encoded.shape[2])
    (reading,), _ = decoder.decode(encoded, counts, decoder.initial(1), None)
    return encoded[0], [export.vocabulary[token] for token in reading.settled.ids]


def test_a_larger_recognizer_hears_the_same(tmp_path):
    small = MODELS / "tiny-parakeet-tdt"
    frames, tokens = recognized(small)
    folder = widen_recognizer(small, "encoder-model.onnx", tmp_path, HEARD)
    wide_frames, wide_tokens = recognized(folder)
    assert len(wide_frames) == 288
    for copy in np.split(wide_frames, 2):
        assert np.abs(copy - frames).max() < 1e-3
    assert len(tokens) > 10
    assert wide_tokens == tokens


def streamed(folder):
    """The encoder's frames ``[T, width]`` of chunks of noise, past the time that attention sees."""
    export = streaming.load(folder, checkpoint.DESCRIPTION)
    weights = read_weights(folder, export.encoder(1), export.checkpoint.decoder)
    sizes = EncoderSizes.of(weights, bands=80, causal=True)
    encoder = FastConformer.of(weights, sizes, torch.float32, SETTINGS.device)
    pool = EncoderPool.allocate(
        sizes, rows=1, left=70, silence=float(SILENCE), dtype=torch.float32, device=SETTINGS.device
    )
    positions = encoder.positions(70, 2)
    row = torch.zeros(1, dtype=torch.int64)
    noise = np.random.default_rng(0).standard_normal((45, 1, 16, 80)).astype(np.float32)
    with torch.inference_mode():
        frames = [encoder.step(torch.from_numpy(chunk), pool, row, row, positions)[0] for chunk in noise]
    return torch.cat(frames)


def test_a_larger_streaming_recognizer_hears_the_same(tmp_path):
    small = MODELS / "tiny-nemotron-streaming"
    folder = widen_recognizer(small, "encoder-r1.onnx", tmp_path, HEARD)
    expected, found = streamed(small), streamed(folder)
    config = streaming.load(folder, checkpoint.DESCRIPTION).streaming
    assert config.cache_last_channel == (6, 70, 288)
    for copy in found.chunk(2, dim=-1):
        assert (copy - expected).abs().max() < 1e-3


def test_a_larger_qwen3_answers_the_same(tmp_path):
    small = MODELS / "tiny-qwen3"
    size = DecoderSize(width=320, layers=6, heads=16, kv_heads=4, head=128, inner=512)
    folder = widen_qwen3(small, tmp_path, size)
    logits = []
    for path in (small, folder):
        network = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        with torch.inference_mode():
            logits.append(network(torch.arange(40, 80)[None]).logits)
    assert network.config.num_hidden_layers == 6
    assert (logits[0] - logits[1]).abs().max() < 1e-2 * logits[0].abs().max()


def test_a_larger_llama_computes_the_same():
    small = DecoderSize(width=128, layers=2, heads=2, kv_heads=2, head=64, inner=512)
    wide = DecoderSize(width=256, layers=4, heads=8, kv_heads=8, head=64, inner=640)
    networks = [
        transformers.LlamaModel(
            transformers.LlamaConfig(
                vocab_size=8,
                hidden_size=size.width,
                intermediate_size=size.inner,
                num_hidden_layers=size.layers,
                num_attention_heads=size.heads,
                head_dim=size.head,
            )
        ).eval()
        for size in (small, wide)
    ]
    own = {name: tensor for name, tensor in networks[0].state_dict().items() if name.startswith("layers.")}
    for tensor in own.values():
        torch.nn.init.normal_(tensor, 1.0 if tensor.ndim == 1 else 0.0, 0.05)
    networks[1].load_state_dict(widen_layers(own, "layers.", small, wide), strict=False)
    inputs = torch.randn(1, 12, small.width, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = networks[0](inputs_embeds=inputs).last_hidden_state
        found = networks[1](inputs_embeds=inputs.repeat(1, 1, 2)).last_hidden_state
    for copy in found.chunk(2, dim=-1):
        assert (copy - expected).abs().max() < 1e-4


def test_a_larger_t3_has_the_same_voices(tmp_path):
    small = write_small_t3(tmp_path / "small")
    size = DecoderSize(width=256, layers=3, heads=4, kv_heads=4, head=64, inner=1024)
    folder = chatterbox.widen_t3(tmp_path / "wide", size)
    assert {path.name for path in folder.iterdir()} == {path.name for path in small.iterdir()}
    rng = np.random.default_rng(0)
    voice = TokenVoice(
        rng.standard_normal(SPEAKER_EMBEDDING_SIZE).astype(np.float32),
        rng.integers(0, SPEECH_CODES, 60).astype(np.int32),
    )
    rows = []
    for path in (small / "t3_cfg.safetensors", folder / "t3_cfg.safetensors"):
        shape = read_shape(path)
        prompt = PromptEncoder.load(path, shape).encode(
            voice, [255, 7, 8, 0], exaggeration=0.5, guidance_weight=0.5
        )
        rows.append(prompt.embeddings.chunk(2, dim=-1))
    assert shape.layers == 3
    for expected, found in zip(*rows, strict=True):  # with the text, and without
        for copy in found.chunk(2, dim=-1):
            assert (copy - expected).abs().max() < 1e-3
    heads = [load_file(path / "t3_cfg.safetensors")["speech_head.weight"] for path in (small, folder)]
    assert torch.equal(heads[1][:, :128], heads[0])
    assert not heads[1][:, 128:].any()


def test_folders_have_the_names_that_the_gpu_profile_expects(tmp_path):
    expected = {
        read_parameters(REPOSITORY / model, GPU_PROFILE, {}).text("weights", "")
        for model in ("nemotron_streaming", "parakeet_tdt", "parakeet_encoder", "qwen3", "t3", "s3gen")
    }
    made = {
        next(
            part for part in maker.args if isinstance(part, type(tmp_path)) and tmp_path in part.parents
        ).name
        for maker in real_size.makers(tmp_path, None)
    }
    assert made == expected
