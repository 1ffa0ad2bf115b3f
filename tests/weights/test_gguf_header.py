"""The GGUF header: equal to the gguf package's reading where it is sound, a sentence where it is not."""

from __future__ import annotations

import contextlib
import struct
from dataclasses import dataclass, replace
from pathlib import Path

import gguf
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny import Tiny

from tinychat.errors import CheckpointError, TinychatError, UnsupportedModel
from tinychat.weights import open_checkpoint
from tinychat.weights.gguf import MAX_ARRAY, TYPES, read_header

# ---------------------------------------------------------------------------------------------------------------------
# Sound files


def assert_as_the_gguf_package_reads_it(path: Path) -> None:
    header, reader = read_header(path), GGUFReader(path)
    fields = {name: f for name, f in reader.fields.items() if not name.startswith("GGUF.")}
    assert header.version == reader.fields["GGUF.version"].contents()
    assert list(header.metadata) == list(fields)
    for name, field in fields.items():
        assert header.metadata[name] == field.contents(), name
        assert type(header.metadata[name]) is type(field.contents()), name
    assert [t.name for t in header.tensors] == [t.name for t in reader.tensors]
    for mine, theirs in zip(header.tensors, reader.tensors, strict=True):
        assert mine.shape == tuple(reversed(theirs.shape.tolist()))
        assert mine.type == theirs.tensor_type.name
        assert (mine.offset, mine.nbytes) == (theirs.data_offset, theirs.n_bytes)
    assert header.data_offset == reader.data_offset
    assert header.alignment == reader.alignment


@pytest.mark.model
def test_the_real_header_is_read_as_the_gguf_package_reads_it(smollm2_path: Path):
    """49,152 tokens, 48,900 merges and 272 tensors: nothing lost, nothing of another type."""
    assert_as_the_gguf_package_reads_it(smollm2_path)


@pytest.mark.parametrize(("variant", "kind"), [("gpt2", "Q4_1"), ("llama", "Q8_0"), ("llama-untied", "BF16")])
def test_fixtures_are_read_as_the_gguf_package_reads_them(tiny: Tiny, variant, kind):
    """Catches reversed dimensions and sizes of types."""
    assert_as_the_gguf_package_reads_it(tiny.gguf(variant, kind).path)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [None, 8, 1024])
def test_every_kind_of_value_and_alignment(tmp_path: Path, version, alignment):
    """Catches a wrong width or sign of a value type, and a data section looked for at the default alignment."""
    path = tmp_path / "x.gguf"
    writer = GGUFWriter(path, "llama")
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    writer.add_uint8("u8", 200)
    writer.add_int8("i8", -100)
    writer.add_uint16("u16", 60000)
    writer.add_int16("i16", -30000)
    writer.add_uint32("u32", 4_000_000_000)
    writer.add_int32("i32", -2_000_000_000)
    writer.add_uint64("u64", 2**63)
    writer.add_int64("i64", -(2**62))
    writer.add_float32("f32", 0.1)
    writer.add_float64("f64", 0.1)
    writer.add_bool("yes", True)
    writer.add_bool("no", False)
    writer.add_string("text", "naïve 日本 🦙 \0")
    writer.add_array("texts", ["", "Ġa", "\n"])
    writer.add_array("ints", [1, -2])
    writer.add_array("floats", [0.5, 0.1])
    writer.add_array("bools", [True, False])
    writer.add_tensor("a", torch.arange(10.0).numpy())
    writer.add_tensor("b", torch.arange(24.0).view(2, 3, 4).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    data = bytearray(path.read_bytes())
    data[4:8] = struct.pack("<I", version)
    path.write_bytes(data)
    assert_as_the_gguf_package_reads_it(path)
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.format == "gguf"
        assert checkpoint.generation_config == {}
        assert torch.equal(checkpoint.tensors["b"].dense(torch.float32), torch.arange(24.0).view(2, 3, 4))
        assert torch.equal(checkpoint.tensors["a"].dense(torch.float32, slice(3, 7)), torch.arange(3.0, 7.0))


def test_a_file_of_a_vocabulary_alone_is_sound(tmp_path: Path):
    """`tinychat tokenize` needs no weights; its data section begins past the end of the file."""
    path = tmp_path / "x.gguf"
    path.write_bytes(File(pairs=(pair("tokenizer.ggml.model", "gpt2"),)).pack())
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.config == {"tokenizer.ggml.model": "gpt2"}
        assert checkpoint.tensors == {}


def test_the_type_table_is_that_of_the_gguf_package():
    """Catches a typing error in a block's size, which would shift or refuse every tensor of that type."""
    sizes = {int(kind): (kind.name, *gguf.GGML_QUANT_SIZES[kind]) for kind in GGMLQuantizationType}
    assert {number: row for number, row in sizes.items() if number in TYPES} == TYPES


# ---------------------------------------------------------------------------------------------------------------------
# Hostile files, written by hand


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def pair(key: str, value: str | int) -> bytes:
    if isinstance(value, str):
        return string(key) + struct.pack("<I", 8) + string(value)
    return string(key) + struct.pack("<II", 4, value)


def array(key: str, kind: int, count: int, data: bytes = b"") -> bytes:
    return string(key) + struct.pack("<IIQ", 9, kind, count) + data


def tensor(name: str, *dimensions: int, kind: int = 0, offset: int = 0) -> bytes:
    return (
        string(name)
        + struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
        + struct.pack("<IQ", kind, offset)
    )


@dataclass(frozen=True)
class File:
    """The parts of a GGUF file; the counts are right unless they are given."""

    version: int = 3
    pairs: tuple[bytes, ...] = ()
    tensors: tuple[bytes, ...] = ()
    data: bytes = b""
    pair_count: int | None = None
    tensor_count: int | None = None

    def pack(self) -> bytes:
        tensor_count = len(self.tensors) if self.tensor_count is None else self.tensor_count
        pair_count = len(self.pairs) if self.pair_count is None else self.pair_count
        header = b"GGUF" + struct.pack("<IQQ", self.version, tensor_count, pair_count)
        header += b"".join(self.pairs) + b"".join(self.tensors)
        return header + bytes(-len(header) % 32) + self.data if self.data else header


SOUND = File(
    pairs=(pair("general.architecture", "llama"), array("tokenizer.ggml.tokens", 8, 2, string("a") + string("b"))),
    tensors=(tensor("v", 8), tensor("m", 32, 2, kind=8, offset=32), tensor("h", 4, 4, kind=1, offset=128)),
    data=bytes(160),
)
U64 = 2**64 - 1
HOSTILE: dict[str, tuple[File, type[TinychatError], str]] = {
    "version 1": (File(version=1), UnsupportedModel, "GGUF version 1"),
    "version 4": (File(version=4), UnsupportedModel, "GGUF version 4; tinychat reads 2 and 3"),
    "big endian": (File(version=0x03000000), UnsupportedModel, "big-endian"),
    "more keys than bytes": (File(pair_count=U64), CheckpointError, f"number of metadata keys is {U64:,}"),
    "more tensors than bytes": (File(tensor_count=2**40), CheckpointError, f"number of tensors is {2**40:,}"),
    "one key too many": (
        replace(SOUND, pair_count=3, tensors=(), data=b""),
        CheckpointError,
        "metadata key 3 of 3",
    ),
    "key past the end": (
        File(pairs=(struct.pack("<Q", U64) + bytes(32),)),
        CheckpointError,
        r"metadata key 1 of 1, at byte 24, reaches past the end of the file at 64",
    ),
    "text past the end": (
        File(pairs=(string("k") + struct.pack("<IQ", 8, 2**63) + bytes(9),)),
        CheckpointError,
        "the value of 'k', at byte",
    ),
    "unknown value type": (
        File(pairs=(string("k") + struct.pack("<I", 13) + bytes(9),)),
        CheckpointError,
        "the value of 'k' is of type number 13",
    ),
    "list of lists": (File(pairs=(array("k", 9, 1, bytes(12)),)), CheckpointError, "'k' is a list of type number 9"),
    "list past the end": (File(pairs=(array("k", 4, 1000, bytes(8)),)), CheckpointError, "the value of 'k', at byte"),
    "list of texts past the end": (
        File(pairs=(array("k", 8, 3, string("a") + string("b") + struct.pack("<Q", 5)),)),
        CheckpointError,
        "the value of 'k', at byte",
    ),
    "enormous list": (File(pairs=(array("k", 0, U64),)), CheckpointError, f"list of {U64:,} values"),
    "list over the limit": (
        File(pairs=(array("k", 0, MAX_ARRAY + 1, bytes(MAX_ARRAY + 1)),)),
        CheckpointError,
        f"at most {MAX_ARRAY:,}",
    ),
    "key twice": (File(pairs=(pair("k", 1), pair("k", 2))), CheckpointError, "'k' stands there twice"),
    "not UTF-8": (
        File(pairs=(struct.pack("<Q", 2) + b"k\xff" + bytes(9),)),
        CheckpointError,
        "isn't UTF-8, at byte 33",
    ),
    "alignment 0": (File(pairs=(pair("general.alignment", 0),)), CheckpointError, "general.alignment is 0"),
    "alignment 24": (File(pairs=(pair("general.alignment", 24),)), CheckpointError, "a power of two"),
    "alignment 2 GiB": (File(pairs=(pair("general.alignment", 2**31),)), CheckpointError, "a power of two up to"),
    "alignment a text": (File(pairs=(pair("general.alignment", "8"),)), CheckpointError, "general.alignment is '8'"),
    "part of a split": (File(pairs=(pair("split.count", 3),)), UnsupportedModel, "one of 3 parts"),
    "no dimensions": (File(tensors=(tensor("t"),)), CheckpointError, "'t' has 0 dimensions"),
    "five dimensions": (File(tensors=(tensor("t", 1, 1, 1, 1, 1),)), CheckpointError, "'t' has 5 dimensions"),
    "a million dimensions": (
        File(tensors=(string("t") + struct.pack("<I", 10**6) + bytes(32),)),
        CheckpointError,
        "'t' has 1,000,000 dimensions",
    ),
    "no rows": (File(tensors=(tensor("t", 8, 0),)), CheckpointError, r"'t' has the shape \[0, 8\]"),
    "overflow of the product": (
        File(tensors=(tensor("t", 2**32, 2**32, 2),), data=bytes(32)),
        CheckpointError,
        "'t' has the shape",
    ),
    "unknown tensor type": (File(tensors=(tensor("t", 8, kind=99),)), UnsupportedModel, "'t' is of type 99"),
    "removed tensor type": (File(tensors=(tensor("t", 8, kind=4),)), UnsupportedModel, "'t' is of type 4"),
    "rows that split a block": (
        File(tensors=(tensor("t", 48, 2, kind=2),), data=bytes(64)),
        CheckpointError,
        "rows of 48 weights, but Q4_0 stores 32 at a time",
    ),
    "off the alignment": (
        File(tensors=(tensor("t", 8, offset=4),), data=bytes(64)),
        CheckpointError,
        "byte 4 of the data, which is not a multiple of the alignment 32",
    ),
    "tensor past the end": (
        replace(SOUND, data=bytes(159)),
        CheckpointError,
        r"cut short: its tensors reach to byte \d+, but the file has \d+ bytes",
    ),
    "offset past the end": (
        File(tensors=(tensor("t", 8, offset=2**62),), data=bytes(64)),
        CheckpointError,
        "cut short: its tensors reach to byte 4,611,",
    ),
    "overlap": (
        File(tensors=(tensor("a", 16), tensor("b", 8, offset=32)), data=bytes(64)),
        CheckpointError,
        r"'b' begins at byte \d+, inside of 'a', which ends at",
    ),
    "the same place twice": (
        File(tensors=(tensor("a", 8), tensor("b", 8)), data=bytes(64)),
        CheckpointError,
        "'b' begins at byte",
    ),
    "name twice": (
        File(tensors=(tensor("t", 8), tensor("t", 8, offset=32)), data=bytes(64)),
        CheckpointError,
        "'t' stands there twice",
    ),
    "last tensor missing": (
        replace(SOUND, tensor_count=4, data=b""),
        CheckpointError,
        "tensor 4 of 4, at byte",
    ),
}


def test_the_file_the_hostile_ones_are_made_from_is_sound(tmp_path: Path):
    """Otherwise the cases below could be refused for another reason."""
    path = tmp_path / "x.gguf"
    path.write_bytes(SOUND.pack())
    assert_as_the_gguf_package_reads_it(path)


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_headers_are_refused_in_a_sentence(tmp_path: Path, case):
    """Each names file, place and numbers; none ends in a MemoryError, a struct.error or a wrong tensor."""
    file, kind, sentence = HOSTILE[case]
    path = tmp_path / "hostile.gguf"
    path.write_bytes(file.pack())
    for read in (read_header, open_checkpoint):
        with pytest.raises(kind, match=sentence) as caught:
            read(path)
        assert str(path) in caught.value.summary


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is an empty file"),
        (b"GGU", "not a GGUF file"),
        (b"GGUF", "the version, at byte 4, reaches past the end of the file at 4"),
        (b"GGUF\x03\0\0\0\0\0", "the number of tensors, at byte 8"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 98362432\n", "Git LFS pointer"),
        (b"<!DOCTYPE html><html>404</html>", "HTML page"),
        (b"\x08\0\0\0\0\0\0\0{}      ", "a safetensors file, not a GGUF file"),
        (b"\0" * 64, "not a GGUF file"),
    ],
)
def test_what_is_no_gguf_is_called_what_it_is(tmp_path: Path, content, sentence):
    """Catches "invalid magic" for a pointer, a page or a download that never began."""
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=sentence):
        open_checkpoint(path)


@pytest.mark.parametrize("name", ["m-00001-of-00003.gguf", "m-00003-of-00003.gguf"])
def test_a_part_of_a_split_file_is_refused_by_its_name(tmp_path: Path, name):
    """Later parts have no architecture and would be called corrupt; the only part of one is whole."""
    (tmp_path / name).write_bytes(SOUND.pack())
    with pytest.raises(UnsupportedModel, match="one of 3 parts"):
        open_checkpoint(tmp_path / name)
    (tmp_path / "m-00001-of-00001.gguf").write_bytes(SOUND.pack())
    open_checkpoint(tmp_path / "m-00001-of-00001.gguf").close()


def read_or_refuse(path: Path) -> None:
    """Read every tensor; let no exception pass but our own."""
    with contextlib.suppress(TinychatError), open_checkpoint(path) as checkpoint:
        for stored in checkpoint.tensors.values():
            stored.dense(torch.float32)
            stored.blocks()


def test_every_truncation_is_refused(tmp_path: Path):
    """A download cut at any byte, in the header or in the data, opens as nothing at all."""
    data = SOUND.pack()
    path = tmp_path / "x.gguf"
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(CheckpointError):
            open_checkpoint(path)


FLIPS = st.lists(st.tuples(st.integers(0, len(SOUND.pack()) - 1), st.integers(0, 255)), min_size=1, max_size=6)


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(flips=FLIPS, cut=st.none() | st.integers(0, len(SOUND.pack())))
def test_damaged_files_end_in_our_own_errors_or_are_read(tmp_path: Path, flips, cut):
    """Any bytes changed, any length: never another exception, never more memory than the file can hold."""
    data = bytearray(SOUND.pack())
    for at, byte in flips:
        data[at] = byte
    path = tmp_path / "x.gguf"
    path.write_bytes(data[:cut])
    read_or_refuse(path)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tail=st.binary(max_size=200))
def test_random_bytes_after_the_magic_end_in_our_own_errors_or_are_read(tmp_path: Path, tail):
    """Headers that no writer ever made."""
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF\x03\0\0\0" + tail)
    read_or_refuse(path)
