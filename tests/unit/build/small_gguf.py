"""A small Qwen2 model written as GGUF."""

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from tokenizers.pre_tokenizers import ByteLevel

HIDDEN, LAYERS, FEED_FORWARD, HEADS, KV_HEADS = 64, 2, 96, 4, 2
BYTES = sorted(ByteLevel.alphabet())
WORDS = ("Ġthe", "Ġtable", "Ġcafé", "getElementById", "日本", "ĠSchlüssel", '":', "ing", "def")
LETTERS = tuple(map(chr, range(0x400, 0x460)))  # in the end some fill the table up
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
)


def byte_level(text):
    split = ByteLevel(add_prefix_space=False, use_regex=False)
    return split.pre_tokenize_str(text)[0][0]


def make_vocabulary():
    """Single bytes, then words with what they are merged from, as trained tokenizers have them."""
    tokens, merges = list(BYTES), []
    for word in (*WORDS, *LETTERS):
        left, *rest = byte_level(word.replace("Ġ", " "))
        for right in rest:
            if left + right not in tokens:
                tokens.append(left + right)
                merges.append(f"{left} {right}")
            left += right
    return tokens, merges


def write_gguf(path, *, architecture="qwen2", pre="qwen2", tied=False, without="", spoil=""):
    rng = np.random.default_rng(0)
    writer = GGUFWriter(path, architecture)
    writer.add_block_count(LAYERS)
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(1e6)
    writer.add_layer_norm_rms_eps(1e-6)
    tokens, merges = make_vocabulary()
    marks = [mark for mark in ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|image|>") if mark != without]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([*tokens, *marks, "[PAD]"])
    writer.add_token_types([1] * len(tokens) + [3] * len(marks) + [5])
    writer.add_token_merges(merges)
    writer.add_chat_template(CHAT_TEMPLATE)
    size = len(tokens) + len(marks) + 1
    kv = HIDDEN // HEADS * KV_HEADS
    tensors = {"token_embd.weight": (size, HIDDEN), "output_norm.weight": (HIDDEN,)}
    if not tied:
        tensors["output.weight"] = (size, HIDDEN)
    for layer in range(LAYERS):
        tensors |= {
            f"blk.{layer}.attn_norm.weight": (HIDDEN,),
            f"blk.{layer}.ffn_norm.weight": (HIDDEN,),
            f"blk.{layer}.attn_q.weight": (HIDDEN, HIDDEN),
            f"blk.{layer}.attn_q.bias": (HIDDEN,),
            f"blk.{layer}.attn_k.weight": (kv, HIDDEN),
            f"blk.{layer}.attn_k.bias": (kv,),
            f"blk.{layer}.attn_v.weight": (kv, HIDDEN),
            f"blk.{layer}.attn_v.bias": (kv,),
            f"blk.{layer}.attn_output.weight": (HIDDEN, HIDDEN),
            f"blk.{layer}.ffn_gate.weight": (FEED_FORWARD, HIDDEN),
            f"blk.{layer}.ffn_up.weight": (FEED_FORWARD, HIDDEN),
            f"blk.{layer}.ffn_down.weight": (HIDDEN, FEED_FORWARD),
        }
    values = {}
    for name, shape in tensors.items():
        if name == without:
            continue
        values[name] = rng.standard_normal(shape).astype(np.float32)
        if name == spoil:
            values[name][0] = np.nan
        if len(shape) == 2 and name != spoil:
            kind = GGMLQuantizationType.Q8_0
            writer.add_tensor(name, quantize(values[name], kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return values
