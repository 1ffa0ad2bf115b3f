"""A checkpoint: configuration and named tensors, none of them read before it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Protocol, Self

from tinychat.weights.stored import StoredTensor


class Source(Protocol):
    """An open file of weights."""

    def close(self) -> None: ...


class Checkpoint:
    """A model's files: what they say about it, and its tensors by name."""

    def __init__(
        self,
        path: Path,
        file_format: Literal["gguf", "safetensors", "pickle"],
        config: dict[str, Any],
        tensors: Mapping[str, StoredTensor] | Callable[[], Mapping[str, StoredTensor]],
        sources: Sequence[Source],
        generation_config: dict[str, Any] | None = None,
    ) -> None:
        """Hold what `open_checkpoint` has read; the sources are closed with the checkpoint.

        Args:
            path: The .gguf file or the folder.
            file_format: Of the weights.
            config: config.json, or the metadata of the GGUF header.
            tensors: By name; or what lists them, where that takes torch.
            sources: The files they are in.
            generation_config: generation_config.json.
        """
        self.path: Final = path
        """The .gguf file or the folder."""
        self.format: Final = file_format
        self.config: Final = config
        """config.json, or the metadata of the GGUF header."""
        self.generation_config: Final = generation_config or {}
        """generation_config.json; empty where there is none (GGUF may have general.sampling.* in its metadata)."""
        self._tensors = tensors
        self._sources: Final = tuple(sources)

    @property
    def tensors(self) -> Mapping[str, StoredTensor]:
        """In file order. Of pickles they are listed by the first call, which imports torch.

        Raises:
            CheckpointError: A pickle is corrupt, holds more than weights, or doesn't hold what its index says.
        """
        if callable(self._tensors):
            self._tensors = self._tensors()
        return self._tensors

    @property
    def weight_files(self) -> frozenset[Path]:
        """The files that its tensors are in."""
        return frozenset(tensor.file for tensor in self.tensors.values())

    def close(self) -> None:
        """Close the files; tensors already made stay valid."""
        for source in self._sources:
            source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
