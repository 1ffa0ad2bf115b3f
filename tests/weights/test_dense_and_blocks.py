"""The numbers: every stored type against the gguf package's own dequantisation, bit for bit."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from gguf_files import random_blocks
from tiny import Tiny

from tinychat.errors import CheckpointError, UnsupportedModel
from tinychat.weights import StoredTensor, open_checkpoint
from tinychat.weights.file_tensor import CHUNK
from tinychat.weights.source import SourceFile

BLOCK_KINDS = ("Q4_0", "Q4_1", "Q4_K", "Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS", "MXFP4")
DEQUANTISED = ("Q5_1", "Q2_K", "Q3_K", "Q5_K", "Q6_K", "TQ1_0", "TQ2_0", "NVFP4", "IQ1_S", "IQ1_M", "IQ2_XXS",
               "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")  # fmt: skip
KINDS = ("F32", "F16", "BF16", *BLOCK_KINDS, *DEQUANTISED)


def test_every_type_the_gguf_package_dequantises_is_read():
    """Catches a type that a new release of the package knows and a file may hold."""
    assert set(KINDS) == {"F32", "F16", *(kind.name for kind in gguf.quants._type_traits)}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[StoredTensor, np.ndarray]]:
    """Type -> a tensor of random blocks longer than two chunks and no multiple of one, and its numbers."""
    rows, columns = 2 * CHUNK // 768 + 5, 768
    random = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("types") / "types.gguf"
    tensors, numbers = {}, {}
    for kind in KINDS:
        number = GGMLQuantizationType[kind]
        if kind in ("F32", "F16", "BF16"):
            data = gguf.quantize(random.standard_normal((rows, columns)).astype(np.float32), number)
        else:
            data = random_blocks(kind, rows, columns, random)
        tensors[kind] = data, number
        numbers[kind] = gguf.dequantize(data, number)
        assert np.isfinite(numbers[kind]).all(), kind
    write_tensors(path, tensors)
    checkpoint = open_checkpoint(path)
    yield {kind: (checkpoint.tensors[kind], numbers[kind]) for kind in KINDS}
    checkpoint.close()


@pytest.mark.parametrize("kind", KINDS)
def test_dense_in_fp32_is_the_reference_bit_for_bit(stored, kind):
    """Catches swapped nibbles, a shifted block, a chunk border that loses or repeats weights."""
    tensor, numbers = stored[kind]
    dense = tensor.dense(torch.float32)
    assert dense.is_contiguous()
    # + 0 turns -0 into 0: the one difference there may be, where (8 - 8) * d meets 8 * d - 8 * d.
    assert np.array_equal((dense.numpy() + 0).view(np.uint32), (numbers + 0).view(np.uint32))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", KINDS)
def test_dense_rounds_once_and_from_fp32(stored, kind, dtype):
    """Catches arithmetic in the narrow dtype, and the straight copy taken for a type that needs conversion."""
    tensor, numbers = stored[kind]
    assert torch.equal(tensor.dense(dtype), torch.from_numpy(numbers).to(dtype))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [slice(0, 1), slice(17, 620), slice(-3, None), slice(5, 5), slice(9, 3)])
def test_a_part_of_the_rows_is_that_part(stored, kind, rows):
    """Catches offsets counted in the wrong unit, and empty parts."""
    tensor, numbers = stored[kind]
    for dtype in (torch.float32, torch.bfloat16):
        assert torch.equal(tensor.dense(dtype, rows), torch.from_numpy(numbers[rows]).to(dtype))


@pytest.mark.parametrize("kind", BLOCK_KINDS)
def test_blocks_give_the_dense_numbers_exactly(stored, kind):
    """The equation of `Blocks` is what int4 is packed by: catches a wrong zero or codes out of their range."""
    tensor, numbers = stored[kind]
    blocks = tensor.blocks()
    rows, columns = tensor.shape
    assert blocks.codes.shape == (rows, columns)
    assert blocks.scale.shape == blocks.zero.shape == (rows, columns // blocks.group)
    assert blocks.codes.dtype == (torch.int8 if blocks.bits == 8 else torch.uint8)
    assert blocks.bits == 8 or int(blocks.codes.max()) == 15
    weights = blocks.codes.view(rows, -1, blocks.group) * blocks.scale[..., None] + blocks.zero[..., None]
    assert np.array_equal(weights.view(rows, columns).numpy(), numbers)


def test_plain_types_and_vectors_have_no_blocks(stored, tiny: Tiny):
    """Catches a norm or a BF16 matrix handed to the int4 product, and codes that no product takes."""
    assert all(stored[kind][0].blocks() is None for kind in KINDS if kind not in BLOCK_KINDS)
    with open_checkpoint(tiny.gguf("llama", "Q4_0").path) as checkpoint:
        assert checkpoint.tensors["output_norm.weight"].blocks() is None


def test_each_call_gives_a_tensor_of_its_own_that_may_be_written_to(stored):
    """Catches views into a shared buffer or a read-only mapping."""
    tensor, numbers = stored["F32"]
    tensor.dense(torch.float32).zero_()
    assert np.array_equal(tensor.dense(torch.float32).numpy(), numbers)


@pytest.mark.parametrize("kind", ["F32", "Q8_0", "Q4_K", "IQ4_XS", *DEQUANTISED])
def test_a_tensor_is_never_held_twice(tmp_path: Path, monkeypatch, kind):
    """Beside the result a few megabytes are taken: catches a whole copy in fp32, or the whole of the stored bytes."""
    rows, columns = 2048, 2048  # 16 MiB in fp32
    number = GGMLQuantizationType[kind]
    random = np.random.default_rng(3)
    data = random_blocks(kind, rows, columns, random) if kind != "F32" else np.ones((rows, columns), np.float32)
    write_tensors(tmp_path / "x.gguf", {"w": (data, number)})
    read: list[int] = []
    real = SourceFile.read_into
    monkeypatch.setattr(
        SourceFile, "read_into", lambda self, at, buffer: (read.append(len(buffer)), real(self, at, buffer))[1]
    )
    with open_checkpoint(tmp_path / "x.gguf") as checkpoint:
        tensor = checkpoint.tensors["w"]
        tensor.dense(torch.bfloat16, slice(0, 1))  # the package's tables are made once
        read.clear()
        tracemalloc.start()
        tensor.dense(torch.bfloat16)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert sum(read) == tensor.nbytes
    assert max(read) <= 4 * CHUNK
    assert peak < 6 * 2**20


@pytest.mark.parametrize("kind", ["I8", "I32", "F64", "Q8_K", "Q8_1", "Q1_0"])
def test_types_that_are_no_weights_are_refused_by_name(tmp_path: Path, write_gguf_tensor: Callable, kind):
    """Catches integers cast to floats, and unknown blocks read as something else."""
    path = tmp_path / "x.gguf"
    write_gguf_tensor(path, "odd", GGMLQuantizationType[kind])
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.tensors["odd"].type == kind
        assert checkpoint.tensors["odd"].blocks() is None
        with pytest.raises(UnsupportedModel, match=rf"'odd'.*{kind}"):
            checkpoint.tensors["odd"].dense(torch.float32)


def test_a_file_that_shrinks_while_it_is_read_is_an_error(tmp_path: Path, write_gguf_tensor: Callable):
    """Catches the end of the process (SIGBUS) that a mapping would bring, and zeros in place of weights."""
    path = tmp_path / "x.gguf"
    write_gguf_tensor(path, "w", GGMLQuantizationType.F32)
    with open_checkpoint(path) as checkpoint:
        with path.open("r+b") as file:
            file.truncate(checkpoint.tensors["w"].offset + 8)
        with pytest.raises(CheckpointError, match=r"x\.gguf ended at byte"):
            checkpoint.tensors["w"].dense(torch.float32)


@pytest.fixture
def write_gguf_tensor() -> Callable[[Path, str, GGMLQuantizationType], None]:
    """Writes a file of one tensor of 2 rows of 256."""

    def write(path: Path, name: str, kind: GGMLQuantizationType) -> None:
        block, size = gguf.GGML_QUANT_SIZES[kind]
        write_tensors(path, {name: (np.zeros((2, 256 // block * size), np.uint8), kind)})

    return write


def write_tensors(path: Path, tensors: dict[str, tuple[np.ndarray, GGMLQuantizationType]]) -> None:
    """Write a GGUF file of these tensors: name -> (bytes or numbers, type)."""
    writer = GGUFWriter(path, "llama")
    for name, (data, kind) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.model
def test_the_real_file_is_the_reference_bit_for_bit(smollm2_path: Path):
    """All 272 tensors of the file people will run, dense and as blocks."""
    with open_checkpoint(smollm2_path) as checkpoint:
        reader = GGUFReader(smollm2_path)
        assert list(checkpoint.tensors) == [t.name for t in reader.tensors]
        for reference in reader.tensors:
            tensor = checkpoint.tensors[reference.name]
            numbers = gguf.dequantize(reference.data, reference.tensor_type)
            assert np.array_equal(tensor.dense(torch.float32).numpy(), numbers), reference.name
            if (blocks := tensor.blocks()) is not None:
                groups = blocks.codes.view(*blocks.scale.shape, -1)
                weights = groups * blocks.scale[..., None] + blocks.zero[..., None]
                assert np.array_equal(weights.view(tensor.shape).numpy(), numbers), reference.name


@pytest.mark.parametrize("variant", ["gpt2", "llama-untied"])
@pytest.mark.parametrize("dtype", ["F32", "BF16", "F16"])
@pytest.mark.parametrize("shards", [False, True])
def test_safetensors_hold_what_transformers_wrote(tiny: Tiny, variant, dtype, shards):
    """Catches offsets counted from the wrong place, and tensors of one shard read from another."""
    made = tiny.safetensors(variant, dtype, shards=shards)
    with open_checkpoint(made.path) as checkpoint:
        expected = dict(made.model.named_parameters())
        assert set(checkpoint.tensors) == set(expected)
        for name, tensor in checkpoint.tensors.items():
            assert tensor.type == dtype
            assert tensor.blocks() is None
            assert torch.equal(tensor.dense(torch.float32), expected[name]), name
