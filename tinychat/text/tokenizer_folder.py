"""The tokenizer of a model folder, from tokenizer.json and the small files beside it.

tokenizer.json describes the whole pipeline of the `tokenizers` library (https://huggingface.co/docs/tokenizers);
tokenizer_config.json and special_tokens_map.json say which tokens control the model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import tokenizers
from tokenizers import AddedToken
from tokenizers.models import BPE, Model

from tinychat.errors import CheckpointError, UnsupportedModel
from tinychat.text.parts import Json, TokenizerParts, control, ends_by_text
from tinychat.text.token_bytes import SPACE_MARK

ROLES: Final = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
"""The names that settings and chat templates know control tokens by."""


def read_folder(folder: Path) -> TokenizerParts:
    """Return the parts of the tokenizer in `folder`.

    Raises:
        CheckpointError: A file is missing or isn't what it says it is.
        UnsupportedModel: It is a kind of tokenizer that tinychat doesn't know.
    """
    path = folder / "tokenizer.json"
    if not path.exists():
        raise _missing(folder)
    description = read_json(path)
    _refuse_unknown(path, description)
    try:
        library = tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8-sig"))
    except Exception as error:  # the library raises nothing narrower
        raise CheckpointError(f"{path} is not a tokenizer: {error}.", "Fetch it again.") from None
    settings = read_json(folder / "special_tokens_map.json") | read_json(folder / "tokenizer_config.json")
    config = read_json(folder / "config.json")
    tokens = _tokens(path, library.get_vocab(with_added_tokens=True))
    added = _added_tokens(path, description, library, settings)
    special_tokens = {role: text for role in ROLES if (text := _text(settings.get(role))) is not None}
    bos = _id_of("bos_token", settings, config, library)
    eos = _id_of("eos_token", settings, config, library)
    generation = read_json(folder / "generation_config.json")
    listed = [eos, *_numbers(config, "eos_token_id"), *_numbers(generation, "eos_token_id")]
    end_ids = {i for i in listed if i is not None and i < len(tokens)}
    end_ids |= ends_by_text({token.content: i for i, token in added.items()})
    acting = end_ids if bos is None else end_ids | {bos}
    added |= {i: AddedToken(tokens[i], normalized=False) for i in acting - added.keys()}
    named = acting | {library.token_to_id(text) for text in special_tokens.values()}
    model = _exact(library.model)
    return TokenizerParts(
        model=model,
        tokens=tokens,
        byte_level=any(stage.get("type") == "ByteLevel" for stage in _stages(description)),
        normalizer=description.get("normalizer"),
        pre_tokenizer=description.get("pre_tokenizer"),
        added={i: control(token) if i in named else token for i, token in sorted(added.items())},
        unknown=library.token_to_id(model.unk_token) if model.unk_token else None,
        special_tokens={role: tokens[i] for role, i in {"bos_token": bos, "eos_token": eos}.items() if i is not None}
        | special_tokens,
        bos_id=bos,
        adds_bos=bos is not None and _adds_bos(description, settings, tokens[bos]),
        end_ids=frozenset(end_ids),
    )


def read_json(path: Path) -> Json:
    """Return the JSON object in `path`, or an empty one where there is no such file.

    Raises:
        CheckpointError: It can't be read or isn't a JSON object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} can't be read: {error}.", "Fetch it again.") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} doesn't hold a JSON object.", "Fetch it again.")
    return value


def _missing(folder: Path) -> CheckpointError | UnsupportedModel:
    older = [name for name in ("vocab.json", "merges.txt", "tokenizer.model") if (folder / name).exists()]
    if not older:
        return CheckpointError(
            f"{folder} has no tokenizer.json.", "Fetch the whole model; the tokenizer is among its files."
        )
    return UnsupportedModel(
        f"{folder} has {' and '.join(older)}, but no tokenizer.json, which is what tinychat reads.",
        "Write one with transformers: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER).",
    )


def _refuse_unknown(path: Path, description: Json) -> None:
    model = description.get("model")
    kind = model.get("type", "BPE") if isinstance(model, dict) else None
    if not isinstance(model, dict) or kind != "BPE":
        raise UnsupportedModel(
            f"{path} holds a tokenizer of the kind {kind}; tinychat knows BPE, byte-level or as SentencePiece has it.",
            "Choose another model.",
        )
    for key in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(key):
            raise UnsupportedModel(f"{path} marks parts of words by {key} {model[key]!r}, which tinychat doesn't know.")
    pipeline = json.dumps([description.get(part) for part in ("normalizer", "pre_tokenizer", "decoder")])
    if "ByteLevel" not in pipeline and json.dumps(SPACE_MARK)[1:-1] not in pipeline:
        raise UnsupportedModel(
            f"{path} spells its tokens neither in bytes nor as SentencePiece does, so tinychat can't decode them.",
            "Choose another model.",
        )


def _exact(model: Model) -> BPE:
    """Return the model without chance, and without an unknown token that it doesn't hold."""
    assert isinstance(model, BPE)
    model.dropout = None
    if model.unk_token is not None and model.token_to_id(model.unk_token) is None:
        model.unk_token = None
    return model


def _stages(description: Json) -> Iterator[Json]:
    """Yield the stages that cut text and put it together again, those in sequences one by one."""
    waiting = [description.get("pre_tokenizer"), description.get("decoder")]
    while waiting:
        if isinstance(stage := waiting.pop(), dict):
            waiting += stage.get("pretokenizers") or stage.get("decoders") or []
            yield stage


def _added_tokens(
    path: Path, description: Json, library: tokenizers.Tokenizer, settings: Json
) -> dict[int, AddedToken]:
    """Return the added tokens by id, as tokenizer.json has them and tokenizer_config.json corrects them."""
    for token in description.get("added_tokens") or []:
        # The library numbers them by their place, whatever the file says.
        if (place := library.token_to_id(token["content"])) != token["id"]:
            raise CheckpointError(
                f"{path} gives the token {token['content']!r} the id {token['id']}, but its place makes it {place}.",
                "The vocabulary was put together wrongly; choose another copy of this model.",
            )
    added = library.get_added_tokens_decoder()
    corrections = settings.get("added_tokens_decoder")
    for key, value in corrections.items() if isinstance(corrections, dict) else ():
        old = added.get(int(key)) if key.isdecimal() else None
        if old is not None and isinstance(value, dict) and value.get("content") == old.content:
            flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
            added[int(key)] = AddedToken(old.content, **{flag: bool(value.get(flag)) for flag in flags})
    return added


def _tokens(path: Path, ids: dict[str, int]) -> tuple[str, ...]:
    """Return the spelling of each id; ids that have none are spelled by nothing."""
    size = max(ids.values(), default=-1) + 1
    if not ids or size > 2 * len(ids) + 1000:
        raise CheckpointError(f"{path} has {len(ids):,} tokens, with ids up to {size - 1:,}.", "Fetch it again.")
    tokens = [""] * size
    for token, token_id in ids.items():
        tokens[token_id] = token
    return tuple(tokens)


def _text(token: object) -> str | None:
    """Return the text of a control token, which settings give as a string or as an object."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _id_of(role: str, settings: Json, config: Json, library: tokenizers.Tokenizer) -> int | None:
    """Return the token of a role: the tokenizer's own word for it, else the model's."""
    if role in settings:
        text = _text(settings[role])
        return library.token_to_id(text) if text is not None else None
    return next((i for i in _numbers(config, f"{role}_id") if library.id_to_token(i) is not None), None)


def _numbers(config: Json, key: str) -> list[int]:
    """Return the ids that a setting names, one or a list of them."""
    value = config.get(key)
    return [i for i in (value if isinstance(value, list) else [value]) if isinstance(i, int) and 0 <= i < 2**32]


def _adds_bos(description: Json, settings: Json, bos: str) -> bool:
    """Tell whether BOS goes before each text: as the settings say, else as the post-processor does it."""
    said = settings.get("add_bos_token")
    if isinstance(said, bool):
        return said
    processor = description.get("post_processor") or {}
    templates = [stage for stage in [processor, *(processor.get("processors") or [])] if stage.get("single")]
    return any(stage["single"][0].get("SpecialToken", {}).get("id") == bos for stage in templates)
