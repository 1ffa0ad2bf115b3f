"""The real SmolLM2 vocabulary, from its GGUF file.

The ids in smollm2_ids.jsonl are llama.cpp's, since transformers reads this file's tokenizer wrongly (it doesn't know
the cut named "smollm"). They were made once with llama-cpp-python 0.3.36, `Llama(path, vocab_only=True).tokenize(text,
add_bos=False, special=False)`, of strings that broke other tokenizers and of strings that `random.Random(20261129)` put
together from words and from characters of ten scripts; of 21,000 such strings none differed when the file was made.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, pre_tokenizers

from tinychat.text.bpe_walk import explain
from tinychat.text.detokenizer import Detokenizer
from tinychat.text.tokenizer import Tokenizer

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def metadata(smollm2_path: Path) -> dict[str, object]:
    """The keys as the reference package reads them; it takes two seconds."""
    from gguf import GGUFReader

    fields = GGUFReader(smollm2_path).fields
    return {key: field.contents() for key, field in fields.items() if key.startswith("tokenizer.")}


@pytest.fixture(scope="module")
def tokenizer(metadata: dict[str, object]) -> Tokenizer:
    return Tokenizer.from_gguf(metadata)


@pytest.fixture(scope="module")
def library(metadata: dict[str, object]) -> Library:
    """The same vocabulary put together by hand, cut as SmolLM2's own tokenizer.json does it."""
    tokens, merges = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.merges"]
    assert isinstance(tokens, list)
    assert isinstance(merges, list)
    pairs = [(merge[: (at := merge.find(" ", 1))], merge[at + 1 :]) for merge in merges]
    made = Library(models.BPE({token: i for i, token in enumerate(tokens)}, pairs))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    made.decoder = decoders.ByteLevel()
    return made


def stored() -> list[tuple[str, list[int]]]:
    lines = (Path(__file__).parent / "smollm2_ids.jsonl").read_text(encoding="utf-8").splitlines()
    return [(text, ids) for text, ids in map(json.loads, lines)]


def test_ids_are_llama_cpp_s(tokenizer: Tokenizer) -> None:
    """Text cut by another rule than the model was trained with: plausible replies, slightly worse."""
    assert [text for text, ids in stored() if tokenizer.encode(text) != ids] == []


@given(text=st.text(max_size=40))
@settings(deadline=None, max_examples=300)
def test_ids_are_those_of_the_model_s_own_pipeline(tokenizer: Tokenizer, library: Library, text: str) -> None:
    """As above, where nobody has looked."""
    assert tokenizer.encode(text) == library.encode(text).ids


@given(text=st.text(max_size=40))
@example("\x9f\U00065000:")
@settings(deadline=None, max_examples=100)
def test_the_walk_s_tokens_are_the_library_s_on_any_string(tokenizer: Tokenizer, text: str) -> None:
    """A merge told that the model doesn't take; bytes without a token, over which the next ones merge."""
    walk = explain(tokenizer, text)
    assert [token.token_id for split in walk.splits for token in split.tokens] == tokenizer.encode(text)
    assert b"".join(split.data for split in walk.splits) == text.encode()
    assert LOST.issuperset(b"".join(split.lost for split in walk.splits))
    assert {split.note for split in walk.splits} <= {""}


def test_the_walk_s_tokens_are_llama_cpp_s(tokenizer: Tokenizer) -> None:
    """As above, where the library could be wrong in the same way."""
    for text, ids in stored():
        walk = explain(tokenizer, text)
        assert [token.token_id for split in walk.splits for token in split.tokens] == ids


LOST = frozenset({0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, 0xC0, 0xC1, 0xF1, 0xF2, *range(0xF5, 0x100)})


@given(text=st.text(max_size=40) | st.text("ab:\x04\x06\x13\x14\x16\x1d\x9f\U00040000\U00065000", max_size=10))
@example("\x9f\U00065000:")  # the last byte of one character and the second of the next merge over a lost one
@settings(deadline=None, max_examples=300)
def test_bytes_without_a_token_are_shown_and_only_these_are_lost(tokenizer: Tokenizer, text: str) -> None:
    """The vocabulary lacks 21 bytes; characters vanish from the prompt and nobody says so."""
    pieces = tokenizer.pieces(text)
    assert b"".join(piece.data for piece in pieces) == text.encode()
    assert LOST.issuperset(b"".join(piece.data for piece in pieces if piece.token_id is None))
    kept = bytes(byte for byte in text.encode() if byte not in LOST)
    assert tokenizer.decode_bytes(tokenizer.encode(text)) == kept
    for piece in pieces:
        if piece.token_id is not None:
            assert tokenizer.bytes_of(piece.token_id) == bytes(byte for byte in piece.data if byte not in LOST)


def test_what_the_file_says(tokenizer: Tokenizer) -> None:
    """An end id forgotten: the model runs on into the next turn."""
    assert (tokenizer.size, tokenizer.bos_id, tokenizer.adds_bos, tokenizer.notices) == (49152, 1, False, ())
    assert tokenizer.end_ids == {0, 2}
    assert tokenizer.special == set(range(17))
    assert tokenizer.special_tokens["eos_token"] == "<|im_end|>"


ROWS: list[tuple[str, list[int], list[str], str, bool]] = [
    ("1 emoji over three tokens", [26843, 15107, 235, 229, 665], ["Hi", " ", "", "👋", " there"], "", True),
    ("2 lone continuation byte", [26843, 235, 665], ["Hi", "�", " there"], "", True),
    ("3 cut lead byte", [10813, 81], ["", "�a"], "", True),
    ("4 ends inside a character", [26843, 15107], ["Hi", " "], "�", True),
    ("5 the model says U+FFFD", [81, 24211, 82], ["a", "�", "b"], "", True),
    ("5b and ends with it", [81, 24211], ["a", "�"], "", True),
    ("6 control token left out", [26843, 2, 905], ["Hi", "", " world"], "", True),
    ("6b control token shown", [26843, 2, 905], ["Hi", "<|im_end|>", " world"], "", False),
    ("7 control token inside a character", [10813, 2, 235, 229], ["", "", "", "👋"], "", True),
    ("7b and shown", [10813, 2, 235, 229], ["", "�<|im_end|>", "�", "�"], "", False),
    (
        "8 a family of three",
        [10813, 235, 118, 321, 231, 10813, 235, 119, 321, 231, 10813, 235, 117],
        ["", "", "👨", "", "\u200d", "", "", "👩", "", "\u200d", "", "", "👧"],
        "",
        True,
    ),
    ("9 a flag", [10813, 225, 121, 10813, 225, 132], ["", "", "🇫", "", "", "🇷"], "", True),
    ("10 carriage return", [81, 201, 198, 82], ["a", "\r", "\n", "b"], "", True),
    ("11 leading space", [905], [" world"], "", True),
    ("12 bytes of a surrogate", [184, 250, 218, 104], ["", "", "���", "x"], "", True),
    ("13 control text", [44, 108, 306, 79, 486, 108, 46], ["<", "|", "im", "_", "end", "|", ">"], "", True),
    (
        "14 Japanese",
        [23274, 115, 40993, 179, 120, 248, 7365, 117, 39958, 19076],
        ["", "日", "本", "", "", "語", "", "で", "す", "。"],
        "",
        True,
    ),
    ("15 an escape sequence", [212, 75, 35, 33, 93, 455], ["\x1b", "[", "3", "1", "m", "red"], "", True),
    ("16 Markdown", [828, 30471, 828, 284, 2179, 4635, 80], ["**", "bold", "**", " and", " `", "code", "`"], "", True),
    ("17 line breaks", [81, 1116, 198, 82], ["a", "\n\n", "\n", "b"], "", True),
    ("18 combining accent", [85, 151, 219, 104], ["e", "", "\u0301", "x"], "", True),
    ("19 only an end", [2], [""], "", True),
    ("20 beyond the vocabulary", [49157], [""], "", True),
    ("21 begins with continuation bytes", [38466], ["��"], "", True),
]


@pytest.mark.parametrize(("ids", "pieces", "tail", "skip"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_streamed_text(tokenizer: Tokenizer, ids: list[int], pieces: list[str], tail: str, skip: bool) -> None:
    """Characters over several tokens, broken ones, ends inside of one: what each program of the field gets wrong."""
    detokenizer = Detokenizer(tokenizer, skip)
    assert [detokenizer.step(token_id) for token_id in ids] == pieces
    assert detokenizer.flush() == tail
    assert tokenizer.decode(ids, skip) == "".join(pieces) + tail


@given(
    ids=st.lists(
        st.integers(-1, 49160) | st.integers(0, 300) | st.sampled_from([10813, 15107, 38466, 24211]), max_size=20
    )
)
@settings(deadline=None, max_examples=300)
def test_streamed_text_joined_is_the_decode_of_all_ids(tokenizer: Tokenizer, library: Library, ids: list[int]) -> None:
    """The tail lost, a piece shown twice, another number of U+FFFD than the library's batch decode gives."""
    detokenizer = Detokenizer(tokenizer, skip_special=False)
    streamed = "".join(map(detokenizer.step, ids)) + detokenizer.flush()
    assert streamed == library.decode([i for i in ids if 0 <= i < tokenizer.size], skip_special_tokens=False)
