"""PyTorch's own files of weights (pytorch_model.bin): a ZIP archive of a pickle and, beside it, the numbers.

A pickle is a program. It is opened by `torch.load` with `weights_only`, which builds tensors and plain containers and
refuses whatever else a pickle calls for, and with `mmap`, which leaves the numbers in the file. Only torch can list
such a file, so it is opened when its tensors are first asked for; the older kind of pickle can't be mapped and is
refused.
"""

from __future__ import annotations

import pickle
import re
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tinychat import filekind
from tinychat.errors import CheckpointError
from tinychat.weights.source import DOWNLOAD_AGAIN, SourceFile, quoted
from tinychat.weights.stored import Blocks, StoredTensor

if TYPE_CHECKING:
    import torch

MAPPED: Final = 2**26
"""Bytes read before the file is mapped anew: pages once read count as this process's memory until then."""

_SAFETENSORS: Final = "Look for a safetensors version of this model."
_TYPES: Final = {
    "float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
"""torch's name of a dtype -> safetensors' name."""


class TorchFile:
    """One file of pickled tensors; its mapping comes and goes.

    A mapped file that shrinks meanwhile ends the process: what the other formats turn into an error.
    """

    def __init__(self, path: Path) -> None:
        """Look at the first bytes of the file; nothing is unpickled yet.

        Raises:
            CheckpointError: It isn't there, or isn't a whole ZIP archive; the sentence says what it is.
        """
        with SourceFile(path) as source:
            if source.read(0, 1) == pickle.PROTO:
                raise CheckpointError(
                    f"{path} is a pickle as PyTorch wrote them before version 1.6, which can't be opened safely.",
                    _SAFETENSORS,
                )
            source.refuse_unless(filekind.ZIP)
        if not zipfile.is_zipfile(path):  # it begins as one, but its list of contents, at its end, is missing
            raise CheckpointError(f"{path} is cut short: it has {source.size:,} bytes.", DOWNLOAD_AGAIN)
        self.path: Final = path
        self._mapped: dict[str, torch.Tensor] | None = None
        self._read = 0

    def tensors(self) -> dict[str, StoredTensor]:
        """List what the file holds, in its order.

        Raises:
            CheckpointError: It is corrupt or holds more than weights.
        """
        return {
            name: PickledTensor(name, tuple(t.shape), _type_of(t), t.nbytes, self) for name, t in self._map().items()
        }

    def read_into(self, weights: torch.Tensor, name: str, start: int) -> None:
        """Fill weights [n, ...] from row `start` of a tensor on, converted to their dtype."""
        mapped = self._map()[name]
        if not mapped.dim():
            weights.copy_(mapped)
            return
        step = max(1, MAPPED // max(1, mapped[:1].nbytes))
        for done in range(0, len(weights), step):
            part = self._map()[name][start + done : start + min(done + step, len(weights))]
            weights[done : done + step].copy_(part)
            self._read += part.nbytes
            if self._read >= MAPPED:
                self.close()

    def close(self) -> None:
        """Let go of the mapping; the next reading makes another."""
        self._mapped = None
        self._read = 0

    def _map(self) -> dict[str, torch.Tensor]:
        if self._mapped is None:
            self._mapped = _load(self.path)
        return self._mapped


@dataclass(frozen=True, slots=True)
class PickledTensor(StoredTensor):
    """A tensor that torch has listed."""

    source: TorchFile = field(repr=False)

    @property
    def file(self) -> Path:
        """The file it is in."""
        return self.source.path

    def dense(self, dtype: torch.dtype, rows: slice | None = None) -> torch.Tensor:
        """Return the weights; see `StoredTensor.dense`."""
        import torch

        self.require_weights()
        start, count = self.parts(rows)
        weights = torch.empty((count, *self.shape[1:]) if self.shape else (), dtype=dtype)
        self.source.read_into(weights, self.name, start)
        return weights

    def blocks(self) -> Blocks | None:
        """Return None: such files hold plain numbers."""
        return None


def _load(path: Path) -> dict[str, torch.Tensor]:
    import torch

    try:
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        raise _refused(path, str(error)) from error
    except Exception as error:  # whatever torch, zipfile and the pickle's own wrong numbers raise
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise CheckpointError(f"{path} is corrupt: {quoted(first)}.", DOWNLOAD_AGAIN) from error
    if not isinstance(found, dict) or not found:
        raise CheckpointError(f"{path} holds {quoted(found)}, not tensors by name.", _SAFETENSORS)
    for name, value in found.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            raise CheckpointError(f"{path} holds something else than tensors of numbers: {quoted(name)}.", _SAFETENSORS)
    return found


def _refused(path: Path, message: str) -> CheckpointError:
    """Say what a pickle wanted beyond tensors, as far as torch's message tells."""
    if called := re.search(r"GLOBAL (\S+)", message):
        return CheckpointError(
            f"{path} holds more than weights: opening it would call {quoted(called[1])}, so it was left alone.",
            _SAFETENSORS,
        )
    return CheckpointError(f"{path} is corrupt, or holds more than weights.", _SAFETENSORS)


def _type_of(tensor: torch.Tensor) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return _TYPES.get(dtype, dtype)
