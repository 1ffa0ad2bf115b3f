"""GGUF: the header, read from a mapping of the file by `struct` alone (30 ms where the gguf package takes 1.7 s).

Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Versions 2 and 3, little endian. The header is not
trusted: every count, length and offset is held against what the file can hold before it is used.
"""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass, replace
from itertools import pairwise
from mmap import mmap
from pathlib import Path
from typing import Any, Final, NoReturn

from tinychat import filekind
from tinychat.errors import CheckpointError, UnsupportedModel
from tinychat.weights.checkpoint import Checkpoint
from tinychat.weights.file_tensor import FileTensor
from tinychat.weights.source import DOWNLOAD_AGAIN, SourceFile, quoted

MAGIC_BYTES: Final = 4
DEFAULT_ALIGNMENT: Final = 32
MAX_ALIGNMENT: Final = 2**20
MAX_ARRAY: Final = 2**22
"""Elements of a metadata array: four times the merges of the largest vocabularies there are."""
MAX_DIMENSIONS: Final = 4

TYPES: Final[dict[int, tuple[str, int, int]]] = {
    # number in the file: (name, weights a block, bytes a block)
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
}

_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")
_SCALARS: Final = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: _U32,
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: _U64,
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_STRING: Final = 8
_ARRAY: Final = 9


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor as the header describes it."""

    name: str
    shape: tuple[int, ...]
    """Rows first: the file's dimensions reversed."""
    type: str
    nbytes: int
    offset: int
    """Of its first byte in the file."""


@dataclass(frozen=True, slots=True)
class Header:
    """Everything in a GGUF file but the numbers."""

    version: int
    metadata: dict[str, Any]
    """Numbers, strings, booleans and lists of them, in file order."""
    tensors: tuple[TensorInfo, ...]
    """In file order."""
    alignment: int
    data_offset: int
    """Where the tensors' bytes begin in the file."""


def read_header(path: Path) -> Header:
    """Read the header of a GGUF file.

    Raises:
        CheckpointError: It isn't GGUF, is cut short, or contradicts itself; the sentence has the place and the numbers.
        UnsupportedModel: Big endian, version 1 or a future one, a part of a split file, an unknown tensor type.
    """
    with SourceFile(path) as source:
        return _header_of(source)


def open_gguf(path: Path) -> Checkpoint:
    """Open a GGUF file; raises as `read_header`."""
    source = SourceFile(path)
    try:
        header = _header_of(source)
    except BaseException:
        source.close()
        raise
    tensors = {t.name: FileTensor(t.name, t.shape, t.type, t.nbytes, t.offset, source) for t in header.tensors}
    return Checkpoint(path, "gguf", header.metadata, tensors, [source])


def _header_of(source: SourceFile) -> Header:
    if (part := re.search(r"-(\d{5})-of-(\d{5})\.gguf$", source.path.name)) and int(part[2]) > 1:
        _refuse_split(source.path, int(part[2]))
    source.refuse_unless(filekind.GGUF)
    with source.map() as data:
        return _Reader(source.path, data).header()


def _refuse_split(path: Path, count: int) -> NoReturn:
    raise UnsupportedModel(
        f"{path} is one of {count} parts of a split GGUF file, which tinychat doesn't read.",
        "Join them with llama.cpp's `llama-gguf-split --merge`.",
    )


class _Reader:
    """Walks through the header, a value at a time."""

    def __init__(self, path: Path, data: mmap) -> None:
        self.path = path
        self.data = data
        self.size = len(data)
        self.at = MAGIC_BYTES
        self.place = "the version"
        """What is being read, for error sentences."""

    def header(self) -> Header:
        version = self.scalar(_U32)
        if version in (0x02000000, 0x03000000):
            raise UnsupportedModel(f"{self.path} is a big-endian GGUF file, which tinychat doesn't read.")
        if version not in (2, 3):
            raise UnsupportedModel(
                f"{self.path} is GGUF version {version}; tinychat reads 2 and 3.",
                "Convert the model again with today's llama.cpp." if version == 1 else "",
            )
        tensor_count, pair_count = self.count("tensors", 32), self.count("metadata keys", 13)
        metadata: dict[str, Any] = {}
        for index in range(pair_count):
            self.place = f"metadata key {index + 1} of {pair_count}"
            key = self.string()
            self.place = f"the value of {quoted(key)}"
            if key in metadata:
                self.corrupt("stands there twice")
            metadata[key] = self.value()
        if isinstance(parts := metadata.get("split.count"), int) and parts > 1:
            _refuse_split(self.path, parts)
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or not 0 < alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
            self.place = "general.alignment"
            self.corrupt(f"is {quoted(alignment)}, but has to be a power of two up to {MAX_ALIGNMENT:,}")
        relative = [self.tensor(index, tensor_count, alignment) for index in range(tensor_count)]
        data_offset = -(-self.at // alignment) * alignment
        tensors = tuple(replace(t, offset=data_offset + t.offset) for t in relative)
        self.check_extents(tensors)
        return Header(version, metadata, tensors, alignment, data_offset)

    def tensor(self, index: int, tensor_count: int, alignment: int) -> TensorInfo:
        """Read one tensor's description, its offset still relative to the data."""
        self.place = f"tensor {index + 1} of {tensor_count}"
        name = self.string()
        self.place = f"tensor {quoted(name)}"
        dimensions = self.scalar(_U32)
        if not 0 < dimensions <= MAX_DIMENSIONS:
            self.corrupt(f"has {dimensions:,} dimensions, where 1 to {MAX_DIMENSIONS} are possible")
        shape = tuple(self.scalar(_U64) for _ in range(dimensions))[::-1]
        number, offset = self.scalar(_U32), self.scalar(_U64)
        if number not in TYPES:
            raise UnsupportedModel(f"{self.path}: {self.place} is of type {number}, which tinychat doesn't know.")
        kind, block, block_bytes = TYPES[number]
        elements = math.prod(shape)
        if not 0 < elements < 2**63:
            self.corrupt(f"has the shape {list(shape)}, which no weights have")
        if shape[-1] % block:
            self.corrupt(f"has rows of {shape[-1]:,} weights, but {kind} stores {block} at a time")
        if offset % alignment:
            self.corrupt(f"begins at byte {offset:,} of the data, which is not a multiple of the alignment {alignment}")
        return TensorInfo(name, shape, kind, elements // block * block_bytes, offset)

    def check_extents(self, tensors: tuple[TensorInfo, ...]) -> None:
        """Refuse names that stand there twice, tensors past the end of the file and tensors that overlap."""
        seen: set[str] = set()
        for t in tensors:
            self.place = f"tensor {quoted(t.name)}"
            if t.name in seen:
                self.corrupt("stands there twice")
            seen.add(t.name)
        ordered = sorted(tensors, key=lambda t: t.offset)
        if ordered and (end := max(t.offset + t.nbytes for t in ordered)) > self.size:
            raise CheckpointError(
                f"{self.path} is cut short: its tensors reach to byte {end:,}, but the file has {self.size:,} bytes.",
                DOWNLOAD_AGAIN,
            )
        for before, after in pairwise(ordered):
            if before.offset + before.nbytes > after.offset:
                self.place = f"tensor {quoted(after.name)}"
                self.corrupt(
                    f"begins at byte {after.offset:,}, inside of {quoted(before.name)}, "
                    f"which ends at {before.offset + before.nbytes:,}"
                )

    def value(self) -> Any:
        """Read a metadata value: its type, then itself."""
        kind = self.scalar(_U32)
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self.array()
        if kind not in _SCALARS:
            self.corrupt(f"is of type number {kind:,}, which GGUF doesn't have")
        return self.scalar(_SCALARS[kind])

    def array(self) -> list[Any]:
        kind = self.scalar(_U32)
        count = self.scalar(_U64)
        if kind != _STRING and kind not in _SCALARS:
            self.corrupt(f"is a list of type number {kind:,}, which tinychat doesn't read")
        size = 8 if kind == _STRING else _SCALARS[kind].size
        if count > MAX_ARRAY:
            self.corrupt(f"is a list of {count:,} values, where at most {MAX_ARRAY:,} are believed")
        if count * size > self.size - self.at:
            self.ends_early()
        if kind == _STRING:
            return [self.string() for _ in range(count)]
        layout = struct.Struct(f"<{count}{_SCALARS[kind].format[1:]}")
        values = layout.unpack_from(self.data, self.at)
        self.at += layout.size
        return list(values)

    def count(self, what: str, least_bytes: int) -> int:
        """Read how many entries follow, of at least `least_bytes` each."""
        self.place = f"the number of {what}"
        count: int = self.scalar(_U64)
        if count > (self.size - self.at) // least_bytes:
            self.corrupt(f"is {count:,}, more than a file of {self.size:,} bytes can hold")
        return count

    def scalar(self, layout: struct.Struct) -> Any:
        if self.at + layout.size > self.size:
            self.ends_early()
        (value,) = layout.unpack_from(self.data, self.at)
        self.at += layout.size
        return value

    def string(self) -> str:
        start = self.at + _U64.size
        if start > self.size:
            self.ends_early()
        end: int = start + _U64.unpack_from(self.data, self.at)[0]
        if end > self.size:
            self.ends_early()
        self.at = end
        try:
            return self.data[start:end].decode()
        except UnicodeDecodeError as error:
            self.corrupt(f"has a string that isn't UTF-8, at byte {start + error.start:,}")

    def ends_early(self) -> NoReturn:
        raise CheckpointError(
            f"{self.path} is cut short or corrupt: {self.place}, at byte {self.at:,}, reaches past the end of the file "
            f"at {self.size:,}.",
            DOWNLOAD_AGAIN,
        )

    def corrupt(self, what: str) -> NoReturn:
        raise CheckpointError(f"{self.path} is corrupt: {self.place} {what}.", DOWNLOAD_AGAIN)
