"""transformers' own model of a checkpoint, in fp32: what `compare` holds ours to.

A folder is loaded by transformers itself. transformers' loader of GGUF files drops RoPE scaling and lacks families, so
there its class is built, and filled with the file's tensors, dequantised: the `gguf` package says which tensor of the
file is which of its parameters, and `_UNDO` what llama.cpp's converter did to them. Of ours there are only the file
format and the numbers of the config in it, none of the names or orders that our models go by.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

import torch

from tinychat.engine import memory
from tinychat.engine.loading import Architecture
from tinychat.engine.opening import Opened
from tinychat.errors import OutOfMemory, TinychatError, UnsupportedModel
from tinychat.models.rope_settings import RopeSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NEEDED: Final = "transformers>=5.24,<6"

_MODEL_TYPES: Final = {"gptneox": "gpt_neox", "gemma3": "gemma3_text"}
"""`general.architecture` of GGUF -> transformers' `model_type`, where they differ."""
_FACTORS: Final[tuple[str, ...]] = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")
"""Tensors of a GGUF file that are no parameters in transformers."""

Undo = Callable[[str, torch.Tensor, Any], torch.Tensor]
"""(transformers' name of a parameter, what the file holds of it, transformers' config) -> the parameter."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a model made of a text, in fp32."""

    hidden: tuple[torch.Tensor, ...]
    """[T, C] each: what goes into each layer, then what comes out of the last, then that after the final norm."""
    logits: torch.Tensor
    """[T, V]."""


@dataclass(frozen=True, slots=True)
class Reference:
    """transformers' model, and a sentence that says what it was made of."""

    model: PreTrainedModel
    origin: str


def reference_of(opened: Opened, found: Architecture, parameters: int) -> Reference:
    """Build transformers' model of a checkpoint, in fp32 and with its plainest attention.

    Args:
        opened: The checkpoint, open.
        found: Its config and tensors.
        parameters: How many there are.

    Raises:
        TinychatError: transformers is not installed, or can't make a model of this checkpoint.
        OutOfMemory: It doesn't fit beside ours.
    """
    version = check_installed()
    if 4 * parameters > (free := memory.available()):
        raise OutOfMemory(
            f"transformers' model of {found.source} in fp32 needs {memory.gigabytes(4 * parameters)} beside ours; "
            f"{memory.gigabytes(free)} of memory are free.",
            "Close other programs, or compare a smaller model of the family.",
        )
    model = _of_gguf(opened, found) if found.gguf else _of_folder(found.source)
    how = "filled with the file's dequantised tensors" if found.gguf else "loaded from the folder by transformers"
    return Reference(model.eval().requires_grad_(False), f"transformers {version}, {type(model).__name__}, fp32, {how}")


def check_installed() -> str:
    """Return transformers' version.

    Raises:
        TinychatError: It can't be imported.
    """
    try:
        import transformers
    except ImportError as error:
        raise TinychatError(
            f"compare needs transformers, which can't be imported ({error}).",
            f"`pip install '{NEEDED}'` into the environment that tinychat is in brings it.",
        ) from error
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return str(transformers.__version__)


@torch.inference_mode()
def run(model: PreTrainedModel, ids: Sequence[int]) -> Measured:
    """Run transformers' model over `ids` at once.

    The last of its hidden states is taken after the final norm, so what leaves the last layer is caught on its way.
    """
    base = getattr(model.base_model, "language_model", model.base_model)
    layers = base.h if hasattr(base, "h") else base.layers
    caught: list[Any] = []
    hook = layers[-1].register_forward_hook(lambda *passed: caught.append(passed[-1]))
    try:
        out = model(torch.tensor([list(ids)]), output_hidden_states=True, use_cache=False)
    finally:
        hook.remove()
    last = caught[0][0] if isinstance(caught[0], tuple) else caught[0]
    states = [*out.hidden_states[:-1], last, out.hidden_states[-1]]
    return Measured(tuple(state.reshape(len(ids), -1) for state in states), out.logits[0].float())


def _of_folder(source: str) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM

    try:
        model, loaded = AutoModelForCausalLM.from_pretrained(
            source, dtype=torch.float32, attn_implementation="eager", local_files_only=True, output_loading_info=True
        )
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        raise TinychatError(f"transformers can't load {source}: {error}") from error
    if missing := sorted(loaded["missing_keys"]):  # it fills them with random numbers
        raise TinychatError(f"transformers finds no {missing[0]} in {source}, one of {len(missing)} it lacks.")
    made: PreTrainedModel = model
    return made


def _of_gguf(opened: Opened, found: Architecture) -> PreTrainedModel:
    import gguf
    from transformers import AutoModelForCausalLM

    tensors = opened.checkpoint.tensors
    named = str(opened.checkpoint.config["general.architecture"])
    factors = {name: tensors[name].dense(torch.float32) for name in _FACTORS if name in tensors}
    try:
        config = _config(named, found.config, factors, tied="output.weight" not in tensors)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            config, attn_implementation="eager", dtype=torch.float32
        )
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise UnsupportedModel(f"transformers makes no model of the numbers in {found.source}: {error}.") from error
    architecture = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == named)
    names = gguf.get_tensor_name_map(architecture, found.config.layers)
    undo, left = _UNDO.get(named), set(tensors) - set(_FACTORS)
    for name, parameter in model.named_parameters():
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        stored = tensors.get(target or "")
        if stored is None:
            raise UnsupportedModel(f"{found.source} holds no {target or name}, which transformers' class needs.")
        values = stored.dense(torch.float32)
        parameter.data = values if undo is None else undo(name, values, config).contiguous()
        left.discard(stored.name)
    if left:
        raise UnsupportedModel(f"{found.source} holds {min(left)}, which transformers' class has no place for.")
    if "rope_freqs.weight" in factors:
        for module in model.modules():
            for buffer in ("inv_freq", "original_inv_freq"):
                if hasattr(module, buffer):
                    setattr(module, buffer, getattr(module, buffer) / factors["rope_freqs.weight"])
    return model


def _config(named: str, ours: Any, factors: Mapping[str, torch.Tensor], *, tied: bool) -> Any:
    """Return transformers' config of our numbers: fields of ours have its names, but for the rotations."""
    from transformers import AutoConfig

    kind = _MODEL_TYPES.get(named, named)
    known = AutoConfig.for_model(kind)
    given = {field.name: getattr(ours, field.name) for field in fields(ours)}
    numbers = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in given.items()
        if not isinstance(value, RopeSettings) and hasattr(known, name)
    }
    ropes = {name: _rope(value, ours, factors) for name, value in given.items() if isinstance(value, RopeSettings)}
    match ropes:
        case {"local_rope": local, "rope": rope}:
            numbers["rope_parameters"] = {"full_attention": rope, "sliding_attention": local}
        case {"rope": rope}:
            numbers["rope_parameters"] = rope
            if "original_max_position_embeddings" in rope and hasattr(known, "original_max_position_embeddings"):
                numbers["original_max_position_embeddings"] = rope["original_max_position_embeddings"]
    # No text is made with it: special tokens of its own defaults could lie outside of a small vocabulary.
    absent = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    return AutoConfig.for_model(kind, **numbers | absent | {"tie_word_embeddings": tied})


def _rope(settings: RopeSettings, ours: Any, factors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Return transformers' `rope_parameters`."""
    size = getattr(ours, "head_dim", None) or ours.hidden_size // ours.num_attention_heads
    given = {name: value for name, value in settings.parameters.items() if value is not None}
    if settings.rope_type == "longrope":
        given.pop("factor", None)  # GGUF has none: it follows from the two lengths
        for length in ("short", "long"):
            if (stored := factors.get(f"rope_factors_{length}.weight")) is not None:
                given[f"{length}_factor"] = stored.tolist()
    return given | {
        "rope_type": settings.rope_type,
        "rope_theta": settings.rope_theta,
        "partial_rotary_factor": settings.rotary_dim / size,
    }


def _neighbours_apart(name: str, values: torch.Tensor, config: Any) -> torch.Tensor:
    """Queries and keys: the converter put component i of each head beside component i + D/2."""
    part = name.split(".")[-2]
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(part)
    if heads is None:
        return values
    return values.view(heads, -1, 2, *values.shape[1:]).transpose(1, 2).reshape(values.shape)


def _less_one(name: str, values: torch.Tensor, config: Any) -> torch.Tensor:
    """Norms: the converter added the 1 that the model adds."""
    del config
    return values - 1 if name.endswith("norm.weight") else values


def _turned(name: str, values: torch.Tensor, config: Any) -> torch.Tensor:
    """Matrices of GPT-2: the model keeps them as [in, out]."""
    del config
    return values.T if name.split(".")[-2] in ("c_attn", "c_fc", "c_proj") and values.dim() == 2 else values


def _by_heads(name: str, values: torch.Tensor, config: Any) -> torch.Tensor:
    """Queries, keys and values of GPT-NeoX: the model keeps them head by head."""
    if name.split(".")[-2] != "query_key_value":
        return values
    return values.view(3, config.num_attention_heads, -1, *values.shape[1:]).transpose(0, 1).reshape(values.shape)


_UNDO: Final[dict[str, Undo]] = {
    "llama": _neighbours_apart,
    "smollm3": _neighbours_apart,
    "gpt2": _turned,
    "gemma2": _less_one,
    "gemma3": _less_one,
    "gptneox": _by_heads,
}
"""`general.architecture` -> what undoes llama.cpp's converter (its conversion/*.py); it changes nothing of others."""
