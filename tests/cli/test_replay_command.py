"""`run --record` and `replay` without a screen: the file, the text, and the verdict of the model."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from ended_command import Command

from tinychat.engine.recorded import read
from tinychat.protocol import TokenEmitted

SAID = ("Hello there", "-n", "8", "--seed", "5", "-t", "1.2")


def record(tinychat: Command, model: Path, file: Path, *more: str) -> str:
    """Record a reply; return what it printed."""
    ended = tinychat("run", str(model), *SAID, "--record", str(file), *more)
    assert ended.status == 0, ended.stderr
    return ended.stdout.decode()


def test_a_recorded_reply_is_the_same_and_can_be_read_and_checked(
    tinychat: Command, gpt2_folder: Path, tmp_path: Path
) -> None:
    """Would catch: a recording that changes the reply, lacks its ids or its draws, or isn't equal to itself."""
    file = tmp_path / "chat.jsonl"
    plain = tinychat("run", str(gpt2_folder), *SAID, "--json")
    said = record(tinychat, gpt2_folder, file)
    done = plain.lines[-1]
    assert said.rstrip("\n") == done["text"].rstrip("\n")
    tokens = [entry.said for entry in read(file).entries if isinstance(entry.said, TokenEmitted)]
    assert [token.token_id for token in tokens] == [line["id"] for line in plain.lines if line["type"] == "token"]
    assert all(token.draw is not None and token.logprob is not None for token in tokens)
    text = tinychat("replay", str(file))
    assert (text.status, text.stderr) == (0, "")
    assert text.stdout.decode() == f"you:\nHello there\n\nrepo:\n{done['text']}\n"
    checked = tinychat("replay", str(file), "--check", "--model", str(gpt2_folder))
    assert (checked.status, checked.stdout) == (0, b"equal: 8 tokens in 1 reply\n")


def test_what_differs_is_said_and_is_a_failure(tinychat: Command, gpt2_folder: Path, tmp_path: Path) -> None:
    """Would catch: a check that is always content; one that stops at "differs"."""
    file = tmp_path / "chat.jsonl"
    record(tinychat, gpt2_folder, file)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    token = [line["event"] for line in lines if line.get("event", {}).get("type") == "TokenEmitted"][4]
    token["token_id"] += 1
    ready = next(line["event"]["info"] for line in lines if line.get("event", {}).get("type") == "ModelReady")
    ready["fingerprint"] = "ab" * 32
    file.write_text("\n".join(map(json.dumps, lines)) + "\n")
    ended = tinychat("replay", str(file), "--check", "--model", str(gpt2_folder))
    assert ended.status == 1
    first, last = ended.stdout.decode().splitlines()
    assert first.startswith("reply 1 differs at token 5 of 8. Then it was ")
    assert last == "different: 1 of 1 reply, 8 tokens in all"
    assert "was made with repo (file abababababab), this is repo (file " in ended.stderr


def test_a_file_is_never_written_over(tinychat: Command, gpt2_folder: Path, tmp_path: Path) -> None:
    """Would catch: a recording lost to the second run of the same line."""
    file = tmp_path / "chat.jsonl"
    file.write_text("there before")
    ended = tinychat("run", str(gpt2_folder), *SAID, "--record", str(file))
    assert (ended.status, ended.stdout) == (1, b"")
    assert "is there already. Choose another file for --record." in ended.stderr
    assert file.read_text() == "there before"


@pytest.mark.parametrize(
    ("words", "status", "sentence"),
    [
        (("none.jsonl",), 1, "none.jsonl can't be read: No such file or directory."),
        (("other.txt",), 1, "other.txt is no recording of a chat. `tinychat run --record FILE` makes one."),
        (("other.txt", "--check"), 1, "is no recording of a chat"),
        (("chat.jsonl", "--check"), 1, "a file of the name repo. `--model PATH` says where it is."),
        (("chat.jsonl", "--model", "gpt2"), 2, "--model has no place where there is no screen."),
        (("chat.jsonl", "--view", "nothing"), 2, "--view is 'nothing'"),
        (("empty.jsonl", "--check"), 1, "holds no reply that could be made again"),
    ],
)
def test_what_can_t_be_played_is_a_sentence(
    tinychat: Command,
    gpt2_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    status: int,
    sentence: str,
) -> None:
    """Would catch: a traceback, a wrong exit status, or a model that a stranger's file has fetched."""
    monkeypatch.chdir(tmp_path)
    Path("other.txt").write_text("Dear diary\n")
    record(tinychat, gpt2_folder, Path("chat.jsonl"))
    Path("empty.jsonl").write_text(Path("chat.jsonl").read_text().splitlines()[0] + "\n")
    ended = tinychat("replay", *words)
    assert (ended.status, ended.stdout) == (status, b"")
    assert sentence in ended.stderr


def test_a_killed_chat_can_be_read_up_to_there(
    tinychat: Command, start: Callable[..., subprocess.Popen[bytes]], talkative: str, tmp_path: Path
) -> None:
    """Would catch: `kill -9` that takes the recording with it, and silence about what is missing."""
    file = tmp_path / "chat.jsonl"
    process = start("run", talkative, "Hello", "-t", "0", "-n", "50000", "--record", str(file))
    end = time.monotonic() + 120
    while not (file.exists() and file.read_bytes().count(b'"TokenEmitted"') > 20):
        assert time.monotonic() < end
        assert process.poll() is None, process.communicate()
    process.send_signal(signal.SIGKILL)
    process.wait()
    ended = tinychat("replay", str(file))
    assert ended.status == 0
    assert ended.stdout.startswith(b"you:\nHello\n\nrepo:\n")
    assert "breaks off" in ended.stderr
    assert len([entry for entry in read(file).entries if isinstance(entry.said, TokenEmitted)]) > 20


@pytest.mark.model
def test_the_real_model_says_it_again(tinychat: Command, smollm2_path: Path, tmp_path: Path) -> None:
    """Would catch: anything by which the packed products, the guesses or the caches change a reply from run to run."""
    for name, more in (("plain", ()), ("guessed", ("--speculate", "4"))):
        file = tmp_path / f"{name}.jsonl"
        words = ("Count from one to twenty, twice.", "-n", "60", "-t", "0.7", *more)
        assert tinychat("run", str(smollm2_path), *words, "--record", str(file)).status == 0
        checked = tinychat("replay", str(file), "--check", "--model", str(smollm2_path))
        assert checked.status == 0, checked.stdout
        assert checked.stdout.startswith(b"equal: ")
