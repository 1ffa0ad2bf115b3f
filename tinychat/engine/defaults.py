"""Where each sampler setting of a freshly loaded model comes from.

Precedence: the person's flag, models.toml, generation_config.json (or the keys of a GGUF file), built-in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from tinychat.protocol import SAMPLER_FIELDS, SamplerSettings
from tinychat.ranges import SAMPLER_RANGES

_FROM_JSON: Final = {name: name for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")}
_FROM_GGUF: Final = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}


def sampler_defaults(
    *,
    flags: Iterable[tuple[str, float | int | str]],
    card: Iterable[tuple[str, float]],
    generation_config: Mapping[str, Any],
    metadata: Mapping[str, Any],
) -> tuple[SamplerSettings, tuple[tuple[str, str], ...], tuple[str, ...]]:
    """Merge the sources of every setting.

    Args:
        flags: What the person asked for.
        card: The table of models.toml.
        generation_config: generation_config.json, or empty.
        metadata: The metadata of a GGUF file, or config.json, whose keys never collide with the ones read here.

    Returns:
        The settings, (setting, source) of each, and notices about values in the files that no sampler can use.

    Raises:
        ValueError: A flag is out of its range.
    """
    settings = SamplerSettings()
    sources = dict.fromkeys(SAMPLER_FIELDS, "built-in")
    notices = []
    files = [
        ("GGUF metadata", {ours: metadata[key] for key, ours in _FROM_GGUF.items() if metadata.get(key) is not None}),
        (
            "generation_config.json",
            {n: generation_config[n] for n in _FROM_JSON if generation_config.get(n) is not None},
        ),
    ]
    for source, values in files:
        for name, value in values.items():
            try:
                # Hugging Face's files write "off" for top-k also as -1.
                settings = _with(settings, name, 0 if name == "top_k" and value == -1 else value)
                sources[name] = source
            except (ValueError, TypeError) as error:
                notices.append(f"{source} is passed over where it sets {name} to {value!r}: {error}")
    for source, pairs in (("models.toml", card), ("flag", flags)):
        for name, given in pairs:
            settings = _with(settings, name, given)
            sources[name] = source
    return settings, tuple(sources.items()), tuple(notices)


def _with(settings: SamplerSettings, name: str, value: Any) -> SamplerSettings:
    if isinstance(value, (int, float)) and name not in ("seed", "order"):
        value = int(value) if SAMPLER_RANGES[name].integer and float(value).is_integer() else float(value)
    return replace(settings, **{name: value})
