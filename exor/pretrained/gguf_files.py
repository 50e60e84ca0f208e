"""GGUF files: which tensors there are, what their metadata say, and undoing their quantisation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from exor import InputError
from exor.pretrained import require
from exor.pretrained.tensors import FLOATS, Stored, check_ends

# What Hugging Face calls the model types and the fields of config.json.
TYPES = {
    **{"gptneox": "gpt_neox", "phi2": "phi", "command-r": "cohere", "gemma3": "gemma3_text", "qwen2moe": "qwen2_moe"},
    **{"qwen3moe": "qwen3_moe", "gemma3n": "gemma3n_text", "starcoder": "gpt_bigcode", "granitemoe": "granitemoe"},
}
FIELDS = {
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "context_length": "max_position_embeddings",
    "final_logit_softcapping": "final_logit_softcapping",
    "embedding_scale": "embedding_multiplier",
    "vocab_size": "vocab_size",
}


@dataclass(frozen=True)
class GGUF:
    """What the beginning of a GGUF file says.

    Attributes:
        length: bytes up to the first tensor.
        config: its metadata under the names of config.json.
        tokens, token_types: the vocabulary, None where the file has none.
    """

    tensors: dict[str, Stored]
    length: int
    config: dict[str, Any]
    tokens: list[str] | None
    token_types: list[int] | None


def read_gguf(path: Path, name: str) -> GGUF:
    """Metadata and tensors of a GGUF file, without the tensors' bytes.

    Args:
        name: of the file, as shown.

    Raises:
        InputError: damaged.
    """
    require("gguf")
    from gguf import GGUFReader

    try:
        reader = GGUFReader(path)
        if reader.byte_order != "I":
            raise InputError(f"{name}: written for machines of another byte order")
        found = {}
        for tensor in reader.tensors:
            kind = tensor.tensor_type.name
            kind = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}.get(kind, kind)
            shape = tuple(int(n) for n in reversed(tensor.shape))
            found[tensor.name] = Stored(tensor.name, shape, kind, name, int(tensor.n_bytes), int(tensor.data_offset))
        check_ends(found, path.stat().st_size)
        metadata = {key: field for key, field in reader.fields.items() if not key.startswith("GGUF.")}
        tokens = metadata.pop("tokenizer.ggml.tokens", None)
        types = metadata.pop("tokenizer.ggml.token_type", None)
        scalars = {key: f.contents() for key, f in metadata.items() if len(f.types) == 1}
        # not `contents`: a token need not be valid UTF-8
        strings = [bytes(tokens.parts[i]).decode("utf-8", "replace") for i in tokens.data] if tokens else None
        numbers = types.contents() if types else None
    except (ValueError, IndexError, KeyError, OverflowError, TypeError, UnicodeDecodeError, OSError) as error:
        raise InputError(f"{name}: not a GGUF file, or damaged ({_line(error)})") from error
    return GGUF(found, int(reader.data_offset), _config(scalars, found, strings), strings, numbers)


def dequantise(raw: memoryview, stored: Stored, shape: tuple[int, ...]) -> Tensor:
    """Rows of a quantised tensor as float32.

    Args:
        raw: the rows as stored.
        stored: the tensor.
        shape: of the rows.

    Raises:
        InputError: the type is unknown or cannot be dequantised.
    """
    require("gguf")
    from gguf import GGMLQuantizationType, quants

    try:
        packed = np.frombuffer(raw, dtype=np.uint8).reshape(shape[0], -1)
        return torch.from_numpy(quants.dequantize(packed, GGMLQuantizationType[stored.dtype]).reshape(shape))
    except (KeyError, NotImplementedError) as error:
        raise InputError(
            f"{stored.file}: {stored.name} is stored as {stored.dtype}, which cannot be read; floats and the usual "
            "quantised types of GGUF can"
        ) from error


def rounding(kind: str) -> float:
    """Relative error ‖stored − true‖ / ‖true‖ to be expected of a type, in the mean over a normal matrix.

    For floats half a unit in the last place. For b bits per weight in blocks whose largest weight is about 2.2 standard
    deviations, steps of 2 · 2.2 / 2^b standard deviations, and a uniform error of 1/√12 of a step.
    """
    if kind in FLOATS:
        return torch.finfo(FLOATS[kind]).eps / 2
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    if kind not in GGMLQuantizationType.__members__:
        return 0.0
    weights, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    return 4.4 / 12**0.5 / 2 ** (8 * size / weights)


def _config(metadata: dict[str, Any], tensors: dict[str, Stored], tokens: list[str] | None) -> dict[str, Any]:
    kind = str(metadata.get("general.architecture", ""))
    config: dict[str, Any] = {"model_type": TYPES.get(kind, kind)}
    for field, name in FIELDS.items():
        if (value := metadata.get(f"{kind}.{field}")) is not None:
            config[name] = value
    if (scale := metadata.get(f"{kind}.logit_scale")) is not None:  # Granite divides by it, Cohere multiplies
        config["logits_scaling" if kind.startswith("granite") else "logit_scale"] = scale
    if "token_embd.weight" in tensors:
        config["vocab_size"] = tensors["token_embd.weight"].shape[0]
    elif tokens:
        config.setdefault("vocab_size", len(tokens))
    return config


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
