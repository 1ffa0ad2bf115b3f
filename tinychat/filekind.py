"""What a file is by its first bytes, whatever its name says."""

from __future__ import annotations

from pathlib import Path
from typing import Final

GGUF: Final = "a GGUF file"
SAFETENSORS: Final = "a safetensors file"
ZIP: Final = "a ZIP archive"
LFS_POINTER: Final = "a Git LFS pointer (a few lines that stand for the file, not the file itself)"
HTML_PAGE: Final = "an HTML page"
EMPTY: Final = "an empty file"
OTHER: Final = "a file of another kind"

_LFS_HEAD: Final = b"version https://git-lfs.github.com/spec/"
_HTML_HEADS: Final = (b"<!doctype html", b"<html")


def kind_of(path: Path) -> str:
    """Return what `path` is, as a noun with its article: one of the names above.

    Reads 64 bytes. A file that an interrupted or refused download left under a model's name is called what it is.

    Raises:
        OSError: The file is not there or may not be read.
    """
    with path.open("rb") as file:
        head = file.read(64)
    if not head:
        return EMPTY
    if head.startswith(b"GGUF"):
        return GGUF
    if head.startswith(_LFS_HEAD):
        return LFS_POINTER
    if head.lstrip(b"\xef\xbb\xbf \t\r\n").lower().startswith(_HTML_HEADS):
        return HTML_PAGE
    if head.startswith(b"PK\x03\x04"):
        return ZIP
    # Safetensors: the length of a JSON header in 8 bytes, then the header, which may be padded with spaces.
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= 100_000_000:
        return SAFETENSORS
    return OTHER
