"""Safetensors: a length, a JSON header, and the tensors' bytes without a gap.

Layout: https://github.com/huggingface/safetensors#format. The header is read here, without torch and without trust.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any, Final

from tinychat import filekind
from tinychat.errors import CheckpointError
from tinychat.weights.file_tensor import FileTensor
from tinychat.weights.source import DOWNLOAD_AGAIN, SourceFile, quoted

MAX_HEADER: Final = 100_000_000
"""Bytes of a header: the limit of the format's own library."""

BYTES: Final = {
    "F64": 8, "I64": 8, "U64": 8, "C64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2,
    "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip
"""Bytes of one number of each type; types that aren't here (of less than a byte) go by the header's offsets alone."""


def read_tensors(source: SourceFile) -> dict[str, FileTensor]:
    """Read the header of an open safetensors file; the tensors come in the order of their bytes.

    Raises:
        CheckpointError: It isn't safetensors, is cut short, or contradicts itself; the sentence has the numbers.
    """
    source.refuse_unless(filekind.SAFETENSORS, filekind.OTHER)  # what is wrong with the other kind follows
    path = source.path
    if source.size < 8:
        raise CheckpointError(f"{path} is not a safetensors file: it has {source.size} bytes.", DOWNLOAD_AGAIN)
    length = int.from_bytes(source.read(0, 8), "little")
    if length > MAX_HEADER:
        raise CheckpointError(
            f"{path} is not a safetensors file: its first 8 bytes announce a header of {length:,} bytes.",
            DOWNLOAD_AGAIN,
        )
    if 8 + length > source.size:
        raise CheckpointError(
            f"{path} is cut short: it announces a header of {length:,} bytes, but has {source.size:,} bytes in all.",
            DOWNLOAD_AGAIN,
        )
    start = 8 + length
    tensors = sorted(_described(source, source.read(8, length), start), key=lambda t: (t.offset, t.nbytes))
    end = tensors[-1].offset + tensors[-1].nbytes if tensors else start
    if end > source.size:
        raise CheckpointError(
            f"{path} is cut short: its tensors reach to byte {end:,}, but the file has {source.size:,} bytes.",
            DOWNLOAD_AGAIN,
        )
    at = start
    for tensor in tensors:
        if tensor.offset != at:
            raise CheckpointError(
                f"{path} is corrupt: tensor {quoted(tensor.name)} begins at byte {tensor.offset:,}, "
                f"but the one before it ends at {at:,}.",
                DOWNLOAD_AGAIN,
            )
        at += tensor.nbytes
    if at != source.size:
        raise CheckpointError(
            f"{path} is corrupt: its tensors end at byte {at:,}, but the file has {source.size:,} bytes.",
            DOWNLOAD_AGAIN,
        )
    return {tensor.name: tensor for tensor in tensors}


def _described(source: SourceFile, header: bytes, start: int) -> Iterator[FileTensor]:
    """Yield the tensors as the header describes them, offsets counted from the beginning of the file."""
    try:
        described = json.loads(header.decode(), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{source.path} is corrupt: its header isn't JSON ({error}).", DOWNLOAD_AGAIN) from error
    if not isinstance(described, dict):
        raise CheckpointError(f"{source.path} is corrupt: its header isn't a JSON object.", DOWNLOAD_AGAIN)
    for name, entry in described.items():
        if name == "__metadata__":
            continue
        match entry:
            case {"dtype": str(kind), "shape": list(shape), "data_offsets": [int(begin), int(end)]} if (
                all(type(length) is int and length >= 0 for length in shape) and 0 <= begin <= end
            ):
                pass
            case _:
                raise CheckpointError(
                    f"{source.path} is corrupt: the header's entry for {quoted(name)} isn't a tensor's.", DOWNLOAD_AGAIN
                )
        if kind in BYTES and math.prod(shape) * BYTES[kind] != end - begin:
            raise CheckpointError(
                f"{source.path} is corrupt: tensor {quoted(name)}, {shape} of {kind}, needs "
                f"{math.prod(shape) * BYTES[kind]:,} bytes, but has {end - begin:,}.",
                DOWNLOAD_AGAIN,
            )
        yield FileTensor(name, tuple(shape), kind, end - begin, start + begin, source)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a name that stands twice in a JSON object, of which `json` would keep the last."""
    unique = dict(pairs)
    if len(unique) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in unique if names.count(name) > 1)
        raise ValueError(f"{quoted(twice)} stands there twice")
    return unique
