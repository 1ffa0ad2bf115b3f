"""An open model file, read by offset."""

from __future__ import annotations

import mmap
import os
import reprlib
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tinychat import filekind
from tinychat.errors import CheckpointError

DOWNLOAD_AGAIN: Final = "Download it again."

_REMEDIES: Final = {
    filekind.LFS_POINTER: "Fetch the file itself: run `git lfs pull` in its folder, or download it again.",
    filekind.HTML_PAGE: "The page was saved in place of the file: download the file itself.",
}
_SHORTENED: Final = reprlib.Repr()
_SHORTENED.maxstring = 100


def quoted(name: object) -> str:
    """Return a name or value out of a file as a sentence may hold it: as Python writes it, of bounded length."""
    return _SHORTENED.repr(name)


class SourceFile:
    """One file of a checkpoint, kept open, of which stretches are read.

    Tensors are read into memory of their own instead of being mapped: nothing of the file stays resident, and a file
    that shrinks meanwhile is an error, where a mapping would end the process.
    """

    def __init__(self, path: Path) -> None:
        """Open the file.

        Raises:
            CheckpointError: It isn't there, can't be read, or is empty.
        """
        if not path.is_file():  # opening a pipe would wait for its other end
            raise CheckpointError(f"{path} is {'not a file' if path.exists() else 'missing'}.")
        try:
            self._file = path.open("rb", buffering=0)
        except OSError as error:
            raise CheckpointError(f"{path} can't be read: {error.strerror or error}.") from error
        self.path: Final = path
        self.size: Final = os.fstat(self._file.fileno()).st_size
        if self.size == 0:
            self.close()
            raise CheckpointError(f"{path} is {filekind.EMPTY}.", DOWNLOAD_AGAIN)

    def refuse_unless(self, wanted: str, *others: str) -> None:
        """Raise CheckpointError, with what the file is, unless it is `wanted` or one of the other kinds."""
        found = filekind.kind_of(self.path)
        if found not in (wanted, *others):
            raise CheckpointError(f"{self.path} is {found}, not {wanted}.", _REMEDIES.get(found, DOWNLOAD_AGAIN))

    def read(self, offset: int, count: int) -> bytes:
        """Return `count` bytes from `offset` on; raises as `read_into`."""
        data = bytearray(count)
        self.read_into(offset, memoryview(data))
        return bytes(data)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill a buffer of bytes with the file from `offset` on.

        Raises:
            CheckpointError: The file ends before, or can't be read.
        """
        done = 0
        try:
            self._file.seek(offset)
            while done < len(buffer):
                count = self._file.readinto(buffer[done:])
                if not count:
                    raise CheckpointError(
                        f"{self.path} ended at byte {offset + done:,} while it was read; it had {self.size:,} bytes.",
                        DOWNLOAD_AGAIN,
                    )
                done += count
        except OSError as error:
            raise CheckpointError(f"{self.path} can't be read: {error.strerror or error}.") from error

    def map(self) -> mmap.mmap:
        """Return the whole file mapped for reading; the caller closes it."""
        return mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
