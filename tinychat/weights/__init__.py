"""Files into named tensors. Headers and configurations are read without torch; only making a tensor imports it."""

from __future__ import annotations

from pathlib import Path

from tinychat.errors import CheckpointError, ModelNotFound
from tinychat.weights.checkpoint import Checkpoint
from tinychat.weights.folder import open_folder
from tinychat.weights.gguf import open_gguf
from tinychat.weights.stored import Blocks, StoredTensor

__all__ = ["Blocks", "Checkpoint", "StoredTensor", "open_checkpoint"]


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a model: a GGUF file, or a folder in Hugging Face's layout.

    Raises:
        ModelNotFound: There is nothing at this path.
        CheckpointError: A file is missing, cut short, corrupt, or not what it says it is.
        UnsupportedModel: The files are sound, but of a kind tinychat doesn't read.
    """
    if path.is_dir():
        return open_folder(path)
    if not path.exists():
        raise ModelNotFound(f"There is no file or folder {path}.")
    if path.suffix == ".safetensors":
        raise CheckpointError(
            f"{path} is a file of weights without its configuration.", f"Give the folder it is in: {path.parent}"
        )
    return open_gguf(path)
