"""The tokenizer of a GGUF file, from its `tokenizer.*` metadata.

Two kinds: `gpt2` is byte-level BPE with one of the cuts of `pre_tokenizers`, `llama` is SentencePiece's BPE, whose
merges follow from the tokens' scores. Key names: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tokenizers import AddedToken
from tokenizers.models import BPE

from tinychat.errors import CheckpointError, UnsupportedModel
from tinychat.text import pre_tokenizers
from tinychat.text.parts import TokenizerParts, ends_by_text
from tinychat.text.pre_tokenizers import PreTokenizer
from tinychat.text.token_bytes import SPACE_MARK

NORMAL: Final = 1
UNKNOWN: Final = 2
CONTROL: Final = 3
USER_DEFINED: Final = 4
UNUSED: Final = 5

TEMPLATE_ROLES: Final = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
"""The names that chat templates know control tokens by, and GGUF's."""

_PREFIX: Final = "tokenizer.ggml."


def read_metadata(metadata: Mapping[str, Any]) -> TokenizerParts:
    """Return the parts of the tokenizer that a GGUF file describes.

    Raises:
        CheckpointError: The tokens are missing, or the lists don't fit together.
        UnsupportedModel: It is a kind of tokenizer that tinychat doesn't know.
    """
    kind = metadata.get(f"{_PREFIX}model")
    if kind not in ("gpt2", "llama"):
        raise UnsupportedModel(
            f"The GGUF file holds a tokenizer of the kind {kind!r}; tinychat knows gpt2 (byte-level BPE) and llama "
            "(SentencePiece BPE)."
            if kind is not None
            else "The GGUF file holds no tokenizer (tokenizer.ggml.model is missing).",
            "Models without one of these can't be talked to; choose another file.",
        )
    tokens = _strings(metadata, "tokens")
    types = _numbers(metadata, "token_type", len(tokens)) or [NORMAL] * len(tokens)
    ids: dict[str, int] = {}
    for i, token in enumerate(tokens):
        ids.setdefault(token, i)  # of two tokens spelled alike, the first is the one that text becomes
    defaults = {"bos": 1, "eos": 2, "unknown": 0} if kind == "llama" else {}
    roles: dict[str, int | None] = {
        name: _token_id(metadata, name, len(tokens), defaults.get(name))
        for name in ("bos", "eos", "eot", "eom", "unknown", "padding")
    }
    named = (roles[name] for name in ("eos", "eot", "eom"))
    end_ids = frozenset(end for end in named if end is not None) | ends_by_text(ids)
    control = {i for i in ids.values() if types[i] in (CONTROL, UNKNOWN) or i == roles["bos"]} | end_ids
    found_first = control | {i for i in ids.values() if types[i] == USER_DEFINED}
    strips = kind == "llama" and _is_phi3(metadata)
    kept = {roles["bos"], roles["unknown"], ids.get("<|endoftext|>")}
    cut = pre_tokenizers.BY_NAME.get(str(metadata.get(f"{_PREFIX}pre")), pre_tokenizers.DEFAULT)
    return TokenizerParts(
        model=_byte_level(metadata, ids, cut) if kind == "gpt2" else _sentencepiece(metadata, types, ids, roles),
        tokens=tuple(tokens),
        byte_level=kind == "gpt2",
        normalizer=None if kind == "gpt2" else _space_marks(metadata),
        pre_tokenizer=cut.describe() if kind == "gpt2" else None,
        added={
            i: AddedToken(tokens[i], normalized=False, special=i in control, rstrip=strips and i not in kept)
            for i in sorted(found_first)
        },
        unknown=roles["unknown"] if kind == "llama" else None,
        scores=_numbers(metadata, "scores", len(tokens)) if kind == "llama" else None,
        special_tokens={
            role: tokens[token_id] for role, key in TEMPLATE_ROLES.items() if (token_id := roles[key]) is not None
        },
        bos_id=roles["bos"],
        adds_bos=bool(metadata.get(f"{_PREFIX}add_bos_token", kind == "llama" or cut.adds_bos)),
        end_ids=end_ids,
        notices=_notices(metadata) if kind == "gpt2" else (),
    )


def _is_phi3(metadata: Mapping[str, Any]) -> bool:
    """Tell whether most control tokens take in the spaces behind them, which GGUF files don't say: Phi-3's do.

    llama.cpp goes by the model's name alone, and misses "Phi 3.5".
    """
    name = metadata.get("general.name")
    named = isinstance(name, str) and re.search(r"phi-?3", name, re.IGNORECASE) is not None
    return named or metadata.get("general.architecture") == "phi3"


def _byte_level(metadata: Mapping[str, Any], ids: dict[str, int], cut: PreTokenizer) -> BPE:
    # A token may begin with a space of its own, so the pair parts at the first space after the first character.
    pairs = ((merge, merge.find(" ", 1)) for merge in _strings(metadata, "merges"))
    merges = [(merge[:at], merge[at + 1 :]) for merge, at in pairs if at > 0]
    unknown = sum(left not in ids or right not in ids or left + right not in ids for left, right in merges)
    if unknown:
        raise CheckpointError(
            f"The GGUF file's tokenizer lacks tokens that {unknown:,} of its merges need.",
            "The file is damaged or was converted wrongly; fetch it again or choose another.",
        )
    return BPE(ids, merges, ignore_merges=cut.ignore_merges)


def _notices(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    name = metadata.get(f"{_PREFIX}pre")
    if name in pre_tokenizers.BY_NAME and name != "default":
        return ()
    said = f"names {name!r}, which tinychat doesn't know" if name not in (None, "default") else "doesn't say"
    return (
        f"How this model's text is cut before merging is uncertain: the file {said}. llama.cpp's default is used, so "
        "some words may become other tokens than those the model was trained on.",
    )


def _sentencepiece(
    metadata: Mapping[str, Any], types: Sequence[int], ids: dict[str, int], roles: Mapping[str, int | None]
) -> BPE:
    scores = _numbers(metadata, "scores", len(types))
    if not scores:
        raise CheckpointError("The GGUF file's tokenizer has no scores, which a SentencePiece vocabulary needs.")
    mergeable = {token: i for token, i in ids.items() if types[i] in (NORMAL, UNUSED)}
    return BPE(
        ids,
        merges_by_score(mergeable, scores),
        unk_token=next((token for token, i in ids.items() if i == roles["unknown"]), None),
        fuse_unk=True,
        byte_fallback=True,
    )


def _space_marks(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the normalizer that spells spaces as SentencePiece does, with one put before each text if the file says
    so, and as llama.cpp does it: whether the text begins with a space or not, and behind control tokens, too."""
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE_MARK}
    if not metadata.get(f"{_PREFIX}add_space_prefix", True):
        return replace
    return {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": SPACE_MARK}, replace]}


def merges_by_score(ids: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Return the merges that make BPE do what SentencePiece does: join the two neighbours whose union has the highest
    score, as long as there is such a union (Kudo and Richardson 2018, https://arxiv.org/abs/1808.06226).

    Args:
        ids: The id of each token that merging may reach.
        scores: The score of each id; equal scores are taken in the order of ids. That is the order of learning, and all
            that is left of it in files converted from tokenizer.json, where every score is -1000; llama.cpp joins the
            leftmost of equals.
    """
    merges: list[tuple[str, str]] = []
    for token in sorted(ids, key=lambda token: (-scores[ids[token]], ids[token])):
        possible = [
            (left, right) for at in range(1, len(token)) if (left := token[:at]) in ids and (right := token[at:]) in ids
        ]
        if len(possible) > 1:
            possible.sort(key=lambda pair: (ids[pair[0]], ids[pair[1]]))
        merges += possible
    return merges


def _token_id(metadata: Mapping[str, Any], name: str, size: int, default: int | None) -> int | None:
    value = metadata.get(f"{_PREFIX}{name}_token_id", default)
    return value if isinstance(value, int) and 0 <= value < size else None


def _strings(metadata: Mapping[str, Any], name: str) -> list[str]:
    values = metadata.get(f"{_PREFIX}{name}")
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise CheckpointError(
            f"The GGUF file's tokenizer has no list of {name} ({_PREFIX}{name}).",
            "The file is damaged or holds no vocabulary; choose another.",
        )
    return values


def _numbers(metadata: Mapping[str, Any], name: str, count: int) -> list[Any]:
    """Return a list of one number a token, or nothing where the file has no such list."""
    values = metadata.get(f"{_PREFIX}{name}")
    if values is None:
        return []
    if not isinstance(values, list) or len(values) != count or not all(isinstance(v, int | float) for v in values):
        raise CheckpointError(
            f"The GGUF file's tokenizer has {count:,} tokens, but {_PREFIX}{name} is not a list of as many numbers.",
            "The file is damaged; fetch it again.",
        )
    return values
