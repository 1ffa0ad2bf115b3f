"""The tokenizer of every family: typed text controls nothing, no byte goes missing, ids are the library's."""

from __future__ import annotations

import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import families
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers import normalizers
from tokenizers.models import BPE

from tinychat.text.tokenizer import Tokenizer, well_formed

FRAGMENTS = [
    *(
        "hello",
        " there",
        "don't",
        "I'Ll",
        "ſ'S",
        " ",
        "  ",
        "\n",
        "\r\n",
        "\t",
        "12345",
        "１２３ ½",
        "a\u00a0b",
        "\u3000",
    ),
    *(
        "é",
        "e\u0301",
        "日本語",
        "한글",
        "👋",
        "👩\u200d👦",
        "\u2028",
        "\ufeff",
        "\x00",
        "\x04",
        "\U00040000",
        "▁",
        "<0x41>",
    ),
    *("<s>", "</s>", "s>", "<unk>", "<|im_end|>", "<|im_start|>", "<|eot_id|>", "<|end|>", "<think>", "<b>", "<|im_en"),
]
TEXTS = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=6), max_size=8).map("".join)


@pytest.fixture(scope="module", params=families.NAMES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> families.Family:
    return families.load(request.param, tmp_path_factory.mktemp(request.param))


@given(text=TEXTS)
@settings(deadline=None, max_examples=60)
def test_pieces_join_to_the_text(family: families.Family, text: str) -> None:
    """A byte dropped or shown twice, an offset that is off, pieces whose ids aren't the encoding's (T2)."""
    pieces = family.tokenizer.pieces(text)
    assert b"".join(piece.data for piece in pieces) == text.encode()
    assert [piece.token_id for piece in pieces if piece.token_id is not None] == family.tokenizer.encode(text)
    assert all(one.start + len(one.data) == other.start for one, other in pairwise(pieces))
    controlled = family.tokenizer.pieces(text, control=True)
    assert b"".join(piece.data for piece in controlled) == text.encode()


@given(text=TEXTS)
@settings(deadline=None, max_examples=60)
def test_text_never_becomes_a_control_token(family: families.Family, text: str) -> None:
    """Prompt injection by the text of a control token, also where the merges lead to one, as to "</s>" (T8, T9)."""
    tokenizer = family.tokenizer
    controls = tokenizer.special - {family.library.token_to_id("<unk>")}
    for first in (True, False):
        assert controls.isdisjoint(tokenizer.encode(text, first))


@given(text=TEXTS)
@settings(deadline=None, max_examples=60)
def test_where_control_tokens_act_the_ids_are_the_library_s(family: families.Family, text: str) -> None:
    """A control token found elsewhere than the library finds it, strip rules forgotten, a prefix space lost."""
    assert family.tokenizer.encode_with_control(text) == family.library.encode(text, add_special_tokens=False).ids


@given(text=TEXTS.filter(lambda text: "<" not in text))
@settings(deadline=None, max_examples=60)
def test_plain_ids_are_the_library_s(family: families.Family, text: str) -> None:
    """Ids other than the reference's where no control token is about."""
    assert family.tokenizer.encode(text) == family.library.encode(text, add_special_tokens=False).ids


@given(text=TEXTS)
@settings(deadline=None, max_examples=100)
def test_decode_gives_the_text_back(family: families.Family, text: str) -> None:
    """A lost or added space at the start, bytes of a character parted, an added token decoded by the wrong alphabet."""
    tokenizer = family.tokenizer
    if family.name == "qwen3":
        return  # composes characters first
    if tokenizer.adds_space or family.name == "gemma":
        text = text.replace("▁", "")  # which is how a space is spelled
    if family.name == "llama2":
        text = text.lstrip(" ")  # its pipeline takes a space at the start for the one it would put there
    assert tokenizer.decode(tokenizer.encode(text), starts_text=True) == text


@given(data=st.binary(max_size=12) | TEXTS.map(str.encode))
@settings(deadline=None, max_examples=60)
def test_pieces_of_any_bytes_join_to_them(family: families.Family, data: bytes) -> None:
    """Bytes that are no UTF-8 crash the inspector or come out as U+FFFD."""
    pieces = family.tokenizer.pieces_of_bytes(data)
    assert b"".join(piece.data for piece in pieces) == data
    assert all(one.start + len(one.data) == other.start for one, other in pairwise(pieces))
    controls = family.tokenizer.special - {family.library.token_to_id("<unk>")}
    assert controls.isdisjoint(piece.token_id for piece in pieces)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return
    assert pieces == family.tokenizer.pieces(text)


def test_a_byte_that_is_no_utf_8_becomes_its_own_token(family: families.Family) -> None:
    """A lone byte joined with its neighbours, or dropped, though the vocabulary has a token for it."""
    pieces = family.tokenizer.pieces_of_bytes(b"a\xffb")
    assert [piece.data for piece in pieces if piece.data] == [b"a", b"\xff", b"b"]
    (bad,) = (piece for piece in pieces if piece.data == b"\xff")
    assert bad.token_id is not None
    assert family.tokenizer.bytes_of(bad.token_id) == b"\xff"


@pytest.mark.parametrize("text", ["a\ud800b", "\udc80", "\ud83e\udd99", "x\udfff"])
def test_lone_surrogates_never_raise(family: families.Family, text: str) -> None:
    """The library raises TypeError on them; a pair of them is one character."""
    pieces = family.tokenizer.pieces(text)
    assert b"".join(piece.data for piece in pieces) == well_formed(text).encode()
    assert family.tokenizer.encode(text) == family.tokenizer.encode(well_formed(text))


def test_well_formed_text_stays_as_it_is() -> None:
    """A character outside the basic plane taken for a surrogate."""
    assert well_formed("🦙 \U0010ffff") == "🦙 \U0010ffff"
    assert well_formed("\ud83e\udd99 \ud800") == "🦙 \ufffd"


@pytest.mark.parametrize("text", ["a" * 100_000, "-" * 32_768, "日本語漢字" * 13_333, " " * 100_000, "a\x04" * 50_000])
def test_long_runs_take_no_quadratic_time(family: families.Family, text: str) -> None:
    """Quadratic merging hangs on a pasted run without spaces (T7). The limit is loose: machines are slow."""
    start = time.process_time()
    pieces = family.tokenizer.pieces(text)
    assert time.process_time() - start < 5
    assert b"".join(piece.data for piece in pieces) == text.encode()


def test_later_stretches_get_no_prefix_space(family: families.Family) -> None:
    """A space put before what follows a reply, or none before the first word of a text."""
    tokenizer = family.tokenizer
    assert tokenizer.decode_bytes(tokenizer.encode("hello", first=False)) == b"hello"
    assert tokenizer.decode_bytes(tokenizer.encode("hello")) == (b" hello" if tokenizer.adds_space else b"hello")
    assert tokenizer.adds_space == (family.name in ("llama2", "tinyllama", "phi3"))


def test_ids_that_are_no_token_have_no_bytes(family: families.Family) -> None:
    """A head with more rows than there are tokens, or -1, raises."""
    assert family.tokenizer.bytes_of(family.tokenizer.size + 5) == b""
    assert family.tokenizer.bytes_of(-1) == b""
    assert family.tokenizer.decode([-1, 10**9]) == ""


def test_the_vocabulary_s_hash_tells_vocabularies_apart(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Ids of one vocabulary spliced into the prompt of another."""
    hashes = {}
    for name in families.NAMES:
        once, again = (families.load(name, tmp_path_factory.mktemp(name)).tokenizer.vocabulary for _ in range(2))
        assert once == again
        hashes[name] = once
    alike = {"llama2", "tinyllama"}  # the same tokens, cut in other ways: their ids mean the same
    assert hashes["llama2"] == hashes["tinyllama"]
    assert len(set(hashes.values())) == len(hashes) - len(alike) + 1


def test_composed_characters_cover_what_was_typed(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A normalizing vocabulary: pieces that show what it made of the text, in place of the text."""
    tokenizer = families.load("qwen3", tmp_path_factory.mktemp("qwen3")).tokenizer
    pieces = tokenizer.pieces("cafe\u0301!")
    assert b"".join(piece.data for piece in pieces) == "cafe\u0301!".encode()
    assert tokenizer.decode([piece.token_id for piece in pieces if piece.token_id is not None]) == "café!"


def test_merges_that_lead_to_a_control_token_are_not_followed(tmp_path: Path) -> None:
    """Llama's vocabularies merge "</" and "s>" to the token that ends a text, whether control tokens act or not."""
    ids = {token: i for i, token in enumerate(["<unk>", "<s>", "</s>", "</", "s>", "<", "/", "s", ">", "▁"])}
    model = BPE(ids, [("<", "/"), ("s", ">"), ("</", "s>")], unk_token="<unk>")
    library = Library(model)
    library.normalizer = normalizers.Replace(" ", "▁")
    library.add_special_tokens(families.control("<unk>", "<s>", "</s>"))
    library.encode_special_tokens = True
    assert library.encode("s</s>").tokens == ["s", "</s>"], "the library itself falls for it"
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.encode("s</s>/") == [ids[character] for character in "s</s>/"]
    assert [piece.data for piece in tokenizer.pieces("s</s>")] == [b"s", b"<", b"/", b"s", b">"]
    assert tokenizer.encode("é") == [ids["<unk>"]]


def test_text_needs_no_torch() -> None:
    """The inspector waits for torch, which takes seconds to import."""
    code = (
        "import sys; from tinychat.text import tokenizer, chat_template, stop_strings, thinking;"
        "heavy = {'torch', 'transformers', 'numpy'} & sys.modules.keys(); sys.exit(str(heavy) if heavy else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
