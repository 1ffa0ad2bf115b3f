"""What is wrong with the words of a command is one sentence on stderr and status 2, before anything is fetched."""

from __future__ import annotations

from pathlib import Path

import pytest
from ended_command import Command


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--temperature", "nan"), "--temperature is nan, but has to be 0 to 5."),
        (("-t", "inf"), "--temperature is inf, but has to be 0 to 5."),
        (("-t", "-1"), "--temperature is -1, but has to be 0 to 5."),
        (("-t", "warm"), "--temperature is 'warm', but has to be a number, 0 to 5."),
        (("--top-k", "-1"), "--top-k is -1, but has to be 0 or more."),
        (("--top-k", "1.5"), "--top-k is 1.5, but has to be a whole number, 0 or more."),
        (("-k", "9" * 400), "--top-k is a number of 400 digits, but has to be 0 or more."),
        (("--top-p", "1.01"), "--top-p is 1.01, but has to be 0 to 1."),
        (("--min-p", "-0.1"), "--min-p is -0.1, but has to be 0 to 1."),
        (("--repetition-penalty", "0"), "--repetition-penalty is 0, but has to be above 0 to 5."),
        (("--frequency-penalty", "-2.5"), "--frequency-penalty is -2.5, but has to be -2 to 2."),
        (("--presence-penalty", "nan"), "--presence-penalty is nan, but has to be -2 to 2."),
        (("--seed", "-1"), "--seed is -1, but has to be 0 to 9223372036854775807."),
        (("--seed", str(2**63)), "--seed is 9223372036854775808, but has to be 0 to 9223372036854775807."),
        (("--max-tokens", "0"), "--max-tokens is 0, but has to be 1 to 2147483647."),
        (("--context", "1"), "--context is 1, but has to be 2 to"),
        (("--threads", "0"), "--threads is 0, but has to be 1 to 1024."),
        (("--order", "ours"), "--order is 'ours', but has to be one of transformers, llama.cpp."),
        (("--dtype", "fp16"), "--dtype is 'fp16', but has to be one of auto, fp32, bf16, int8, int4."),
        (("--head", "fp32"), "--head is 'fp32', but has to be one of auto, bf16, int8, int4."),
        (("--prefill-copy", "yes"), "--prefill-copy is 'yes', but has to be one of auto, always, never."),
        (("--stop", ""), "A stop string is empty"),
        (("--temprature", "1"), "No such option: --temprature"),
        (("--raw", "--system", "Be brief."), "--system has no place in --raw"),
        (("--raw", "--think"), "--think and --no-think have no place in --raw"),
        (("more", "words"), 'Put the prompt in quotes: tinychat run MODEL "PROMPT".'),
    ],
)
def test_run_names_what_is_wrong(tinychat: Command, words: tuple[str, ...], says: str) -> None:
    """Would catch: a NaN that reaches the sampler, a range that isn't told, a negative number read as an option."""
    ended = tinychat("run", "smollm2", "hi", *words)
    assert ended.status == 2
    assert says in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert ended.stdout == b""


def test_negative_values_are_values(tinychat: Command, tmp_path: Path) -> None:
    """Would catch: `-1` after an option taken for another option. No such model: status 1 means it passed."""
    ended = tinychat("run", f"{tmp_path}/none.gguf", "hi", "--frequency-penalty", "-1", "--presence-penalty", "-0.5")
    assert (ended.status, ended.stdout) == (1, b"")
    assert "There is no file or folder" in ended.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("run", "smolm2", "hi"), "There is no model called smolm2. Did you mean `smollm2`?"),
        (("run", "what is love"), 'Did you mean `tinychat run smollm2 "what is love"`?'),
        (("show", "org/none"), "org/none is not on this machine (or not all of it). `tinychat pull org/none`"),
    ],
)
def test_what_can_not_be_done_is_status_1(tinychat: Command, words: tuple[str, ...], says: str) -> None:
    """Would catch: an unknown model called a usage error, or one without its "did you mean"."""
    ended = tinychat(*words)
    assert ended.status == 1
    assert says in ended.stderr


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        ((), 2, "Commands:"),
        (("runn",), 2, "Did you mean 'run'?"),
        (("tokenize",), 2, "Missing argument 'MODEL'."),
        (("bench", "smollm2", "--new-tokens", "1"), 2, "--new-tokens is 1, but has to be 2 to"),
        (("tokenize", "smollm2", "x", "--ids", "--json"), 2, "--ids and --json can't go together."),
        (("tokenize", "smollm2", "1", "--decode", "--bos"), 2, "--decode goes the other way."),
        (("tokenize", "smollm2", "x", "--batch"), 2, "takes no TEXT."),
    ],
)
def test_other_commands(tinychat: Command, words: tuple[str, ...], status: int, says: str) -> None:
    """Would catch: a box or a traceback in place of a sentence."""
    ended = tinychat(*words)
    assert ended.status == status
    assert says in ended.stderr
    assert ended.stdout == b""
    assert "Traceback" not in ended.stderr
    assert not set("╭│╰\x1b") & set(ended.stderr)


@pytest.mark.parametrize("stdin", [b"", b"  \n"])
@pytest.mark.parametrize("words", [(), ("",), (" \n",)])
def test_nothing_to_say(tinychat: Command, words: tuple[str, ...], stdin: bytes) -> None:
    """Would catch: a model loaded only to answer nothing."""
    ended = tinychat("run", "smollm2", *words, stdin=stdin)
    assert ended.status == 2
    assert ended.stderr == 'The prompt is empty. Say something: `tinychat run smollm2 "PROMPT"`.\n'


def test_bytes_that_are_no_text(tinychat: Command) -> None:
    """Would catch: invalid UTF-8 replaced silently, or reported by its traceback."""
    ended = tinychat("run", "smollm2", stdin=b"caf\xe9")
    assert (ended.status, ended.stdout) == (1, b"")
    assert ended.stderr.startswith("stdin is not UTF-8: byte 3 is 0xE9.")
    ended = tinychat("run", "smollm2", "caf\udce9")
    assert (ended.status, ended.stderr) == (2, "PROMPT is not UTF-8.\n")


def test_foreign_text_in_errors_is_drawn_as_pictures(tinychat: Command) -> None:
    """Would catch: a name that clears the screen or writes the clipboard of whoever mistyped it."""
    ended = tinychat("run", "\x1b]52;c;aGk=\x07\x1b[2J\x9b31m", "hi")
    assert ended.status == 1
    assert "␛]52;c;aGk=␇␛[2J<U+009B>31m" in ended.stderr


@pytest.mark.parametrize("command", ["run", "tokenize", "prompt", "bench", "pull", "list", "show", "themes"])
def test_help_tells_of_every_command(tinychat: Command, command: str) -> None:
    """Would catch: a command that can't even describe itself."""
    ended = tinychat(command, "--help")
    assert ended.status == 0
    assert ended.text.startswith("Usage: ")
    assert "\x1b" not in ended.text


def test_version(tinychat: Command) -> None:
    """Would catch: a version that differs from the package's."""
    from tinychat import __version__

    ended = tinychat("--version")
    assert (ended.status, ended.text) == (0, f"tinychat {__version__}\n")


def test_unforeseen_errors_are_sentences(tinychat: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Would catch: a traceback shown to a person, or one that is lost."""

    def broken(_: object = None) -> None:
        raise ZeroDivisionError("seven")

    monkeypatch.setattr("tinychat.hub.installed", broken)
    ended = tinychat("list")
    assert ended.status == 1
    log = tmp_path / "state" / "tinychat" / "tinychat.log"
    assert "no sentence for: ZeroDivisionError: seven" in ended.stderr
    assert str(log) in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "raise ZeroDivisionError" in log.read_text()
    assert "Traceback" in tinychat("--debug", "list").stderr
