"""GPT-2's real vocabulary: the ids are the reference's on hard strings and a fuzz."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from gpt2_repo import write_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from tinychat.text.tokenizer import Tokenizer

STRINGS = [
    *(
        "a  b",
        "a   \n\n  b",
        "\t\tx",
        " x ",
        "don't DON'T 'sx I'Ll",
        "ſ'S",
        "１２３ ½",
        "a\u00a0b",
        "a\u3000b",
        "x\u0085y",
    ),
    *(
        "   1",
        "½ ²",
        "a  12  b",
        "foo\r\nbar",
        "\n\n  foo",
        "a<|endoftext|>b",
        "👩\u200d👦\u200d👦🇨🇿 é 日本 🦙",
        "\x00\x04",
        "",
    ),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpt2")
    write_tokenizer(folder)
    (folder / "config.json").write_text('{"bos_token_id": 50256, "eos_token_id": 50256}')
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(folder)


@pytest.fixture(scope="module")
def reference(folder: Path) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))


@pytest.mark.parametrize("text", STRINGS)
def test_ids_are_the_reference_s_on_hard_strings(
    tokenizer: Tokenizer, reference: PreTrainedTokenizerFast, text: str
) -> None:
    """White-space runs, contractions, digits and letters outside of ASCII cut wrongly (T3)."""
    plain = reference.encode(text, add_special_tokens=False, split_special_tokens=True)
    assert tokenizer.encode(text) == plain
    assert tokenizer.encode_with_control(text) == reference.encode(text, add_special_tokens=False)
    assert tokenizer.decode(plain) == text


@given(text=st.text(max_size=60) | st.lists(st.sampled_from([*STRINGS, " the", "'re", "\n"]), max_size=6).map("".join))
@settings(deadline=None, max_examples=300)
def test_ids_are_the_reference_s_on_any_string(
    tokenizer: Tokenizer, reference: PreTrainedTokenizerFast, text: str
) -> None:
    """As above, where nobody has looked; GPT-2 has a token for each byte, so nothing is lost on the way back."""
    ids = tokenizer.encode(text)
    assert ids == reference.encode(text, add_special_tokens=False, split_special_tokens=True)
    assert tokenizer.decode(ids) == text


def test_ids_are_those_that_are_known(tokenizer: Tokenizer) -> None:
    """A reference that is wrong in the same way: ids of OpenAI's own encoder."""
    assert tokenizer.encode("Hello world") == [15496, 995]
    assert tokenizer.encode(" don't") == [836, 470]


def test_what_the_files_say_of_control_tokens(tokenizer: Tokenizer) -> None:
    """GPT-2 adds no BOS, and config.json alone says which token ends a text."""
    assert (tokenizer.size, tokenizer.bos_id, tokenizer.adds_bos) == (50257, 50256, False)
    assert tokenizer.end_ids == tokenizer.special == {50256}
    assert tokenizer.special_tokens == {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
    assert not tokenizer.notices


def test_random_ids_decode_as_the_reference_decodes_them(
    tokenizer: Tokenizer, reference: PreTrainedTokenizerFast
) -> None:
    """Broken characters: other numbers of U+FFFD than the field's decoders give."""
    draw = random.Random(7)
    for _ in range(500):
        ids = [draw.randrange(tokenizer.size) for _ in range(draw.randrange(12))]
        assert tokenizer.decode(ids, skip_special=False) == reference.decode(ids)
