"""Tokenizers from model folders: what the small files say of control tokens, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import families
import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Library

from tinychat.errors import CheckpointError, TinychatError, UnsupportedModel
from tinychat.text.tokenizer import Tokenizer

WriteFolder = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> WriteFolder:
    def write(library: Library | None = None, **files: Any) -> Path:
        """Write tokenizer.json and these other .json files; a string is written as it is."""
        if library is not None:
            library.save(str(tmp_path / "tokenizer.json"))
        for name, content in files.items():
            text = content if isinstance(content, str) else json.dumps(content)
            (tmp_path / f"{name}.json").write_text(text, encoding="utf-8")
        return tmp_path

    return write


def small() -> Library:
    library = families.byte_level(None)
    library.add_special_tokens(families.control("<s>", "<|im_end|>", "<|other|>"))
    library.add_tokens([AddedToken("<tool>", normalized=False), AddedToken("<|eot_id|>", normalized=False)])
    return library


def test_end_ids_are_the_union_of_all_files(write: WriteFolder) -> None:
    """Only one of several end ids honoured (E4): the model runs on."""
    library = small()
    first, end, other, _, eot = range(library.get_vocab_size() - 5, library.get_vocab_size())
    folder = write(
        library,
        tokenizer_config={"eos_token": "<|other|>"},
        config={"eos_token_id": first},
        generation_config={"eos_token_id": [first, 7]},
    )
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.end_ids == {first, end, other, eot, 7}
    assert eot in tokenizer.special, "an end marker not flagged as special could be typed"


def test_gemma_s_html_ends_no_turn(tmp_path: Path) -> None:
    """ "</s>" closes a tag in Gemma's vocabulary: a reply that writes HTML ended there, and typed it was cut up."""
    library = small()
    library.add_tokens([AddedToken("</s>", normalized=False)])
    library.save(str(tmp_path / "tokenizer.json"))
    tag = library.token_to_id("</s>")
    assert tag in Tokenizer.from_folder(tmp_path).end_ids
    library.add_special_tokens(["<eos>"])
    library.save(str(tmp_path / "tokenizer.json"))
    gemma = Tokenizer.from_folder(tmp_path)
    assert library.token_to_id("<eos>") in gemma.end_ids
    assert tag not in gemma.end_ids
    assert gemma.encode("</s>") == [tag]


@pytest.mark.parametrize("eos", ["<s>", {"content": "<s>", "__type": "AddedToken", "lstrip": False}])
def test_control_tokens_are_named_by_text_or_by_object(write: WriteFolder, eos: Any) -> None:
    """Files of every age: a token as a string, or as an object; special_tokens_map.json alone."""
    tokenizer = Tokenizer.from_folder(write(small(), special_tokens_map={"eos_token": eos}))
    assert tokenizer.special_tokens["eos_token"] == "<s>"


@pytest.mark.parametrize(
    ("settings", "adds"),
    [
        ({}, False),
        ({"bos_token": "<s>"}, False),
        ({"bos_token": "<s>", "add_bos_token": True}, True),
        ({"add_bos_token": True}, False),
        ({"bos_token": None, "add_bos_token": True}, False),
    ],
)
def test_bos_is_added_where_the_settings_say_so(write: WriteFolder, settings: dict[str, Any], adds: bool) -> None:
    """BOS forgotten, or added by a model that has none."""
    assert Tokenizer.from_folder(write(small(), tokenizer_config=settings)).adds_bos == adds


def test_bos_is_added_where_the_post_processor_does_it(tmp_path: Path) -> None:
    """Llama 3 says it there alone; its setting would win."""
    family = families.load("llama3", tmp_path)
    assert family.tokenizer.adds_bos
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings | {"add_bos_token": False}))
    assert not Tokenizer.from_folder(tmp_path).adds_bos


def test_the_tokenizer_s_word_on_bos_goes_before_the_model_s(write: WriteFolder) -> None:
    """Qwen: config.json names a BOS that the tokenizer doesn't have."""
    config = {"bos_token_id": 3}
    assert Tokenizer.from_folder(write(small(), config=config)).bos_id == 3
    assert Tokenizer.from_folder(write(small(), config=config, tokenizer_config={"bos_token": None})).bos_id is None


def test_settings_correct_the_flags_of_added_tokens(write: WriteFolder) -> None:
    """A strip rule or a special flag that stands in tokenizer_config.json alone."""
    library = small()
    tool = library.token_to_id("<tool>")
    flags = {"content": "<tool>", "lstrip": False, "rstrip": True, "single_word": False, "normalized": False}
    decoder = {str(tool): flags | {"special": True}, "3": {"content": "something else"}, "x": {}}
    tokenizer = Tokenizer.from_folder(write(library, tokenizer_config={"added_tokens_decoder": decoder}))
    assert tool in tokenizer.special
    assert [(m.start, m.end) for m in tokenizer.control_tokens("a<tool>  b")] == [(1, 9)]
    assert tool not in tokenizer.encode("<tool>")


def test_a_user_defined_token_acts_in_plain_text(write: WriteFolder) -> None:
    """As in the reference: added, but not special."""
    tokenizer = Tokenizer.from_folder(write(small()))
    assert tokenizer.bytes_of(tokenizer.encode("a<tool>")[1]) == b"<tool>"


def test_chance_and_truncation_in_the_file_are_left_out(write: WriteFolder) -> None:
    """Dropout, padding or truncation left on by whoever saved the file: other ids each time, a prompt cut short."""
    library = small()
    assert isinstance(library.model, models.BPE)
    library.model.dropout = 0.9
    library.enable_truncation(2)
    library.enable_padding(length=50)
    tokenizer = Tokenizer.from_folder(write(library))
    text = "The capital of France is Paris."
    library = small()
    assert tokenizer.encode(text) == library.encode(text).ids


def test_byte_order_marks_are_read(tmp_path: Path) -> None:
    """Files saved by an editor that puts one there (T12)."""
    small().save(str(tmp_path / "tokenizer.json"))
    text = (tmp_path / "tokenizer.json").read_text(encoding="utf-8")
    (tmp_path / "tokenizer.json").write_text(text, encoding="utf-8-sig")
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<s>"}', encoding="utf-8-sig")
    assert Tokenizer.from_folder(tmp_path).special_tokens["eos_token"] == "<s>"


def test_ids_that_the_library_would_number_otherwise_are_refused(write: WriteFolder) -> None:
    """A hole before the added tokens: the library numbers them by their place, and every control id is wrong."""
    folder = write(small())
    description = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    description["added_tokens"][-1]["id"] += 4
    with pytest.raises(CheckpointError, match=r"<\|eot_id\|>"):
        Tokenizer.from_folder(write(tokenizer=description))


def unigram() -> Library:
    return Library(models.Unigram([("a", 0.0), ("b", -1.0)]))


def with_word_ends() -> Library:
    return Library(models.BPE({"a</w>": 0}, [], end_of_word_suffix="</w>"))


def without_spelling() -> Library:
    library = Library(models.BPE({"a": 0}, []))
    library.pre_tokenizer, library.decoder = pre_tokenizers.Whitespace(), decoders.Fuse()
    return library


@pytest.mark.parametrize(
    ("library", "said"), [(unigram, "Unigram"), (with_word_ends, "</w>"), (without_spelling, "can't decode")]
)
def test_kinds_that_tinychat_does_not_know_are_named(
    write: WriteFolder, library: Callable[[], Library], said: str
) -> None:
    """Text that decodes to rubbish, in place of a sentence."""
    with pytest.raises(UnsupportedModel, match=said):
        Tokenizer.from_folder(write(library()))


@pytest.mark.parametrize(
    "content", ["", "[]", "{", "{}", '{"model": {}}', '{"model": {"type": "BPE"}}', "\x00", "[" * 100_000]
)
def test_a_damaged_file_is_named(write: WriteFolder, content: str) -> None:
    """A traceback of the library, or of the JSON reader."""
    with pytest.raises(TinychatError, match=r"tokenizer\.json"):
        Tokenizer.from_folder(write(tokenizer=content))


def test_folders_without_tokenizer_json(tmp_path: Path) -> None:
    """Older repositories: said with a remedy, not "file not found"."""
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(UnsupportedModel, match=r"vocab\.json and merges\.txt.*save_pretrained"):
        Tokenizer.from_folder(tmp_path)
