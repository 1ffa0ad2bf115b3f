"""Write a random model of Llama's shape with a billion parameters as GGUF (Q4_0), where matrix products dominate.

    python tests/benchmarks/llama_1b.py MODEL.gguf [--layers 20] [--seed 0]

About 600 MB; each tensor is quantised and written before the next is drawn, so memory stays small. tinychat and
llama.cpp read the same file: `tinychat bench MODEL.gguf --json` beside `compare.py MODEL.gguf`, the script that runs
both in turn. Its text is noise; its speed is that of any model of this shape. The vocabulary is byte-level BPE: the 256
bytes, control tokens, and fillers that no text is cut into, enough of them for the ids that `bench` and that script
prompt with, which go up to 40,099.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from numpy.typing import NDArray

WIDTH: Final = 2048
HEADS: Final = 32
KV_HEADS: Final = 8
INNER: Final = 5632
VOCABULARY: Final = 40_960
_ROWS: Final = 1024
"""Rows quantised at a time."""
CONTROL: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def tensors(layers: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield GGUF's name and the shape of each tensor, rows first."""
    kv = WIDTH // HEADS * KV_HEADS
    yield "token_embd.weight", (VOCABULARY, WIDTH)
    for layer in range(layers):
        block = f"blk.{layer}"
        yield f"{block}.attn_norm.weight", (WIDTH,)
        yield f"{block}.attn_q.weight", (WIDTH, WIDTH)
        yield f"{block}.attn_k.weight", (kv, WIDTH)
        yield f"{block}.attn_v.weight", (kv, WIDTH)
        yield f"{block}.attn_output.weight", (WIDTH, WIDTH)
        yield f"{block}.ffn_norm.weight", (WIDTH,)
        yield f"{block}.ffn_gate.weight", (INNER, WIDTH)
        yield f"{block}.ffn_up.weight", (INNER, WIDTH)
        yield f"{block}.ffn_down.weight", (WIDTH, INNER)
    yield "output_norm.weight", (WIDTH,)
    yield "output.weight", (VOCABULARY, WIDTH)


def kind(shape: tuple[int, ...]) -> GGMLQuantizationType:
    """Return how a tensor is stored."""
    return GGMLQuantizationType.F32 if len(shape) == 1 else GGMLQuantizationType.Q4_0


def draw(shape: tuple[int, ...], source: np.random.Generator) -> NDArray[Any]:
    """Draw a tensor as it is stored: a norm near 1, or a matrix that keeps the size of what it multiplies."""
    if len(shape) == 1:
        return 1 + np.float32(0.1) * source.standard_normal(shape, dtype=np.float32)
    rows, width = shape
    parts = []
    for start in range(0, rows, _ROWS):
        noise = source.standard_normal((min(_ROWS, rows - start), width), dtype=np.float32)
        parts.append(gguf.quantize(noise / np.float32(width**0.5), kind(shape)))
    return np.concatenate(parts)


def byte_alphabet() -> list[str]:
    """Return the character that stands for each byte in byte-level BPE (Radford et al. 2019)."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return [chr(byte) if byte in shown else chr(256 + hidden.index(byte)) for byte in range(256)]


def write(path: Path, layers: int = 20, seed: int = 0) -> int:
    """Write the file; return the number of parameters."""
    writer = GGUFWriter(path, "llama")
    writer.add_name("Random Llama 1B")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_block_count(layers)
    writer.add_context_length(4096)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(VOCABULARY)
    alphabet = byte_alphabet()
    fillers = [f"<unused{n}>" for n in range(VOCABULARY - len(CONTROL) - len(alphabet) - 1)]
    merged = alphabet[ord(" ")] + alphabet[ord("t")]  # a vocabulary has at least one merge
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*CONTROL, *alphabet, merged, *fillers])
    writer.add_token_types([3] * len(CONTROL) + [1] * (len(alphabet) + 1) + [5] * len(fillers))
    writer.add_token_merges([f"{alphabet[ord(' ')]} {alphabet[ord('t')]}"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    count = 0
    for name, shape in tensors(layers):
        stored, bytes_shape = kind(shape), (*shape[:-1], 4 * shape[-1])
        if stored is not GGMLQuantizationType.F32:
            bytes_shape = gguf.quant_shape_to_byte_shape(shape, stored)
        writer.add_tensor_info(name, shape, np.dtype(np.float32), math.prod(bytes_shape), raw_dtype=stored)
        count += math.prod(shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    source = np.random.default_rng(seed)
    for _, shape in tensors(layers):
        writer.write_tensor_data(draw(shape, source))
    writer.close()
    return count


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--layers", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    parameters = write(asked.model, asked.layers, asked.seed)
    print(f"{asked.model}: {parameters / 1e9:.2f} billion parameters, {asked.model.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
