"""What a tokenizer is made of, whichever file it was read from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tokenizers import AddedToken
from tokenizers.models import BPE

_END_TEXTS: Final = frozenset(
    {
        *("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>"),
        *("<|end_of_text|>", "<eos>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|eot|>", "<｜end▁of▁sentence｜>"),
        "<end_of_utterance>",
        # What comes after code that was to be filled in: padding, the next file, another repository.
        *("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<|file_sep|>", "<|repo_name|>"),
    }
)

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
    scores: Sequence[float] | None = None
    """The score of each id, where the file has scores and the order of merges comes from them."""
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    """The names that chat templates know control tokens by: bos_token, eos_token, ..."""
    bos_id: int | None = None
    adds_bos: bool = False
    """Whether the model was trained with the BOS token before each text."""
    end_ids: frozenset[int] = frozenset()
    notices: tuple[str, ...] = ()


def ends_by_text(ids: Mapping[str, int]) -> set[int]:
    """Return the tokens that end a turn by their text, even where the file's ids don't say so; llama.cpp does it, too.

    Gemma's "</s>" ends no turn, it closes an HTML tag: where there is "<eos>", it is none of them.

    Args:
        ids: The tokens to look among, by text.
    """
    texts = _END_TEXTS - {"</s>"} if "<eos>" in ids else _END_TEXTS
    return {ids[text] for text in texts & ids.keys()}


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
