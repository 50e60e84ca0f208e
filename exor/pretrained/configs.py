"""What a model's config says of its embeddings, and what has to be known of its type where it says nothing.

``KINDS`` is all that depends on the type.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import yaml

from exor import InputError


@dataclass(frozen=True)
class Kind:
    """What a model type adds to its tensors.

    Attributes:
        tied: whether it is tied where ``config.json`` does not say; None if unknown.
        norm: class of the final norm if it has a gain and no bias.
        bare: its final norm has no parameters.
        gain: added to the gain as stored.
        input_scale: ``√width``, or the field of ``config.json`` with the factor of input embeddings.
        logit_scale, divided: the field with the factor of logits, and whether they are divided by it.
        cap: the field with the bound c of c · tanh(logit / c).
        defaults: of these fields.
    """

    tied: bool | None = None
    norm: str = "RMSNorm"
    bare: bool = False
    gain: float = 0.0
    input_scale: str = ""
    logit_scale: str = ""
    divided: bool = False
    cap: str = ""
    defaults: tuple[tuple[str, float], ...] = ()


def _of(types: str, kind: Kind) -> dict[str, Kind]:
    return dict.fromkeys(types.split(), kind)


TIED, UNTIED = Kind(tied=True), Kind(tied=False)
GEMMA = Kind(tied=True, gain=1.0, input_scale="√width", cap="final_logit_softcapping")
CAP = (("final_logit_softcapping", 30.0),)
GRANITE = Kind(tied=False, input_scale="embedding_multiplier", logit_scale="logits_scaling", divided=True)
COHERE = Kind(True, "LayerNorm", logit_scale="logit_scale", defaults=(("logit_scale", 0.0625),))

KINDS: dict[str, Kind] = {
    **_of("albert bert bloom camembert distilbert electra ernie esm falcon gpt2 gpt_bigcode gpt_neo longformer", TIED),
    **_of(
        "mamba falcon_mamba mobilebert mpnet opt roberta smollm3 starcoder2 xglm xlm-roberta lfm2 data2vec-text", TIED
    ),
    **_of("ernie4_5 ernie4_5_moe mistral3 internvl megatron-bert deberta deberta-v2 layoutlm", TIED),
    **_of("mpt modernbert", Kind(tied=True, norm="LayerNorm")),
    **_of("apertus arcee bitnet codegen deepseek_v2 deepseek_v3 exaone4 falcon_h1 flex_olmo glm glm4 gpt_neox", UNTIED),
    **_of("gpt_oss gptj helium jamba llama llama4 llama4_text llava llava_next llava_onevision mamba2 minimax", UNTIED),
    **_of(
        "ministral ministral3 mistral mixtral olmo2 olmo3 olmoe persimmon phi phi3 phimoe qwen2 qwen2_moe qwen3", UNTIED
    ),
    **_of("qwen2_vl qwen2_5_vl qwen3_moe qwen3_vl qwen3_vl_moe seed_oss smolvlm idefics3 stablelm rwkv emu3", UNTIED),
    **_of("qwen3_next qwen3_5 qwen3_5_text qwen3_5_moe qwen3_5_moe_text", Kind(tied=False, gain=1.0)),
    "nemotron": Kind(tied=False, gain=1.0),
    "olmo": Kind(tied=False, norm="LayerNorm", bare=True),
    **_of("gemma gemma3 gemma3_text paligemma", GEMMA),
    **_of("gemma2 vaultgemma", replace(GEMMA, defaults=CAP)),
    **_of("gemma3n gemma3n_text", replace(GEMMA, gain=0.0, defaults=CAP)),
    "recurrent_gemma": replace(GEMMA, cap="logits_soft_cap", defaults=(("logits_soft_cap", 30.0),)),
    **_of("granite granitemoe granitemoeshared granitemoehybrid", GRANITE),
    **_of("cohere cohere2", COHERE),
}
FALCON_H1 = "embedding_multiplier", "lm_head_multiplier"
KINDS["falcon_h1"] = Kind(tied=False, input_scale=FALCON_H1[0], logit_scale=FALCON_H1[1])


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """The part that describes the language model, where there are others."""
    inner = config.get("text_config")
    return inner if isinstance(inner, dict) else config


def kind_of(config: dict[str, Any]) -> Kind:
    """What is known of the model type; of the language model's where a model has several parts."""
    types = (text_config(config).get("model_type"), config.get("model_type"))
    return next((KINDS[str(t)] for t in types if str(t) in KINDS), Kind())


def says_tied(config: dict[str, Any]) -> tuple[bool | None, str]:
    """Whether a model is tied, and what says so; None where nothing does.

    The outer value of ``tie_word_embeddings`` is the one that counts where there are two.
    """
    for part in (config, text_config(config)):
        if isinstance(tied := part.get("tie_word_embeddings"), bool):
            return tied, f"config.json says {'tied' if tied else 'untied'}"
    kind = KINDS.get(str(config.get("model_type"))) or kind_of(config)
    name = config.get("model_type") or "this model type"
    if kind.tied is None:
        return None, f"nothing says whether {name} is tied"
    return kind.tied, f"{name} is {'tied' if kind.tied else 'untied'} unless config.json says otherwise"


def scales(config: dict[str, Any], width: int) -> tuple[float, float, float | None]:
    """Factor of input embeddings (not yet rounded), factor of logits, and bound of logits or None.

    Raises:
        InputError: the value in the config is no number.
    """
    kind, text = kind_of(config), text_config(config)

    def value(field: str) -> float | None:
        found = text.get(field, dict(kind.defaults).get(field)) if field else None
        if found is not None and not isinstance(found, int | float):
            raise InputError(f"config.json: {field} is {found!r}; a number was expected")
        return found

    inward = width**0.5 if kind.input_scale == "√width" else value(kind.input_scale)
    outward = value(kind.logit_scale)
    outward = 1.0 if outward is None else 1 / outward if kind.divided else float(outward)
    return 1.0 if inward is None else float(inward), outward, value(kind.cap)


def olmo_config(raw: bytes, where: str) -> dict[str, Any]:
    """The config of OLMo's own format (``config.yaml``) under the names of ``config.json``.

    Raises:
        InputError: not such a config.
    """
    try:
        model = yaml.safe_load(raw)["model"]
        hidden = model.get("mlp_hidden_size") or model["mlp_ratio"] * model["d_model"]
        heads = model["n_heads"]
        return {
            "model_type": "olmo",
            "hidden_size": model["d_model"],
            "num_hidden_layers": model["n_layers"],
            "num_attention_heads": heads,
            "num_key_value_heads": model.get("n_kv_heads") or (1 if model.get("multi_query_attention") else heads),
            # both halves of a gated unit are counted there
            "intermediate_size": hidden // 2 if model.get("activation_type", "swiglu") == "swiglu" else hidden,
            "vocab_size": model.get("embedding_size") or model["vocab_size"],
            "max_position_embeddings": model.get("max_sequence_length"),
            "tie_word_embeddings": bool(model.get("weight_tying", True)),
        }
    except (yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{where}: not a config of OLMo ({' '.join(str(error).split())})") from error
