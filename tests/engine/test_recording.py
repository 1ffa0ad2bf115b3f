"""Recordings: the file beside an engine, and reading it again, whoever made it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tinychat.catalog import FileSource, ModelCard
from tinychat.engine.recorded import Recording, read
from tinychat.engine.recording import FLUSH_EVERY, RecordedEngine
from tinychat.errors import TinychatError
from tinychat.protocol import (
    CacheStats,
    Command,
    EngineFailed,
    Event,
    Generate,
    LayerCache,
    LoadModel,
    MemoryStats,
    Message,
    Notice,
    Pace,
    TokenEmitted,
)

HEADER = '{"tinychat-recording":1,"tinychat":"0.1.0","began":"2026-01-01T00:00:00+00:00"}\n'
PACE = '{"at":1.5,"command":{"type":"Pace"}}\n'
END = '{"at":2,"end":true}\n'


class Fake:
    """An engine that gives what it is told to."""

    def __init__(self) -> None:
        self.sent: list[Command] = []
        self.outbox: list[Event] = []
        self.closed = False

    def send(self, command: Command) -> None:
        self.sent.append(command)

    def poll(self, timeout: float = 0.0) -> list[Event]:
        events, self.outbox = self.outbox, []
        return events

    def close(self, timeout: float = 0.3) -> bool:
        self.closed = True
        return True


class Clock:
    """Seconds, as a test wants them."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


TOKEN = TokenEmitted(1, 0, 7, b"\xff[b]", "\x1b]52;c;aGk=\x07", draw=0.25, logprob=-1.5)
GENERATE = Generate(1, (Message("user", "Hi \ud800 [bold]"),))


def test_everything_comes_back_in_order(tmp_path: Path) -> None:
    """Would catch: an event lost on the way to the screen or to the file, another order, another time."""
    path, fake, clock = tmp_path / "chat.jsonl", Fake(), Clock()
    engine = RecordedEngine(fake, path, clock)
    clock.now += 1.25
    engine.send(GENERATE)
    fake.outbox = [TOKEN]
    clock.now += 1
    assert engine.poll() == [TOKEN]
    assert fake.sent == [GENERATE]
    fake.outbox = [Notice("the last")]
    assert engine.close()
    assert fake.closed
    recording = read(path)
    assert [(entry.at, entry.said) for entry in recording.entries] == [
        (1.25, GENERATE),
        (2.25, TOKEN),
        (2.25, Notice("the last")),
    ]
    assert recording.problem == ""
    assert path.read_bytes().isascii()


def test_an_existing_file_is_never_written_over(tmp_path: Path) -> None:
    """Would catch: yesterday's recording gone."""
    path = tmp_path / "chat.jsonl"
    path.write_text("yesterday's")
    with pytest.raises(TinychatError, match=r"is there already\. Choose another file"):
        RecordedEngine(Fake(), path)
    assert path.read_text() == "yesterday's"
    with pytest.raises(TinychatError, match="can't be written"):
        RecordedEngine(Fake(), tmp_path / "no folder" / "chat.jsonl")


def test_a_full_disk_is_told_once_and_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch: a chat that dies of its recording, or goes on as if it were kept."""
    fake = Fake()
    engine = RecordedEngine(fake, tmp_path / "chat.jsonl")

    class Full:
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

        def flush(self) -> None: ...
        def close(self) -> None: ...

    engine._recorder._file.close()
    monkeypatch.setattr(engine._recorder, "_file", Full())
    engine.send(GENERATE)
    fake.outbox = [TOKEN]
    told = engine.poll()
    assert told[0] == TOKEN
    assert "No space left on device. The recording ends there." in told[1].text
    assert engine.poll() == []
    assert engine.close()


def test_nothing_of_this_machine_is_told(tmp_path: Path) -> None:
    """Would catch: a home folder or a traceback in a file that people send to each other."""
    path = tmp_path / "chat.jsonl"
    card = ModelCard("mine", FileSource("/home/ada/secret/mine.gguf"))
    fake = Fake()
    engine = RecordedEngine(fake, path)
    engine.send(LoadModel(1, card, draft=card))
    fake.outbox = [EngineFailed("It failed.", "Try.", "Traceback /home/ada/x.py")]
    assert engine.poll()[0].detail, "the log wants it"
    engine.close()
    assert "ada" not in path.read_text()
    assert read(path).entries[0].said.card.source == FileSource("mine.gguf")


def test_sizes_are_kept_as_often_as_they_are_drawn(tmp_path: Path) -> None:
    """Would catch: thirty layers ten times a second; and the last size lost."""
    path, fake, clock = tmp_path / "chat.jsonl", Fake(), Clock()
    engine = RecordedEngine(fake, path, clock)
    layers = (LayerCache(1, 2, 3, 4, "bf16"),) * 30
    for reused in range(20):
        clock.now += 0.1
        fake.outbox = [CacheStats(layers, reused), MemoryStats(1, 2, 3, 4, reused)]
        assert len(engine.poll()) == 2
    engine.close()
    kept = [entry.said for entry in read(path).entries if isinstance(entry.said, CacheStats)]
    assert 4 <= len(kept) <= 6
    assert kept[-1].reused_tokens == 19
    assert len({id(layer) for stats in kept for layer in stats.layers}) == 1, "equal layers are one object"


def test_it_is_on_the_disk_soon(tmp_path: Path) -> None:
    """Would catch: a file that is written when its buffer is full, and lacks minutes after a kill."""
    path, clock = tmp_path / "chat.jsonl", Clock()
    engine = RecordedEngine(Fake(), path, clock)
    engine.send(GENERATE)
    clock.now += FLUSH_EVERY
    engine.poll()
    assert read(path).entries[0].said == GENERATE
    assert "breaks off" in read(path).problem
    engine.close()


KILLED = """
import sys, time
from pathlib import Path
from tinychat.engine.recording import RecordedEngine
from tinychat.protocol import TokenEmitted
class Talks:
    n = 0
    def poll(self, timeout=0.0):
        time.sleep(0.01)
        self.n += 1
        return [TokenEmitted(1, self.n - 1, 5, b" word", " word")]
engine = RecordedEngine(Talks(), Path(sys.argv[1]))
while True:
    engine.poll()
    print(engine._engine.n, flush=True)
"""


def test_a_killed_program_leaves_all_but_the_last_moment(tmp_path: Path) -> None:
    """Would catch: `kill -9` that takes the recording with it."""
    path = tmp_path / "chat.jsonl"
    root = str(Path(__file__).parents[2])
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": root}
    )
    with process:
        assert process.stdout is not None
        while int(process.stdout.readline()) < 100:
            pass
        process.send_signal(signal.SIGKILL)
        said = 100 + len(process.stdout.read().split())
    recording = read(path)
    assert "breaks off" in recording.problem
    assert said - 60 < len(recording.entries) <= said + 1
    assert [entry.said.index for entry in recording.entries] == list(range(len(recording.entries)))


def written(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "made.jsonl"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize("cut", range(1, len(PACE), 3))
def test_a_line_that_breaks_off_is_left_out_and_said(tmp_path: Path, cut: int) -> None:
    """Would catch: half a line that makes the whole recording worthless."""
    recording = read(written(tmp_path, HEADER + PACE + PACE[:cut]))
    assert [entry.said for entry in recording.entries] == [Pace()]
    assert "breaks off in line 3" in recording.problem


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (b"", "is no recording of a chat"),
        (b"\x00\xff\xfe", "is no recording of a chat"),
        ("[" * 100_000, "is no recording of a chat"),
        ("{}\n", "is no recording of a chat"),
        ('"tinychat-recording"\n', "is no recording of a chat"),
        ('{"tinychat-recording":99}\n', "another kind"),
        (HEADER + "[" * 100_000 + "\n" + END, "line 2: it is no JSON"),
        (HEADER + PACE + "nonsense\n" + PACE, "line 3: it is no JSON"),
        (HEADER + "[]\n" + END, "line 2: it is no JSON object"),
        (HEADER + "{}\n" + END, "line 2"),
        (HEADER + '{"at":1,"event":{"type":"[bold]\\u001b]52"}}\n' + END, "nothing goes by the type"),
        (HEADER + '{"at":-1,"command":{"type":"Pace"}}\n' + END, "-1 is no time"),
        (HEADER + '{"at":1e999,"command":{"type":"Pace"}}\n' + END, "line 2"),
        (HEADER + '{"at":{"float":"nan"},"command":{"type":"Pace"}}\n' + END, "is no time"),
        (HEADER + '{"at":' + "9" * 5000 + ',"command":{"type":"Pace"}}\n' + END, "line 2"),
        (HEADER + '{"at":1,"command":{"type":"Notice","text":""}}\n' + END, "nothing goes by the type 'Notice'"),
        (HEADER + '{"at":1,"event":{"type":"Notice","text":"' + "x" * 2**24 + '"}}\n', "more than 16,777,216 bytes"),
    ],
    ids=range(17),
)
def test_what_is_no_recording_is_refused_with_a_sentence(tmp_path: Path, text: Any, sentence: str) -> None:
    """Would catch: a traceback, a stack that runs over, a file that is silently played in part."""
    with pytest.raises(TinychatError) as refused:
        read(written(tmp_path, text))
    assert sentence in str(refused.value)
    assert "\x1b" not in str(refused.value)
    assert refused.value.remedy


def test_a_file_that_isn_t_there(tmp_path: Path) -> None:
    """Would catch: a traceback for a mistyped name, or for a folder."""
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(TinychatError, match="can't be read"):
            read(path)


def test_reading_a_long_recording_takes_seconds(tmp_path: Path) -> None:
    """Would catch: a reader that goes through the file once a line."""
    token = '{"at":1,"event":{"type":"TokenEmitted","turn_id":1,"index":0,"token_id":3,"piece":"a","text":"a"}}\n'
    began = time.monotonic()
    recording: Recording = read(written(tmp_path, HEADER + token * 20_000 + json.dumps({"at": 1, "end": True}) + "\n"))
    assert len(recording.entries) == 20_000
    assert time.monotonic() - began < 20
