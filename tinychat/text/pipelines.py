"""The pipelines of the `tokenizers` library that turn plain text into ids, one for each place a text can stand in.

Some vocabularies put a space before a text that has none, so that a first word is spelled like any other. Whether they
do depends on what stands before: nothing, a control token, or more text. The library finds that out by itself only for
the first two and only within one call, so there is a pipeline for each; all share one model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, Literal, get_args

import tokenizers

from tinychat.text.parts import Json, TokenizerParts

Start = Literal["text", "control", "middle"]
"""What stands before a stretch of text: nothing, a control token, or more text of the same kind."""

_NO_MODEL: Final = {"type": "BPE", "vocab": {}, "merges": []}


def pipelines(parts: TokenizerParts) -> Mapping[Start, tokenizers.Tokenizer]:
    """Return a pipeline for each start. In none of them do control tokens act: their texts are plain text."""
    made: dict[str, tokenizers.Tokenizer] = {}
    chosen: dict[Start, tokenizers.Tokenizer] = {}
    for start in get_args(Start):
        stages = {
            "normalizer": _without_prefix(parts.normalizer, start),
            "pre_tokenizer": _without_prefix(parts.pre_tokenizer, start),
        }
        key = json.dumps(stages)
        chosen[start] = made[key] if key in made else made.setdefault(key, _pipeline(parts, stages))
    return chosen


def _pipeline(parts: TokenizerParts, stages: Mapping[str, Json | None]) -> tokenizers.Tokenizer:
    described = tokenizers.Tokenizer.from_str(json.dumps({**stages, "model": _NO_MODEL}))
    pipeline = tokenizers.Tokenizer(parts.model)
    if described.normalizer is not None:
        pipeline.normalizer = described.normalizer
    if described.pre_tokenizer is not None:
        pipeline.pre_tokenizer = described.pre_tokenizer
    pipeline.add_tokens(list(parts.added.values()))
    pipeline.encode_special_tokens = True
    return pipeline


def _without_prefix(stage: Json | None, start: Start) -> Json | None:
    """Return a normalizer or pre-tokenizer that puts no space before a text that starts so."""
    if stage is None or start == "text":
        return stage
    match stage["type"]:
        case "Sequence":
            key = "normalizers" if "normalizers" in stage else "pretokenizers"
            inner = [_without_prefix(one, start) for one in stage[key]]
            return stage | {key: [one for one in inner if one is not None]}
        case "Metaspace":
            # Without a scheme, the field of older files decides, and it means always.
            first_only = stage.get("prepend_scheme") == "first"
            if start == "middle" or first_only:
                return {k: v for k, v in stage.items() if k != "add_prefix_space"} | {"prepend_scheme": "never"}
        case "Prepend" if start == "middle":
            return None
        case "ByteLevel" if start == "middle":
            return stage | {"add_prefix_space": False}
    return stage
