"""Tiny random models of many architectures, and their files in every format."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import save_file
from torch import Tensor

from exor import InputError
from exor.pretrained.checkpoints import open_checkpoint

VOCABULARY, WIDTH = 60, 32
SIZES = {
    **{"vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": 48, "num_hidden_layers": 1},
    **{"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 32},
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
}
OTHER_NAMES = {  # for the types that call their sizes otherwise
    "gpt2": {"n_embd": WIDTH, "n_layer": 1, "n_head": 2, "n_positions": 32},
    "gpt_neo": {"num_layers": 1, "num_heads": 2, "attention_types": [[["global"], 1]]},
    "bloom": {"n_layer": 1, "n_head": 2},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": WIDTH},
    "distilbert": {"dim": WIDTH, "n_layers": 1, "n_heads": 2, "hidden_dim": 48},
    "albert": {"embedding_size": 16},
    "granite": {"embedding_multiplier": 12.0, "logits_scaling": 8.0},
    "gemma2": {"query_pre_attn_scalar": 16},
    "falcon": {"num_kv_heads": 2, "ffn_hidden_size": 48},
}
CAUSAL = (
    *("llama", "olmo", "olmo2", "olmo3", "qwen2", "qwen3", "gpt2", "gpt_neo", "gpt_neox", "gemma", "gemma2"),
    *("gemma3_text", "mistral", "phi", "phi3", "opt", "bloom", "falcon", "granite", "cohere", "stablelm", "starcoder2"),
)
MASKED = ("bert", "roberta", "distilbert", "albert", "modernbert")


def config_of(kind: str, **settings: Any) -> Any:
    """A tiny config of a model type."""
    from transformers import AutoConfig

    sizes = {name: size for name, size in SIZES.items() if (kind, name) != ("falcon", "head_dim")}
    return AutoConfig.for_model(kind, **sizes | OTHER_NAMES.get(kind, {}) | settings)


def model_of(kind: str, seed: int = 0, **settings: Any) -> Any:
    """A tiny random model with a head; norms and biases are random too."""
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    torch.manual_seed(seed)
    model = (AutoModelForMaskedLM if kind in MASKED else AutoModelForCausalLM).from_config(config_of(kind, **settings))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.mean() + 0.3 * torch.randn_like(parameter))
    return model.eval()


def matrices(model: Any) -> tuple[Tensor, Tensor]:
    """Input and output matrix of a model."""
    return model.get_input_embeddings().weight.detach(), model.get_output_embeddings().weight.detach()


def write(folder: Path, tensors: dict[str, Tensor], config: dict[str, Any] | None = None) -> Path:
    """A folder with these tensors as safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def write_olmo(folder: Path, tied: bool) -> dict[str, Tensor]:
    """A folder in OLMo's own format; the tensors in it."""
    torch.manual_seed(3)
    tensors = {
        "transformer.wte.weight": torch.randn(VOCABULARY, WIDTH),
        "transformer.blocks.0.ff_out.weight": torch.randn(VOCABULARY, WIDTH),  # to be left alone
        "transformer.blocks.0.ff_proj.weight": torch.randn(96, WIDTH),
    }
    if not tied:
        tensors["transformer.ff_out.weight"] = torch.randn(VOCABULARY, WIDTH)
    folder.mkdir(parents=True)
    torch.save(tensors, folder / "model.pt")
    model = {"d_model": WIDTH, "n_layers": 1, "n_heads": 2, "mlp_ratio": 8, "vocab_size": 55, "weight_tying": tied}
    model |= {"embedding_size": VOCABULARY, "activation_type": "swiglu", "max_sequence_length": 32}
    (folder / "config.yaml").write_text(yaml.safe_dump({"model": model, "seed": 1}))
    return tensors


def write_gguf(
    path: Path, tensors: dict[str, Tensor], kind: str = "F32", architecture: str = "llama", **metadata: float
) -> Path:
    """A GGUF file; matrices are quantised to a type of GGUF, the rest is float32."""
    from gguf import GGMLQuantizationType, GGUFWriter, quants

    writer = GGUFWriter(path, architecture)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    for key, value in metadata.items():
        writer.add_float32(f"{architecture}.{key}", value)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"token {i}" for i in range(VOCABULARY)])
    writer.add_token_types([3] + [1] * (VOCABULARY - 1))
    for name, tensor in tensors.items():
        to = GGMLQuantizationType[kind if tensor.ndim == 2 else "F32"]
        writer.add_tensor(name, quants.quantize(tensor.numpy(), to), raw_dtype=to)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def shard(folder: Path) -> list[str]:
    """Split ``model.safetensors`` of a folder into a file for each tensor, with an index."""
    from safetensors.torch import load_file

    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    index = {}
    for i, (name, tensor) in enumerate(sorted(tensors.items())):
        index[name] = f"model-{i + 1:05d}-of-{len(tensors):05d}.safetensors"
        save_file({name: tensor}, folder / index[name])
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return [index[name] for name in index if re.search("embed|head", name)]


# --- a model of three tensors, and how it is compared ----------------------------------------------------------

LLAMA = {"model_type": "llama", "hidden_size": WIDTH, "vocab_size": VOCABULARY}


def random(seed=0, rows=VOCABULARY, width=WIDTH):
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


def untied():
    return {
        "model.embed_tokens.weight": random(1),
        "model.layers.0.mlp.up_proj.weight": random(2),
        "model.norm.weight": random(3, 1)[0],
        "lm_head.weight": random(4),
    }


def tied():
    return {k: v for k, v in untied().items() if k != "lm_head.weight"}


def same(path, expected, **keys):
    """Read it, and compare with the tensors saved under the names of Llama."""
    checkpoint = open_checkpoint(path, **keys)
    found = checkpoint.read()
    assert checkpoint.bytes_to_fetch == 0
    assert (checkpoint.rows, checkpoint.width) == found.input.shape == (VOCABULARY, WIDTH)
    assert torch.equal(found.input, expected["model.embed_tokens.weight"])
    assert found.tied == ("lm_head.weight" not in expected) == (found.output is found.input)
    assert torch.equal(found.output, expected.get("lm_head.weight", found.input))
    assert torch.equal(found.norm_gain, expected["model.norm.weight"])
    return found


def refused(path, *words, **keys):
    """One line that holds these words."""
    with pytest.raises(InputError) as caught:
        open_checkpoint(path, **keys).read()
    message = str(caught.value)
    assert "\n" not in message and all(word in message for word in words), message
    return message
