"""One reply on stdout: exact text, JSON with exactly the promised keys, from models, pipes and a Hub."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ended_command import Command

from tinychat.cli.console import Results
from tinychat.cli.reply import Plain
from tinychat.protocol import TokenEmitted, TurnFinished

if TYPE_CHECKING:
    from conftest import HubForTests

GREEDY = ("-t", "0", "-n", "8")
READY = ["type", "model", "arch", "dtype", "head_dtype", "parameters", "context", "weights_bytes"]
TOKEN = ["type", "id", "text", "logprob", "rank", "entropy", "top"]
DONE = [
    *("type", "reason", "prompt_tokens", "reused_tokens", "new_tokens", "ttft_s", "prefill_tok_s", "decode_tok_s"),
    *("seed", "kernel", "drafted", "accepted", "ids", "text"),
]


def finished(text: str) -> TurnFinished:
    return TurnFinished(1, "eos", (1,), text, "", 1, 0, 1, 0.1, 0.1, 0.1, 7, "torch")


def test_plain_text_is_the_answer_whole(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """Would catch: held-back text lost at the end, thinking in the answer, no newline after it."""
    printer = Plain(Results())
    for text, thinking in (("Hel", ""), ("", "hm"), ("lo \x1b", "")):
        printer.token(TokenEmitted(1, 0, 5, b"", text, thinking))
    printer.done(finished("Hello \x1b\nUs"))
    assert capfdbinary.readouterr().out == b"Hello \x1b\nUs\n"


def test_json_is_as_promised(tinychat: Command, gpt2_folder: Path) -> None:
    """Would catch: a key that is missing, renamed or new; figures that contradict each other."""
    ended = tinychat("run", str(gpt2_folder), "Hello there", "--json", *GREEDY, "--seed", "5")
    assert ended.status == 0
    ready, *tokens, done = ended.lines
    assert list(ready) == READY
    assert all(list(token) == TOKEN for token in tokens)
    assert list(done) == DONE
    assert ready["arch"] == "GPT-2"
    assert ready["context"] == 128
    assert (done["reason"], done["new_tokens"], done["seed"]) == ("length", 8, 5)
    assert done["reused_tokens"] == 0
    assert [token["id"] for token in tokens] == done["ids"]
    assert done["text"].startswith("".join(token["text"] for token in tokens))
    for token in tokens:
        assert len(token["top"]) == 5
        assert token["rank"] == 1
        assert token["top"][0][0] == token["id"]
        assert math.exp(token["logprob"]) == pytest.approx(token["top"][0][2], rel=1e-4)
        assert [p for _, _, p in token["top"]] == sorted((p for _, _, p in token["top"]), reverse=True)
        assert 0 <= token["entropy"] <= math.log(50257)
    assert done["ttft_s"] > 0
    assert done["decode_tok_s"] > 0


def test_text_and_json_tell_the_same(tinychat: Command, gpt2_folder: Path) -> None:
    """Would catch: a reply that depends on how it is printed; stderr's notes among the results."""
    plain = tinychat("run", str(gpt2_folder), "Hello", *GREEDY)
    done = tinychat("run", str(gpt2_folder), "Hello", *GREEDY, "--json").lines[-1]
    assert plain.stdout == (done["text"] + "\n").encode()
    assert "is a base model" in plain.stderr


@pytest.mark.parametrize(
    ("prompt", "stdin", "same_as"),
    [
        (None, b"one\r\ntwo\rthree\n", "one\ntwo\nthree"),
        ("one", b"two\n", "one\n\ntwo"),
        ("one\r\n", b"", "one\n"),
        (None, b"\xef\xbb\xbfone", "one"),
    ],
)
def test_prompt_and_pipe(tinychat: Command, gpt2_folder: Path, prompt: str | None, stdin: bytes, same_as: str) -> None:
    """Would catch: carriage returns fed to the model, the blank line missing, a byte order mark in the prompt."""
    words = ["run", str(gpt2_folder), *([] if prompt is None else [prompt]), "--raw", "--json", *GREEDY]
    piped = tinychat(*words, stdin=stdin).lines[-1]
    typed = tinychat("run", str(gpt2_folder), same_as, "--raw", "--json", *GREEDY).lines[-1]
    assert (piped["prompt_tokens"], piped["ids"]) == (typed["prompt_tokens"], typed["ids"])
    expected = tinychat("tokenize", str(gpt2_folder), same_as, "--ids").json
    assert piped["prompt_tokens"] == len(expected)


def test_raw_continues_even_nothing(tinychat: Command, gpt2_folder: Path) -> None:
    """Would catch: a model that can't begin a text of its own."""
    ended = tinychat("run", str(gpt2_folder), "", "--raw", "--json", *GREEDY)
    assert ended.status == 0
    assert ended.lines[-1]["prompt_tokens"] == 1


def test_flags_reach_the_sampler(tinychat: Command, gpt2_folder: Path) -> None:
    """Would catch: a seed that changes nothing or isn't kept, sampler flags lost on the way to the engine."""

    def ids(*flags: str) -> list[int]:
        done = tinychat("run", str(gpt2_folder), "Hello", "--json", "-n", "12", *flags).lines[-1]
        return list(done["ids"])

    warm = ("-t", "2", "-k", "0", "-p", "1")
    assert ids(*warm, "--seed", "1") == ids(*warm, "--seed", "1") != ids(*warm, "--seed", "2")
    assert ids(*warm, "--seed", "1", "-k", "1") == ids(*warm, "--seed", "2", "-p", "0") == ids("-t", "0")


def test_stop_strings(tinychat: Command, gpt2_folder: Path) -> None:
    """Would catch: a stop string that is printed, or one of several that is passed over."""
    text = tinychat("run", str(gpt2_folder), "Hello", *GREEDY, "--json").lines[-1]["text"]
    stop = text[len(text) // 2 :][:3]
    ended = tinychat("run", str(gpt2_folder), "Hello", *GREEDY, "--stop", "never said", "--stop", stop)
    assert ended.text == text[: text.index(stop)] + "\n"


def test_a_base_model_says_where_it_stops(tinychat: Command, gpt2_folder: Path) -> None:
    """Would catch: a reply that ends at a limit nobody set, without a word (here: the context's)."""
    ended = tinychat("run", str(gpt2_folder), "Hello", "-t", "0")
    assert "note: The context of 128 tokens is full; the reply stops there." in ended.stderr


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (("--context", "129"), 2, "--context 129 is more than the 128 tokens repo was made for."),
        (("--context", "16"), 1, "but the context holds 16."),
    ],
)
def test_what_the_engine_refuses(
    tinychat: Command, gpt2_folder: Path, words: tuple[str, ...], status: int, says: str
) -> None:
    """Would catch: the engine's errors without their exit status or their remedy."""
    ended = tinychat("run", str(gpt2_folder), "Hello there, how are you today? " * 3, *words)
    assert ended.status == status
    assert says in ended.stderr
    assert ended.stdout == b""
    assert "Traceback" not in ended.stderr


def test_broken_files_are_sentences(tinychat: Command, gpt2_folder: Path, tmp_path: Path) -> None:
    """Would catch: a traceback for a download that was cut short, a pointer, or a model tinychat doesn't run."""
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in gpt2_folder.iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    weights = broken / "model.safetensors"
    whole = weights.read_bytes()
    for data, says in (
        (whole[: len(whole) // 2], "cut short"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        (b"", "empty file"),
    ):
        weights.write_bytes(data)
        ended = tinychat("run", str(broken), "hi")
        assert (ended.status, ended.stdout) == (1, b"")
        assert says in ended.stderr
    weights.write_bytes(whole)
    (broken / "config.json").write_text(json.dumps({"model_type": "bert", "architectures": ["BertForMaskedLM"]}))
    assert "BertForMaskedLM" in tinychat("run", str(broken), "hi").stderr


def run(words: list[str], environment: dict[str, str], **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Run a command as a process of its own."""
    return subprocess.run([sys.executable, "-m", "tinychat", *words], env=environment, capture_output=True, **options)


def test_gpt2_from_the_hub(loopback_hub: HubForTests, environment: dict[str, str]) -> None:
    """Would catch: anything between `tinychat run gpt2 "hello"` on a new machine and its reply; a second request."""
    environment = loopback_hub.environment | environment
    first = run(["run", "gpt2", "hello", *GREEDY], environment)
    assert first.returncode == 0, first.stderr
    assert len(first.stdout) > 1
    assert b"downloading gpt2" in first.stderr
    assert b"\r" not in first.stderr
    asked = len(loopback_hub.server.requests)
    assert asked
    again = run(["run", "gpt2", "hello", *GREEDY], environment)
    assert again.stdout == first.stdout
    assert len(loopback_hub.server.requests) == asked


def test_the_hub_can_not_be_reached(loopback_hub: HubForTests, environment: dict[str, str]) -> None:
    """Would catch: a traceback or a hang where there is no network, or no word of the model that needs no Hub."""
    loopback_hub.server.close()
    ended = run(["run", "gpt2", "hi"], loopback_hub.environment | environment)
    assert ended.returncode == 1
    assert b"can't be reached" in ended.stderr
    assert b"`tinychat run smollm2` needs no Hub" in ended.stderr
    assert b"Traceback" not in ended.stderr


@pytest.mark.model
def test_the_real_model(tinychat: Command, smollm2_path: Path) -> None:
    """Would catch: an engine that runs and talks nonsense."""
    ended = tinychat("run", str(smollm2_path), "What is the capital of France?", "-t", "0", "-n", "32")
    assert ended.status == 0
    assert "Paris" in ended.text


@pytest.mark.model
def test_the_real_model_as_json(tinychat: Command, smollm2_path: Path) -> None:
    """Would catch: an end id among the ids of a reply; one that isn't counted."""
    ready, *tokens, done = tinychat(
        "run", str(smollm2_path), "What is the capital of France?", "-t", "0", "--json"
    ).lines
    assert ready["parameters"] == 134_515_008
    assert done["reason"] == "eos"
    assert done["new_tokens"] == len(tokens) == len(done["ids"]) + 1
    assert tokens[-1]["text"] == ""
