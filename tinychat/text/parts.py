"""What a tokenizer is made of, whichever file it was read from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tokenizers import AddedToken
from tokenizers.models import BPE

END_TEXTS: Final = frozenset(
    {
        *("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>"),
        *("<|end_of_text|>", "<eos>", "<EOT>", "<|eot|>", "<｜end▁of▁sentence｜>"),
    }
)
"""Added tokens with these texts end a turn even where the file's ids don't say so; llama.cpp keeps such a list too."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TokenizerParts:
    """A BPE vocabulary, how text is cut before merging, and which tokens control the model."""

    model: BPE
    tokens: tuple[str, ...]
    """The spelling of each id."""
    byte_level: bool
    """Whether tokens are spelled in GPT-2's byte alphabet; else as SentencePiece spells them."""
    normalizer: Json | None
    """As tokenizer.json describes it."""
    pre_tokenizer: Json | None
    """As tokenizer.json describes it."""
    added: Mapping[int, AddedToken]
    """Tokens found in the text before anything else, by id; those with `special` set are control tokens."""
    unknown: int | None = None
    """The token for characters that have none, if there is one."""
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    """The names that chat templates know control tokens by: bos_token, eos_token, ..."""
    bos_id: int | None = None
    adds_bos: bool = False
    """Whether the model was trained with the BOS token before each text."""
    end_ids: frozenset[int] = frozenset()
    notices: tuple[str, ...] = ()


def control(token: AddedToken) -> AddedToken:
    """Return `token` as a control token, its strip rules kept."""
    return AddedToken(
        token.content,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.normalized,
        special=True,
    )
