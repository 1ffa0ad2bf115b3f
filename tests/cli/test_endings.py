"""How a process ends: statuses, what it leaves, and how long it takes, wherever it is interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import loopback_hub as faults
import pytest

if TYPE_CHECKING:
    from conftest import HubForTests

Start = Callable[..., "subprocess.Popen[bytes]"]
ENDLESS = ("Hello", "-t", "0", "-n", "50000")
QUICK = 1.5
"""Seconds within which an interrupted command has ended, also on a machine that is busy with other tests."""


def ended(process: subprocess.Popen[bytes], timeout: float = 60) -> tuple[int, bytes, bytes]:
    """Wait for a process; return its status and what it still had to say."""
    out, err = process.communicate(timeout=timeout)
    return process.returncode, out, err


def until_it_talks(process: subprocess.Popen[bytes]) -> bytes:
    """Wait for the first output, which is some of the reply."""
    assert process.stdout is not None
    data = os.read(process.stdout.fileno(), 1 << 16)
    assert data, process.stderr.read() if process.stderr else b""
    return data


def until(condition: Callable[[], Any], timeout: float = 60) -> None:
    """Wait for something that another process does."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_stopped_while_talking(start: Start, talkative: str, number: int, status: int) -> None:
    """Would catch: an abort by a thread inside torch (134), a traceback, a wait for the end of the reply."""
    process = start("run", talkative, *ENDLESS)
    until_it_talks(process)
    began = time.monotonic()
    process.send_signal(number)
    code, out, err = ended(process)
    assert code == status, err
    assert time.monotonic() - began < QUICK
    assert out.endswith(b"\n")
    assert b"Traceback" not in err


def test_stopped_json_is_complete(start: Start, talkative: str) -> None:
    """Would catch: an interrupted reply without its `done`, or with other ids than the tokens before it."""
    process = start("run", talkative, *ENDLESS, "--json")
    lines = until_it_talks(process)
    while b'"token"' not in lines:
        lines += until_it_talks(process)
    process.send_signal(signal.SIGINT)
    code, out, err = ended(process)
    assert code == 130, err
    _ready, *tokens, done = [json.loads(line) for line in (lines + out).splitlines()]
    assert done["type"] == "done"
    assert done["reason"] == "cancelled"
    assert done["ids"] == [token["id"] for token in tokens]
    assert done["text"].startswith("".join(token["text"] for token in tokens))


def test_interrupted_at_once(start: Start) -> None:
    """Would catch: a traceback for someone who changes their mind while the first imports run."""
    process = start("run", "smollm2", "hi", python=("-X", "importtime"))
    assert process.stderr is not None
    assert any(line.endswith(b"tinychat.cli.environment\n") for line in process.stderr)
    process.send_signal(signal.SIGINT)
    code, _, err = ended(process)
    assert code == 130
    assert b"Traceback" not in err


def test_interrupted_twice(start: Start, talkative: str) -> None:
    """Would catch: a second Ctrl-C that ends in a traceback or another status."""
    process = start("run", talkative, *ENDLESS)
    until_it_talks(process)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    code, _, err = ended(process)
    assert code == 130
    assert b"Traceback" not in err


MOMENTS = ("tinychat.cli.options", "tokenizers", "tinychat.engine.thread", "torch._C", "torch", "tinychat.models.cache")
"""Modules whose import tells how far a command has come."""


@pytest.mark.parametrize(
    ("module", "number", "status"),
    [
        *((module, signal.SIGINT, 130) for module in MOMENTS),
        # Before the engine has a thread, and while that thread starts torch; both signals leave by the same way.
        ("tokenizers", signal.SIGTERM, 143),
        ("torch", signal.SIGTERM, 143),
    ],
)
def test_stopped_while_starting(start: Start, talkative: str, module: str, number: int, status: int) -> None:
    """Would catch: a traceback, an abort or a wait when a command is stopped as it has just imported something."""
    process = start("run", talkative, *ENDLESS, python=("-X", "importtime"))
    assert process.stderr is not None
    assert any(line.split(b"|")[-1].strip() == module.encode() for line in process.stderr)
    process.send_signal(number)
    began = time.monotonic()
    code, out, err = ended(process)
    assert code == status, err
    assert time.monotonic() - began < QUICK
    assert b"Traceback" not in err
    assert out == b""


def test_stopped_while_downloading(
    start: Start, loopback_hub: HubForTests, environment: dict[str, str], gpt2_folder: Path
) -> None:
    """Would catch: a download that goes on, waits for its network, or leaves half a file."""
    hub = loopback_hub.server
    hub.fault("GET", "/storage/*", faults.stalled_body)
    process = start("run", "gpt2", "hi", env=loopback_hub.environment | environment)
    until(lambda: hub.asked("GET", "/storage/"))
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    code, out, err = ended(process)
    assert code == 130, err
    assert time.monotonic() - began < QUICK + 1
    assert out == b""
    assert b"Traceback" not in err


def test_a_reader_that_leaves(start: Start, talkative: str) -> None:
    """Would catch: `| head -1` that ends in a traceback or goes on computing, unseen."""
    process = start("run", talkative, *ENDLESS)
    until_it_talks(process)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    err = process.stderr.read()
    assert process.wait(timeout=60) == 0, err
    assert b"Traceback" not in err
    assert b"BrokenPipe" not in err


def test_a_reader_that_never_was(start: Start, vocabulary_folder: str, tmp_path: Path) -> None:
    """Would catch: an error in place of status 0 where nobody reads help or a table."""
    (tmp_path / "text").write_text("hello " * 50_000)
    for words in (("--help",), ("tokenize", vocabulary_folder)):
        reader, writer = os.pipe()
        os.close(reader)
        with (tmp_path / "text").open("rb") as text:
            process = start(*words, stdin=text, stdout=writer)
        os.close(writer)
        code, _, err = ended(process)
        assert (code, err) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_full_disk(start: Start, vocabulary_folder: str) -> None:
    """Would catch: output lost with status 0, or a traceback at the very end."""
    with Path("/dev/full").open("wb") as full:
        code, _, err = ended(start("tokenize", vocabulary_folder, "hello", "--ids", stdout=full))
    assert code == 1
    assert err == b"The output can't be written: No space left on device.\n"


def test_streams_that_are_closed(start: Start, vocabulary_folder: str, tmp_path: Path) -> None:
    """Would catch: a file written by accident because it got a closed stream's number, or a crash."""

    def without_streams() -> None:
        os.close(0)
        os.close(1)
        os.close(2)

    process = start("tokenize", vocabulary_folder, "hello", preexec_fn=without_streams)
    assert ended(process)[0] == 0


def test_ignored_signals_stay_ignored(start: Start, talkative: str) -> None:
    """Would catch: a command under nohup that ends with its terminal all the same."""

    def nohup() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    process = start("run", talkative, *ENDLESS, preexec_fn=nohup)
    until_it_talks(process)
    process.send_signal(signal.SIGHUP)
    until_it_talks(process)
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == 143
