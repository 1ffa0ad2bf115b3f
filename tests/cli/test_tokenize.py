"""`tinychat tokenize`, with GPT-2's real vocabulary and without any weights."""

from __future__ import annotations

import json
from pathlib import Path

import families
import gguf
import pytest
from ended_command import Command
from hypothesis import given, settings
from hypothesis import strategies as st
from vocabulary import gguf_metadata

from tinychat.cli.tokenize import _decoded
from tinychat.text.tokenizer import Tokenizer

KEYS = ["id", "piece", "bytes", "start", "end", "special"]


def test_ids(tinychat: Command, vocabulary_folder: str) -> None:
    """Would catch: ids that are not GPT-2's own (15496 11 995 is the field's favourite example)."""
    assert tinychat("tokenize", vocabulary_folder, "Hello, world", "--ids").json == [15496, 11, 995]


@pytest.mark.parametrize("text", ["", "a\r\nb\rc\n", " x ", "🦙 é 日本\n", "\t\x1b[2J\x00"])
def test_stdin_is_taken_byte_for_byte(tinychat: Command, vocabulary_folder: str, text: str) -> None:
    """Would catch: line ends changed, a last newline lost, control characters dropped."""
    pieces = tinychat("tokenize", vocabulary_folder, "--json", stdin=text.encode()).json
    assert all(list(piece) == KEYS for piece in pieces)
    assert b"".join(bytes.fromhex(piece["bytes"]) for piece in pieces) == text.encode()
    ids = tinychat("tokenize", vocabulary_folder, "--ids", stdin=text.encode())
    assert ids.json == [piece["id"] for piece in pieces]
    assert tinychat("tokenize", vocabulary_folder, "--decode", stdin=ids.stdout).stdout == text.encode()


def test_offsets_are_of_bytes(tinychat: Command, vocabulary_folder: str) -> None:
    """Would catch: offsets of characters, where a llama is four bytes."""
    pieces = tinychat("tokenize", vocabulary_folder, "🦙b", "--json").json
    assert [(piece["start"], piece["end"]) for piece in pieces][-1] == (4, 5)
    assert all(piece["end"] - piece["start"] == len(piece["bytes"]) // 2 for piece in pieces)


def test_bytes_that_are_no_text(tinychat: Command, vocabulary_folder: str) -> None:
    """Would catch: an argument or a stdin that is no UTF-8 replaced by U+FFFD."""
    wanted = [b"caf".hex(), b"\xe9".hex()]
    for ended in (
        tinychat("tokenize", vocabulary_folder, "--json", stdin=b"caf\xe9"),
        tinychat("tokenize", vocabulary_folder, "caf\udce9", "--json"),
    ):
        assert "".join(piece["bytes"] for piece in ended.json) == "".join(wanted)


def test_typed_control_tokens_are_text(tinychat: Command, vocabulary_folder: str) -> None:
    """Would catch: `<|endoftext|>` in a person's text that becomes the token that ends texts."""
    assert 50256 not in tinychat("tokenize", vocabulary_folder, "a<|endoftext|>b", "--ids").json
    pieces = tinychat("tokenize", vocabulary_folder, "a<|endoftext|>b", "--json", "--special").json
    assert [(piece["id"], piece["special"]) for piece in pieces] == [(64, False), (50256, True), (65, False)]
    ended = tinychat("tokenize", vocabulary_folder, "--special", stdin=b"\xff")
    assert (ended.status, ended.stderr) == (2, "--special needs UTF-8, but byte 0 is 0xFF.\n")


def test_batch(tinychat: Command, vocabulary_folder: str) -> None:
    """Would catch: lists out of order, lone surrogates that crash, special tokens that act unasked."""
    texts = ["Hello", "", "a<|endoftext|>b", "\ud800"]
    lists = tinychat("tokenize", vocabulary_folder, "--batch", stdin=json.dumps(texts).encode()).json
    assert lists[:2] == [[15496], []]
    assert 50256 not in lists[2]
    assert len(lists) == 4
    acting = tinychat("tokenize", vocabulary_folder, "--batch", "--special", stdin=json.dumps(texts).encode()).json
    assert acting[2] == [64, 50256, 65]


@pytest.mark.parametrize(
    ("words", "stdin", "says"),
    [
        (("--decode",), b"[50257]", "The id 50257 is out of range: this vocabulary has 0 to 50256."),
        (("--decode",), b"[-1]", "The id -1 is out of range"),
        (("--decode",), b"[true]", "--decode wants a JSON list of ids"),
        (("--decode",), b"[1.0]", "--decode wants a JSON list of ids"),
        (("--decode",), b"1 2", "not JSON, which has to be a list of ids"),
        (("--batch",), b'["a", 1]', "--batch wants a JSON list of strings."),
        (("--batch",), b"{}", "--batch wants a JSON list of strings."),
        (("--batch",), b"[" * 100_000, "not JSON, which has to be a list of strings"),
    ],
)
def test_what_is_no_input(
    tinychat: Command, vocabulary_folder: str, words: tuple[str, ...], stdin: bytes, says: str
) -> None:
    """Would catch: an id of -1 that decodes as the last token, or a traceback of the JSON reader."""
    ended = tinychat("tokenize", vocabulary_folder, *words, stdin=stdin)
    assert ended.status == 2
    assert says in ended.stderr
    assert ended.stdout == b""


def test_the_table_shows_everything_and_styles_nothing(tinychat: Command, vocabulary_folder: str) -> None:
    """Would catch: escape codes in a pipe, of our own or from the text; pieces that can't be told apart."""
    ended = tinychat("tokenize", vocabulary_folder, "a b\x1b[2J")
    assert "\x1b" not in ended.text
    assert ended.text.startswith("a|␣b|␛|[|2|J\n")
    assert ended.text.endswith("6 tokens, 7 bytes\n")


def test_bos(tinychat: Command, vocabulary_folder: str, tmp_path: Path) -> None:
    """Would catch: --bos that adds what the model isn't fed, or covers bytes that aren't there."""
    ended = tinychat("tokenize", vocabulary_folder, "a", "--bos", "--ids")
    assert ended.json == [64]
    assert "is fed no token before a text" in ended.stderr
    config = json.loads(Path(vocabulary_folder, "tokenizer_config.json").read_text())
    config |= {"bos_token": "<|endoftext|>", "add_bos_token": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer.json").write_bytes(Path(vocabulary_folder, "tokenizer.json").read_bytes())
    pieces = tinychat("tokenize", str(tmp_path), "a", "--bos", "--json").json
    assert pieces[0] == {"id": 50256, "piece": "", "bytes": "", "start": 0, "end": 0, "special": True}
    assert pieces[1]["id"] == 64
    assert tinychat("tokenize", str(tmp_path), "--bos", "--batch", stdin=b'["a"]').json == [[50256, 64]]


def test_the_merges_are_told(tinychat: Command, vocabulary_folder: str, tmp_path: Path) -> None:
    """Would catch: steps out of order, ranks of other merges, columns that wide characters push aside."""
    ended = tinychat("tokenize", vocabulary_folder, " the日\x1b[2J", "--explain")
    assert "\x1b" not in ended.text
    assert ended.text.splitlines()[:13] == [
        "␣the日|␛[|2|J",
        "",
        "Of all neighbours that a merge joins, the pair with the lowest rank goes first; of equals, the leftmost.",
        "",
        "␣the日",
        "    rank  pair       symbols",
        "                     ␣ t h e <E6> <97> <A5>",
        "       0  ␣ t        ␣t h e <E6> <97> <A5>",
        "       2  h e        ␣t he <E6> <97> <A5>",
        "       6  ␣t he      ␣the <E6> <97> <A5>",
        "  33,512  <E6> <97>  ␣the <E6 97> <A5>",
        "          ids        262 33768 98",
        "",
    ]
    families.load("tinyllama", tmp_path)
    told = tinychat("tokenize", str(tmp_path), "日本 the", "--explain").text
    assert "     5  ␣t he  ␣ 日 本 ␣the\n   145  ␣ 日   ␣日 本 ␣the\n        ids    " in told


def test_the_merges_as_an_object(tinychat: Command, vocabulary_folder: str) -> None:
    """Would catch: the object's keys changed under those who read it, or tokens other than those of --ids."""
    text = "Unbelievable 🦙<|endoftext|>"
    told = tinychat("tokenize", vocabulary_folder, text, "--explain", "--json", "--special").json
    assert list(told) == ["by_score", "normalized", "splits", "left_out"]
    assert [token["id"] for split in told["splits"] for token in split["tokens"]] == tinychat(
        "tokenize", vocabulary_folder, text, "--ids", "--special"
    ).json
    first = told["splits"][0]
    assert list(first) == ["kind", "text", "bytes", "lost", "symbols", "merges", "tokens", "note"]
    assert list(first["symbols"][0]) == ["id", "piece", "bytes", "fallback"]
    assert list(first["merges"][0]) == ["at", "id", "rank", "score", "ranks"]
    assert told["splits"][-1]["kind"] == "control"


def test_what_no_merge_tells_is_said(tinychat: Command, vocabulary_folder: str, tmp_path: Path) -> None:
    """Would catch: byte fallback, an added token, a space put before the text, a long text's rest without a word."""
    for name in ("gemma", "tinyllama"):
        families.load(name, tmp_path / name)
    gemma = tinychat("tokenize", str(tmp_path / "gemma"), "x<b>🦩", "--explain").text
    assert "\n<b>\n  An added token, found before the text is cut.\n" in gemma
    assert "\n  Byte fallback: characters that are no token begin as the tokens of their bytes.\n" in gemma
    assert "<F0> <9F> <A6> <A9>" in gemma
    spaced = tinychat("tokenize", str(tmp_path / "tinyllama"), "The", "--explain").text
    assert spaced.startswith("The text becomes: ␣The\n")
    long = tinychat("tokenize", vocabulary_folder, "--explain", stdin=b"ab " * 1000).text
    assert long.endswith(" more pieces are not explained: the text is too long.\n")


def test_explain_goes_with_few_flags(tinychat: Command, vocabulary_folder: str) -> None:
    """Would catch: a flag that is quietly without effect; bytes that are no text replaced."""
    for flag in ("--ids", "--bos", "--batch", "--decode"):
        ended = tinychat("tokenize", vocabulary_folder, "--explain", flag, stdin=b"[1]")
        assert (ended.status, ended.stdout) == (2, b"")
        assert "--explain" in ended.stderr
    ended = tinychat("tokenize", vocabulary_folder, "--explain", stdin=b"\xff")
    assert (ended.status, ended.stderr) == (2, "--explain needs UTF-8, but byte 0 is 0xFF.\n")


def test_a_gguf_file_without_tensors_will_do(tinychat: Command, tmp_path: Path) -> None:
    """Would catch: weights asked for where only words are wanted (vocabulary-only files)."""
    path = tmp_path / "vocabulary.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in gguf_metadata(chat=True).items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)  # type: ignore[arg-type]
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    ended = tinychat("tokenize", str(path), "hello there", "--ids")
    assert ended.status == 0
    assert tinychat("tokenize", str(path), "--decode", stdin=ended.stdout).stdout == b"hello there"
    messages = json.dumps([{"role": "user", "content": "hello"}]).encode()
    prompt = tinychat("prompt", str(path), "--messages", "-", stdin=messages)
    assert prompt.status == 0
    assert "hello" in prompt.text


@pytest.fixture(scope="module")
def tokenizer(vocabulary_folder: str) -> Tokenizer:
    return Tokenizer.from_folder(Path(vocabulary_folder))


@settings(deadline=None)
@given(st.text())
def test_decode_undoes_encode(tokenizer: Tokenizer, text: str) -> None:
    """Would catch: a space or a character that gets lost on the way there and back."""
    assert _decoded(tokenizer, tokenizer.encode(text)) == text.encode()
