"""Tokenizers from GGUF metadata: cuts by name, merging by score, control tokens, and what is refused."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import families
import llama_cpp_ids
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, decoders, pre_tokenizers

from tinychat.errors import CheckpointError, UnsupportedModel
from tinychat.text.pre_tokenizers import BY_NAME
from tinychat.text.tokenizer import Tokenizer


def byte_level_metadata(**changes: Any) -> dict[str, Any]:
    """Return the keys of a small byte-level vocabulary; a change to None takes the key away."""
    library = families.byte_level(None)
    ids = library.get_vocab()
    tokens = [*sorted(ids, key=ids.__getitem__), "<s>", "<|im_end|>", "   ", "<pad>"]
    metadata = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": [1] * len(ids) + [3, 3, 4, 5],
        "merges": [f"{left} {right}" for left, right in families.byte_level_merges()[1]],
        "bos_token_id": len(ids),
        "eos_token_id": len(ids) + 1,
    } | changes
    return {f"tokenizer.ggml.{key}": value for key, value in metadata.items() if value is not None}


def sentencepiece_metadata(**changes: Any) -> dict[str, Any]:
    """Return the keys of a small vocabulary as Llama 2's GGUF files have it; the file's order is not that of scores."""
    ids, merges = families.sentencepiece_merges()
    tokens = sorted(ids, key=ids.__getitem__)
    tokens[259:] = tokens[:258:-1]
    rank: dict[str, int] = {}
    for place, (left, right) in enumerate(merges):
        rank.setdefault(left + right, place)
    metadata = {
        "model": "llama",
        "tokens": tokens,
        "scores": [0.0] * 259 + [-float(rank.get(token, 10_000 + i)) for i, token in enumerate(tokens[259:])],
        "token_type": [2, 3, 3] + [6] * 256 + [1] * (len(tokens) - 259),
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    } | changes
    return {f"tokenizer.ggml.{key}": value for key, value in metadata.items() if value is not None}


def merged_by_score(metadata: dict[str, Any], text: str) -> list[int]:
    """SentencePiece's BPE as its paper says it: join the best two neighbours, the leftmost of equals, until none joins.

    What is no token in the end becomes its bytes. This is the oracle: slow, and short enough to be seen to be right.
    """
    tokens, scores = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"]
    types = metadata["tokenizer.ggml.token_type"]
    ids = {token: i for i, token in enumerate(tokens) if types[i] == 1}
    pieces = list("▁" + text.replace(" ", "▁")) if text else []
    while True:
        joins = [(-scores[ids[a + b]], at) for at, (a, b) in enumerate(pairwise(pieces)) if a + b in ids]
        if not joins:
            break
        _, at = min(joins)
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
    found: list[int] = []
    for piece in pieces:
        found += [ids[piece]] if piece in ids else [tokens.index(f"<0x{byte:02X}>") for byte in piece.encode()]
    return found


@pytest.fixture(scope="module")
def sentencepiece() -> Tokenizer:
    return Tokenizer.from_gguf(sentencepiece_metadata())


WORDS = [
    "hello",
    " there",
    "the",
    " capital",
    "of",
    "Paris",
    "\n",
    "  ",
    "é",
    "日本",
    "👋",
    "12",
    "</s>",
    "<s>",
    "aaaa",
]


@given(text=st.lists(st.sampled_from(WORDS) | st.text(max_size=4), max_size=6).map("".join))
@settings(deadline=None, max_examples=300)
def test_sentencepiece_merges_by_score(sentencepiece: Tokenizer, text: str) -> None:
    """A vocabulary of scores read as one of merges in file order, or as Unigram: other ids, other replies."""
    assert sentencepiece.encode(text) == merged_by_score(sentencepiece_metadata(), text)


def test_sentencepiece_puts_a_space_before_a_text_as_llama_cpp_does(sentencepiece: Tokenizer) -> None:
    """llama.cpp: before every text, one that begins with a space too, and behind every control token."""
    assert sentencepiece.decode_bytes(sentencepiece.encode(" x")) == b"  x"
    assert sentencepiece.decode_bytes(sentencepiece.encode("x", first=False)) == b"x"
    acting = sentencepiece.encode_with_control("<s>x</s>x")
    assert [sentencepiece.bytes_of(i) for i in acting] == [b"<s>", b" ", b"x", b"</s>", b" ", b"x"]
    without = Tokenizer.from_gguf(sentencepiece_metadata(add_space_prefix=False))
    assert without.decode_bytes(without.encode("x y")) == b"x y"
    assert not without.adds_space


def test_what_sentencepiece_files_leave_out(sentencepiece: Tokenizer) -> None:
    """Old files name no BOS, EOS and unknown token, and say nothing of adding BOS: Llama's own are meant."""
    bare = Tokenizer.from_gguf(sentencepiece_metadata(bos_token_id=None, eos_token_id=None, unknown_token_id=None))
    assert (bare.bos_id, bare.adds_bos, bare.end_ids) == (1, True, {2})
    assert bare.special == {0, 1, 2}
    assert not Tokenizer.from_gguf(sentencepiece_metadata(add_bos_token=False)).adds_bos


def test_byte_tokens_stand_for_their_bytes(sentencepiece: Tokenizer) -> None:
    """ "<0x0A>" shown as six characters."""
    assert sentencepiece.bytes_of(3 + 10) == b"\n"
    assert sentencepiece.decode([3 + byte for byte in "👋".encode()]) == "👋"


SPLITS = {
    # Written down a second time, in full, as the models' own tokenizer.json files have them.
    "llama-bpe": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    "tekken": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}


def library_cut(name: str) -> pre_tokenizers.PreTokenizer:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if name == "gpt-2":
        return byte_level
    if name == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(SPLITS[name]), "isolated"), to_bytes])


CUT = [
    "don't",
    " I'LL",
    "12345",
    " 12",
    "½²",
    "\n\n",
    "\r\n",
    "   ",
    "\t",
    "HelloWorld",
    " ABCdef",
    "é",
    "日本",
    "!?",
    "foo/bar",
]


@pytest.mark.parametrize("name", ["gpt-2", "smollm", "llama-bpe", "qwen2", "tekken"])
@given(text=st.lists(st.sampled_from(CUT) | st.text(max_size=4), max_size=8).map("".join))
@settings(deadline=None, max_examples=100)
def test_cuts_are_those_of_the_models_themselves(name: str, text: str) -> None:
    """The wrong cut still gives text that reads well: "   1", "½ ²", "foo\\r\\nbar" fall into other tokens."""
    made = Tokenizer.from_gguf(byte_level_metadata(pre=name))
    library = families.byte_level(None, ignore_merges=BY_NAME[name].ignore_merges)
    library.pre_tokenizer, library.decoder = library_cut(name), decoders.ByteLevel()
    if "   " not in text:  # a token of the GGUF vocabulary alone
        assert made.encode(text) == library.encode(text).ids


@pytest.mark.parametrize("name", [*llama_cpp_ids.CUTS, *llama_cpp_ids.SENTENCEPIECE])
def test_ids_are_llama_cpp_s(name: str) -> None:
    """A cut, a merge order, a prefix space or a strip rule that is nearly right: the text reads well all the same."""
    byte_level = name in llama_cpp_ids.CUTS
    metadata = llama_cpp_ids.byte_level(name) if byte_level else llama_cpp_ids.sentencepiece(name)
    tokenizer = Tokenizer.from_gguf(metadata)
    rows = json.loads(Path(__file__).with_name("ids_llama_cpp.json").read_text(encoding="utf-8"))[name]
    for text, row in zip(llama_cpp_ids.TEXTS, rows, strict=True):
        if row is None:
            continue
        plain, _, acting = row.partition(";")
        assert tokenizer.encode(text) == [int(i) for i in plain.split()], text
        assert tokenizer.encode_with_control(text) == [int(i) for i in (acting or plain).split()], text


def test_names_llama_cpp_maps_to_the_same_cut() -> None:
    """A model converted under another name for a known cut gets the default one."""
    alike = [
        ("smollm", "starcoder", "refact", "command-r", "codeshell"),
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "lfm2"),
        ("qwen2", "deepseek-r1-qwen", "megrez", "stablelm2", "solar-open"),
        ("gpt-2", "phi-2", "olmo"),
        ("gpt-4o", "llama4"),
        ("glm4", "glm5"),
        ("deepseek-v3", "hunyuan-dense"),
        ("bloom", "poro-chat"),
    ]
    for first, *others in alike:
        assert all(BY_NAME[other] == BY_NAME[first] for other in others)


@pytest.mark.parametrize("pre", ["never-heard-of", None, "default"])
def test_an_unknown_cut_is_said(pre: str | None) -> None:
    """Silent fallback: replies get worse and nobody knows why."""
    tokenizer = Tokenizer.from_gguf(byte_level_metadata(pre=pre))
    (notice,) = tokenizer.notices
    assert "uncertain" in notice
    assert ("'never-heard-of'" in notice) == (pre == "never-heard-of")
    assert tokenizer.decode(tokenizer.encode("ab12 $5")) == "ab12 $5"


def test_tokens_that_are_found_before_cutting() -> None:
    """A user-defined token cut into pieces, a control token acting in plain text, an end text typed as normal."""
    metadata = byte_level_metadata()
    tokenizer = Tokenizer.from_gguf(metadata)
    size = tokenizer.size
    assert tokenizer.encode("a   b") == [*tokenizer.encode("a"), size - 2, *tokenizer.encode("b")]
    assert tokenizer.bytes_of(size - 2) == b"   "
    assert tokenizer.special == {size - 4, size - 3}
    assert tokenizer.encode_with_control("<s><|im_end|><pad>")[:2] == [size - 4, size - 3]
    types = metadata["tokenizer.ggml.token_type"]
    wrongly_normal = Tokenizer.from_gguf(byte_level_metadata(token_type=[*types[:-3], 1, 4, 5], eos_token_id=None))
    assert wrongly_normal.end_ids == {size - 3}
    assert size - 3 in wrongly_normal.special


def test_adding_bos() -> None:
    """Llama 3's files may leave add_bos_token out: BOS is added; GPT-2's: it isn't. The key always wins."""
    assert Tokenizer.from_gguf(byte_level_metadata(pre="llama-bpe")).adds_bos
    assert not Tokenizer.from_gguf(byte_level_metadata(pre="llama-bpe", add_bos_token=False)).adds_bos
    assert not Tokenizer.from_gguf(byte_level_metadata()).adds_bos
    assert Tokenizer.from_gguf(byte_level_metadata(add_bos_token=True)).adds_bos


def test_all_end_ids_count() -> None:
    """Only one of several end ids honoured: the model runs on."""
    tokenizer = Tokenizer.from_gguf(byte_level_metadata(eot_token_id=5, eom_token_id=6, eos_token_id=7))
    assert tokenizer.end_ids == {5, 6, 7, tokenizer.size - 3}


@pytest.mark.parametrize(
    ("tokens", "ends"),
    [
        (["</s>"], ["</s>"]),
        (["</s>", "<eos>"], ["<eos>"]),
        (["<|file_sep|>", "<|eot_id|>"], ["<|file_sep|>", "<|eot_id|>"]),
    ],
)
def test_texts_that_end_a_turn(tokens: list[str], ends: list[str]) -> None:
    """Gemma's reply cut off where it closes an HTML tag, "</s>"; a model for code that runs on into another file."""
    given = sentencepiece_metadata()
    given["tokenizer.ggml.tokens"] = [*given["tokenizer.ggml.tokens"], *tokens]
    given["tokenizer.ggml.tokens"][2] = "<other>"
    given["tokenizer.ggml.token_type"] = [*given["tokenizer.ggml.token_type"], *[4] * len(tokens)]
    given["tokenizer.ggml.scores"] = [*given["tokenizer.ggml.scores"], *[0.0] * len(tokens)]
    tokenizer = Tokenizer.from_gguf(given)
    assert {tokenizer.bytes_of(i).decode() for i in tokenizer.end_ids} == {"<other>", *ends}
    assert not tokenizer.special & {tokenizer.size - len(tokens) + i for i, t in enumerate(tokens) if t not in ends}


@pytest.mark.parametrize(
    ("general", "strips"),
    [
        ({"general.name": "Phi-3-mini"}, True),
        ({"general.name": "Phi 3.5 Mini", "general.architecture": "phi3"}, True),
        ({"general.name": "Llama 3", "general.architecture": "llama"}, False),
        ({"general.name": 3}, False),
        ({}, False),
    ],
)
def test_phi3_s_control_tokens_take_in_the_spaces_behind_them(general: dict[str, Any], strips: bool) -> None:
    """GGUF files don't say it: a line break after each of them that the model was never shown."""
    tokenizer = Tokenizer.from_gguf(sentencepiece_metadata() | general)
    (bos, end) = tokenizer.control_tokens("<s> a</s> \n b")
    assert (bos.end, end.end) == (3, 12 if strips else 9)


def test_equal_scores_are_taken_in_the_order_of_the_file() -> None:
    """Files converted from tokenizer.json give every token the same score: the leftmost pair is joined, any other."""
    tokens = ["<unk>", "<s>", "</s>", "a", "b", "c", "bc", "ab"]
    metadata = sentencepiece_metadata(
        tokens=tokens, scores=[-1000.0] * 8, token_type=[2, 3, 3, 1, 1, 1, 1, 1], add_space_prefix=False
    )
    assert Tokenizer.from_gguf(metadata).encode("abc") == [tokens.index("a"), tokens.index("bc")]


def test_equal_tokens_keep_their_ids_apart() -> None:
    """Two tokens spelled alike: the second one takes the first one's place, and all ids behind are off."""
    metadata = byte_level_metadata()
    tokens = metadata["tokenizer.ggml.tokens"]
    metadata["tokenizer.ggml.tokens"] = [*tokens, "a"]
    metadata["tokenizer.ggml.token_type"] = [*metadata["tokenizer.ggml.token_type"], 1]
    tokenizer = Tokenizer.from_gguf(metadata)
    assert tokenizer.encode("a") == [tokens.index("a")]
    assert tokenizer.bytes_of(len(tokens)) == b"a"


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"model": "t5"}, UnsupportedModel, "'t5'"),
        ({"model": None}, UnsupportedModel, "tokenizer.ggml.model is missing"),
        ({"tokens": None}, CheckpointError, "tokenizer.ggml.tokens"),
        ({"tokens": ["a", 1]}, CheckpointError, "tokenizer.ggml.tokens"),
        ({"merges": None}, CheckpointError, "tokenizer.ggml.merges"),
        ({"merges": ["x yz"]}, CheckpointError, "1 of its merges"),
        ({"token_type": [1, 2]}, CheckpointError, "tokenizer.ggml.token_type"),
    ],
)
def test_what_cannot_be_read_is_named(changes: dict[str, Any], error: type[Exception], said: str) -> None:
    """A traceback, or a tokenizer that is quietly another one."""
    with pytest.raises(error) as raised:
        Tokenizer.from_gguf(byte_level_metadata(**changes))
    assert said in str(raised.value)


def test_scores_are_needed_for_sentencepiece() -> None:
    """Merges in no order at all."""
    with pytest.raises(CheckpointError, match="scores"):
        Tokenizer.from_gguf(sentencepiece_metadata(scores=None))
