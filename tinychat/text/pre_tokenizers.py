"""How byte-level vocabularies in GGUF files cut text before merging, by the name the file gives (`tokenizer.ggml.pre`).

The names and what they mean are llama.cpp's (src/llama-vocab.cpp); the regular expressions are those of the models' own
tokenizer.json files. Each stage cuts the pieces of the one before; what an expression leaves out is a piece too.
llama.cpp's own expressions for `tekken` and `gpt-4o` know the case of ASCII letters alone ("éÉ" stays one piece there).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS: Final = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_UPPER: Final = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER: Final = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SIGNS: Final = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_PATHS: Final = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_SPACES: Final = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3: Final = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_SIGNS}|{_SPACES}"
_QWEN2: Final = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_SIGNS}|{_SPACES}"
_QWEN35: Final = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_TEKKEN: Final = rf"{_UPPER}*{_LOWER}+|{_UPPER}+{_LOWER}*|\p{{N}}|{_PATHS}|{_SPACES}"
_GPT4O: Final = (
    rf"{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_UPPER}+{_LOWER}*{_CONTRACTIONS}?|\p{{N}}{{1,3}}|{_PATHS}|{_SPACES}"
)
_SEED: Final = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"
_MINICPM: Final = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}+|{_SIGNS}|{_SPACES}"
_DEEPSEEK: Final = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
)
_BLOOM: Final = r" ?[^(\s|.,!?…。，、।۔،)]+"


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """One way to cut text."""

    splits: tuple[str, ...]
    """Regular expressions, applied one after the other."""
    ignore_merges: bool = False
    """Whether a piece that is a token by itself stays whole, though no merges lead to it."""
    adds_bos: bool = False
    """Whether these models begin with the BOS token where the file doesn't say."""

    def describe(self) -> dict[str, Any]:
        """Return it as tokenizer.json would describe it."""
        cut = {"type": "Split", "behavior": "Isolated", "invert": False}
        cuts = [cut | {"pattern": {"Regex": expression}} for expression in self.splits]
        to_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
        return {"type": "Sequence", "pretokenizers": [*cuts, to_bytes]}


DEFAULT: Final = PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"))
"""What llama.cpp falls back on."""

_GPT2_CUT: Final = PreTokenizer((_GPT2,))
_DIGITS_CUT: Final = PreTokenizer((r"\p{N}", _GPT2))
_LLAMA3_CUT: Final = PreTokenizer((_LLAMA3,), ignore_merges=True, adds_bos=True)
_QWEN2_CUT: Final = PreTokenizer((_QWEN2,))
_GPT4O_CUT: Final = PreTokenizer((_GPT4O,))
_DEEPSEEK_CUT: Final = PreTokenizer((r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+", _DEEPSEEK))

BY_NAME: Final[dict[str, PreTokenizer]] = {
    "default": DEFAULT,
    **dict.fromkeys(["gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "exaone4"], _GPT2_CUT),
    **dict.fromkeys(["gigachat", "a.x-4.0", "mellum"], _GPT2_CUT),
    **dict.fromkeys(["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"], _DIGITS_CUT),
    "mellum2": _DIGITS_CUT,
    **dict.fromkeys(["llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0"], _LLAMA3_CUT),
    **dict.fromkeys(["lfm2", "jina-v5-nano"], _LLAMA3_CUT),
    **dict.fromkeys(["dbrx", "smaug-bpe", "chatglm-bpe"], PreTokenizer((_LLAMA3,))),
    **dict.fromkeys(["glm4", "glm5"], PreTokenizer((_LLAMA3,), ignore_merges=True)),
    **dict.fromkeys(["qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan", "megrez", "kormo", "f2llmv2"], _QWEN2_CUT),
    **dict.fromkeys(["solar-open", "grok-2"], _QWEN2_CUT),
    "qwen35": PreTokenizer((_QWEN35,)),
    "tekken": PreTokenizer((_TEKKEN,), ignore_merges=True, adds_bos=True),
    **dict.fromkeys(["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"], _GPT4O_CUT),
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}")),
    **dict.fromkeys(["deepseek-v3", "hunyuan-dense", "joyai-llm"], _DEEPSEEK_CUT),
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")),
    **dict.fromkeys(["bloom", "poro-chat", "gpt3-finnish"], PreTokenizer((_BLOOM,))),
    "viking": PreTokenizer((_BLOOM, r"\p{N}")),
    "seed-coder": PreTokenizer((_SEED,)),
    "minicpm5": PreTokenizer((r"\p{N}{1,3}", _MINICPM), ignore_merges=True),
}
"""Every name tinychat knows; that a file has another is said on screen."""
