"""BPE merge by merge: each step is the textbook's, and the tokens at the end are the library's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import families
import llama_cpp_ids
import pytest
from gpt2_repo import write_tokenizer
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers import normalizers
from tokenizers.models import BPE

from tinychat.protocol import BpeWalk, Split
from tinychat.text.bpe import Bpe
from tinychat.text.bpe_walk import EXPLAINED_SYMBOLS, WALKED_SYMBOLS, explain
from tinychat.text.tokenizer import Tokenizer, well_formed

FRAGMENTS = [
    *("hello", " there", "The capital of", "don't", "I'Ll", "ſ'S", " ", "  ", " " * 40, "\n", "\r\n", "\t", "12345"),
    *("１２３ ½", "a\u00a0b", "\u3000", "é", "e\u0301", "日本語", "한글", "👋", "👩\u200d👦", "🇨🇿", "\u2028", "\ufeff"),
    *("\x00", "\x04", "\U00040000", "▁", "Ġ", "<0x41>", "\ud800", "<s>", "</s>", "s>", "<unk>", "<|im_end|>", "<b>"),
    *("<|eot_id|>", "<|end|> ", "<think>", "\n\n", "<|endoftext|>", "aaaaaaa"),
]
TEXTS = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=6), max_size=8).map("".join)


def tokens_of(walk: BpeWalk) -> list[int]:
    return [token.token_id for split in walk.splits for token in split.tokens]


def pieces_after(split: Split) -> Iterator[list[bytes]]:
    """Yield the symbols' bytes before the first merge and after each."""
    for count in range(len(split.merges) + 1):
        yield [symbol.data for symbol in split.after(count)]


def check(tokenizer: Tokenizer, text: str) -> None:
    """Hold the walk of a text against the library's ids and against what BPE is."""
    for control, ids in ((False, tokenizer.encode(text)), (True, tokenizer.encode_with_control(text))):
        walk = explain(tokenizer, text, control)
        assert walk.left_out == 0
        assert tokens_of(walk) == ids
        typed = well_formed(text).encode()
        assert b"".join(split.data for split in walk.splits) == (typed if walk.normalized is None else walk.normalized)
        for split in walk.splits:
            assert "The library" not in split.note
            check_merges(split)


def check_merges(split: Split) -> None:
    for count, merge in enumerate(split.merges):
        assert len(merge.ranks) == len(split.after(count)) - 1
        known = [rank for rank in merge.ranks if rank is not None]
        assert merge.rank == min(known)
        assert merge.at == merge.ranks.index(merge.rank)
    size = len(split.data) - len(split.lost)
    assert split.kind != "merged" or all(len(b"".join(pieces)) == size for pieces in pieces_after(split))


# ---------------------------------------------------------------------------------------------------------------------
# The merge loop


def small(*pairs: str) -> Bpe:
    """Return a vocabulary of single letters and of what these pairs ("l o") join to."""
    joined = [pair.replace(" ", "") for pair in pairs]
    vocabulary = {token: i for i, token in enumerate([*"abcdelnorstw", *joined])}
    sides = [pair.split() for pair in pairs]
    merges = {(vocabulary[a], vocabulary[b]): (rank, vocabulary[a + b]) for rank, (a, b) in enumerate(sides)}
    return Bpe(vocabulary, merges, str.encode)


def walked(bpe: Bpe, piece: str) -> list[str]:
    """Return the symbols after each merge, side by side."""
    symbols, _ = bpe.symbols(piece)
    split = Split("merged", piece.encode(), tuple(symbols), tuple(bpe.merge([symbol.token_id for symbol in symbols])))
    return [b" ".join(pieces).decode() for pieces in pieces_after(split)]


@pytest.mark.parametrize(
    ("pairs", "piece", "steps"),
    [
        (["l o", "lo w", "e r"], "lower", ["l o w e r", "lo w e r", "low e r", "low er"]),
        (["e r", "l o", "lo w"], "lower", ["l o w e r", "l o w er", "lo w er", "low er"]),
        (["b c", "a b"], "abc", ["a b c", "a bc"]),
        (["a a", "aa a"], "aaaaa", ["a a a a a", "aa a a a", "aa aa a", "aa aaa"]),
        (["a a", "aa aa"], "aaaa", ["a a a a", "aa a a", "aa aa", "aaaa"]),
        ([], "ab", ["a b"]),
        (["a b"], "", [""]),
    ],
    ids=[
        "ranks in order",
        "the last pair first",
        "not the leftmost",
        "overlaps",
        "pairs of pairs",
        "no merges",
        "empty",
    ],
)
def test_the_lowest_rank_is_merged_first(pairs: list[str], piece: str, steps: list[str]) -> None:
    """Left to right, longest first, or one pair everywhere at once: ways that give other tokens now and then."""
    assert walked(small(*pairs), piece) == steps


def test_a_merge_tells_the_ranks_it_was_chosen_among() -> None:
    """Ranks of the wrong neighbours: a person can't check the choice."""
    bpe = small("e r", "l o", "lo w")
    first, second, _ = bpe.merge([bpe.vocabulary[letter] for letter in "lower"])
    assert (first.at, first.rank, first.ranks) == (3, 0, (1, None, None, 0))
    assert (second.at, second.rank, second.ranks) == (0, 1, (1, None, None))


# ---------------------------------------------------------------------------------------------------------------------
# Beside the library


@pytest.fixture(scope="module", params=families.NAMES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> families.Family:
    return families.load(request.param, tmp_path_factory.mktemp(request.param))


@given(text=TEXTS)
@settings(deadline=None, max_examples=100)
def test_every_family_s_tokens_are_the_library_s(family: families.Family, text: str) -> None:
    """A piece cut, an added token missed, a character fallen back on, a merge taken otherwise than the library does."""
    check(family.tokenizer, text)


@pytest.mark.parametrize("name", [*llama_cpp_ids.CUTS, *llama_cpp_ids.SENTENCEPIECE])
def test_every_cut_s_tokens_are_the_library_s(name: str) -> None:
    """As above, for each way a GGUF file may say that text is cut, and each kind of SentencePiece vocabulary."""
    byte_level = name in llama_cpp_ids.CUTS
    tokenizer = Tokenizer.from_gguf(llama_cpp_ids.byte_level(name) if byte_level else llama_cpp_ids.sentencepiece(name))
    for text in [*llama_cpp_ids.TEXTS, *FRAGMENTS, "".join(FRAGMENTS)]:
        check(tokenizer, text)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("gpt2")
    write_tokenizer(folder)
    (folder / "config.json").write_text('{"bos_token_id": 50256, "eos_token_id": 50256}')
    return Tokenizer.from_folder(folder)


@given(text=TEXTS | st.text(max_size=60))
@example("".join(FRAGMENTS))
@settings(deadline=None, max_examples=200)
def test_gpt2_s_tokens_are_the_library_s(gpt2: Tokenizer, text: str) -> None:
    """As above, with the real merges."""
    check(gpt2, text)


def test_gpt2_s_merges_are_those_that_are_known(gpt2: Tokenizer) -> None:
    """Ranks counted from another line of merges.txt: " t", " a", "h e", "i n", "r e" are its first."""
    (the,) = explain(gpt2, " the").splits
    assert list(pieces_after(the)) == [[b" ", b"t", b"h", b"e"], [b" t", b"h", b"e"], [b" t", b"he"], [b" the"]]
    assert [merge.rank for merge in the.merges] == [0, 2, 6]
    assert [merge.score for merge in the.merges] == [None] * 3


# ---------------------------------------------------------------------------------------------------------------------
# What is told beside the merges


@pytest.fixture(scope="module")
def sentencepiece() -> Tokenizer:
    return Tokenizer.from_gguf(llama_cpp_ids.sentencepiece("prefix"))


@given(text=TEXTS)
@settings(deadline=None, max_examples=100)
def test_sentencepiece_joins_the_best_score(sentencepiece: Tokenizer, text: str) -> None:
    """Scores in another order than the ranks they became; a score of another token than the one that is made."""
    metadata = llama_cpp_ids.sentencepiece("prefix")
    tokens, scores = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"]
    score_of = {token.replace("▁", " ").encode(): score for token, score in zip(tokens, scores, strict=True)}
    walk = explain(sentencepiece, text)
    assert walk.by_score
    for split in walk.splits:
        for count, merge in enumerate(split.merges):
            unions = [left.data + right.data for left, right in pairwise(split.after(count))]
            possible = [score_of[union] for union, rank in zip(unions, merge.ranks, strict=True) if rank is not None]
            assert merge.score == score_of[unions[merge.at]] == max(possible)


def test_a_vocabulary_of_merges_has_no_scores(family: families.Family) -> None:
    """tokenizer.json has none, SentencePiece or not: 0 in their place would be a lie."""
    walk = explain(family.tokenizer, "The capital")
    assert not walk.by_score
    assert {merge.score for split in walk.splits for merge in split.merges} <= {None}


def test_characters_without_a_token_begin_as_their_bytes(sentencepiece: Tokenizer) -> None:
    """Byte fallback that looks like ordinary tokens, or a character shown whole that the model sees in bytes."""
    (split,) = explain(sentencepiece, "a🦩b").splits
    assert [(symbol.data, symbol.fallback) for symbol in split.symbols] == [
        *((b" ", ""), (b"a", "")),
        *((bytes([byte]), "byte") for byte in "🦩".encode()),
        (b"b", ""),
    ]


def test_unknown_characters_are_marked(tmp_path: Path) -> None:
    """A vocabulary with neither the character nor its bytes: two in a row are one unknown token."""
    ids = {token: i for i, token in enumerate(["<unk>", "a", "b", "ab", "▁"])}
    library = Library(BPE(ids, [("a", "b")], unk_token="<unk>", fuse_unk=True))
    library.normalizer = normalizers.Replace(" ", "▁")
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.from_folder(tmp_path)
    (split,) = explain(tokenizer, "ab日本a").splits
    assert [(token.data.decode(), token.fallback) for token in split.tokens] == [
        *(("ab", ""), ("日本", "unknown"), ("a", "")),
    ]
    assert tokens_of(explain(tokenizer, "ab日本a")) == tokenizer.encode("ab日本a")


def test_bytes_without_a_token_are_told(gpt2: Tokenizer) -> None:
    """A byte that goes missing on the way and nobody says so; merges join over the gap."""
    metadata = {"model": "gpt2", "pre": "bloom", "tokens": ["a", "b", "ab"], "merges": ["a b"]}
    tokenizer = Tokenizer.from_gguf({f"tokenizer.ggml.{key}": value for key, value in metadata.items()})
    (split,) = explain(tokenizer, "a-b").splits
    assert (split.data, split.lost) == (b"a-b", b"-")
    assert [token.data for token in split.tokens] == [b"ab"]
    assert tokens_of(explain(tokenizer, "a-b")) == tokenizer.encode("a-b")
    assert not any(split.lost for split in explain(gpt2, "".join(FRAGMENTS)).splits)


def test_a_piece_that_is_a_token_is_not_merged() -> None:
    """`ignore_merges`: merges shown that the model never takes, to a token they don't lead to."""
    told = explain(Tokenizer.from_gguf(llama_cpp_ids.byte_level("glm4")), " camelCase").splits
    (whole,) = told
    assert (whole.kind, whole.merges, [token.data for token in whole.tokens]) == ("whole", (), [b" camelCase"])
    assert "vocabulary" in whole.note
    other = explain(Tokenizer.from_gguf(llama_cpp_ids.byte_level("dbrx")), " camelCase").splits
    assert (other[0].kind, len(other[0].tokens) > 1) == ("merged", True)


def test_what_the_vocabulary_makes_of_the_text_first(tmp_path: Path) -> None:
    """Pieces that don't join to the text, and no word of why: a space put before it, a composed accent."""
    qwen3 = families.load("qwen3", tmp_path / "qwen3").tokenizer
    assert explain(qwen3, "cafe\u0301").normalized == "café".encode()
    assert explain(qwen3, "café").normalized is None
    assert explain(families.load("llama2", tmp_path / "llama2").tokenizer, "hi").normalized == b" hi"


def test_tokens_that_are_found_before_cutting(tmp_path: Path) -> None:
    """Control tokens act where nobody asked, added ones are merged, the spaces that one takes in go missing."""
    gemma = families.load("gemma", tmp_path / "gemma").tokenizer
    assert [(split.kind, split.data) for split in explain(gemma, "a<b>\n\n").splits] == [
        *(("merged", b"a"), ("added", b"<b>"), ("added", b"\n\n")),
    ]
    phi3 = families.load("phi3", tmp_path / "phi3").tokenizer
    assert "control" not in {split.kind for split in explain(phi3, "a<|end|>").splits}
    acting = explain(phi3, "a<|end|> \nb", control=True).splits
    assert [(split.kind, split.data) for split in acting] == [
        *(("merged", b" a"), ("control", b"<|end|> \n"), ("merged", b" b")),
    ]


def test_merges_that_lead_to_a_control_token_are_undone(tmp_path: Path) -> None:
    """The walk ends at a token that typed text never becomes."""
    ids = {token: i for i, token in enumerate(["<unk>", "<s>", "</s>", "</", "s>", "<", "/", "s", ">", "▁"])}
    library = Library(BPE(ids, [("<", "/"), ("s", ">"), ("</", "s>")], unk_token="<unk>"))
    library.normalizer = normalizers.Replace(" ", "▁")
    library.add_special_tokens(families.control("<unk>", "<s>", "</s>"))
    library.save(str(tmp_path / "tokenizer.json"))
    (split,) = explain(Tokenizer.from_folder(tmp_path), "s</s>").splits
    assert [symbol.data for symbol in split.after(len(split.merges))] == [b"s", b"</s>"]
    assert [token.data for token in split.tokens] == [b"s", b"<", b"/", b"s", b">"]
    assert "control token" in split.note


def test_a_walk_that_ends_elsewhere_than_the_library_says_so(tmp_path: Path) -> None:
    """Tokens shown that the model isn't fed."""
    tokenizer = families.load("chatml", tmp_path).tokenizer
    tokenizer.__dict__["bpe"] = replace(tokenizer.bpe, merges={})
    walk = explain(tokenizer, "The capital")
    assert tokens_of(walk) == tokenizer.encode("The capital")
    assert all("The library" in split.note for split in walk.splits)


def test_long_pieces_are_not_walked(family: families.Family) -> None:
    """Quadratic time between two tokens of a reply; a piece cut short without a word."""
    text = "a" * WALKED_SYMBOLS + "aa"
    walk = explain(family.tokenizer, text)
    assert tokens_of(walk) == family.tokenizer.encode(text)
    (split,) = walk.splits
    assert (split.kind, split.merges) == ("long", ())
    assert f"{len(split.data):,} symbols" in split.note


def test_long_texts_are_told_in_part(gpt2: Tokenizer) -> None:
    """Tens of thousands of walks for a pasted book; or some, as though these were all."""
    words = 3 * EXPLAINED_SYMBOLS
    walk = explain(gpt2, " the" * words)
    assert len(walk.splits) + walk.left_out == words
    assert len(walk.splits) == EXPLAINED_SYMBOLS // 4
    longest = explain(gpt2, f" {'ab' * (WALKED_SYMBOLS // 2 - 1)}" * 100)
    assert len(longest.splits) <= EXPLAINED_SYMBOLS // (WALKED_SYMBOLS - 1) + 1
    assert sum(len(merge.ranks) for split in longest.splits for merge in split.merges) < EXPLAINED_SYMBOLS * 512
