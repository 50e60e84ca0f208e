"""Parameter counts against closed forms, published shares, and models that are really built."""

import pandas as pd
import pytest
from tiny_models import CAUSAL, MASKED, config_of, matrices, model_of

from exor import InputError
from exor.pretrained.parameters import count, parameters

GPT2 = {"model_type": "gpt2", "vocab_size": 50_257, "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024}
LLAMA = {"model_type": "llama", "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 3}
LLAMA |= {"num_attention_heads": 8, "num_key_value_heads": 2, "tie_word_embeddings": False}
BERT = {"model_type": "bert", "vocab_size": 300, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
BERT |= {"num_attention_heads": 2, "max_position_embeddings": 16, "architectures": ["BertForMaskedLM"]}


def pythia(width: int, layers: int, heads: int) -> dict:
    sizes = {"hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": layers}
    return {
        **{"architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox", "vocab_size": 50_304},
        **{"torch_dtype": "float16", "transformers_version": "4.24.0", "tie_word_embeddings": False},
        **sizes | {"num_attention_heads": heads, "max_position_embeddings": 2048, "rotary_pct": 0.25},
    }


def gpt_like(width: int, layers: int) -> int:
    """Blocks of two norms, attention and a unit of four times the width, all with biases; and the final norm."""
    return layers * (12 * width**2 + 13 * width) + 2 * width


def test_gpt2():
    found = count(GPT2)
    assert found.embedding == 50_257 * 768
    assert found.total == found.embedding + 1024 * 768 + gpt_like(768, 12) == 124_439_808
    assert found.share == found.share_tied == found.embedding / found.total
    assert found.share_untied == 2 * found.embedding / (found.total + found.embedding)


@pytest.mark.parametrize(("width", "layers", "heads", "share"), [(512, 6, 8, 0.731), (2560, 32, 32, 0.093)])
def test_published_shares_of_pythia(width, layers, heads, share):
    found = count(pythia(width, layers, heads))
    assert found.embedding == 2 * 50_304 * width and found.total == found.embedding + gpt_like(width, layers)
    assert round(found.share, 3) == share and found.share_untied == found.share
    assert found.share_tied == 50_304 * width / (found.total - 50_304 * width)


def test_a_model_like_llama():
    attention = 64 * 64 * 2 + 2 * 64 * 16
    rest = 3 * (attention + 3 * 64 * 176 + 2 * 64) + 64
    untied, tied = count(LLAMA), count(LLAMA | {"tie_word_embeddings": True})
    assert (untied.total, untied.embedding) == (rest + 2 * 64_000, 2 * 64_000)
    assert (tied.total, tied.embedding) == (rest + 64_000, 64_000)
    assert (tied.share_tied, tied.share_untied) == (untied.share_tied, untied.share_untied)


@pytest.mark.parametrize("config", [GPT2, LLAMA])
def test_the_checkpoint_knows_better_than_the_config(config):
    as_said = count(config)
    assert count(config, tied=True).share == as_said.share_tied
    assert count(config, tied=False).share == as_said.share_untied
    matrix = as_said.embedding // (2 if config is LLAMA else 1)
    assert count(config, tied=False).total - count(config, tied=True).total == matrix
    assert count(config, tied=config is GPT2) == as_said


@pytest.mark.parametrize("named", [True, False])
def test_an_encoder_has_its_head_for_masked_tokens(named):
    from transformers import BertConfig, BertForMaskedLM

    config = BERT if named else {k: v for k, v in BERT.items() if k != "architectures"}
    model = BertForMaskedLM(BertConfig(**BERT))
    assert count(config).total == model.num_parameters() and count(config).embedding == 300 * 32


def test_of_several_parts_the_language_model_has_the_embeddings():
    from transformers import AutoConfig

    small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = small | {"model_type": "llama", "vocab_size": 320, "num_key_value_heads": 2}
    vision = small | {"model_type": "clip_vision_model", "image_size": 28, "patch_size": 14}
    config = AutoConfig.for_model("llava", text_config=text, vision_config=vision, image_token_index=3).to_dict()
    found = count(config, tied=False)
    assert found.embedding == 2 * 320 * 32 and found.total > found.embedding + 2 * 32 * 32 * 4


@pytest.mark.parametrize("kind", [*CAUSAL, *MASKED])
def test_models_of_many_types(kind):
    model = model_of(kind)
    inward, outward = matrices(model)
    found = count(config_of(kind).to_dict())
    assert found.total == sum(parameter.numel() for parameter in model.parameters())
    same = inward.data_ptr() == outward.data_ptr()
    assert found.embedding == inward.numel() * (1 if same else 2)
    assert found.share == (found.share_tied if same else found.share_untied)


def test_the_table():
    table = parameters({"a": LLAMA, "b": LLAMA}, {"b": True})
    assert list(table) == ["model", "total", "embedding", "share", "share_tied", "share_untied"]
    assert table["model"].tolist() == ["a", "b"]
    assert table["embedding"].tolist() == [128_000, 64_000] and table["share"][1] == table["share_tied"][0]
    assert isinstance(parameters({}), pd.DataFrame) and list(parameters({})) == list(table)


def test_what_a_config_says_of_storage_does_not_matter():
    stored = {"quantization_config": {"quant_method": "gptq", "bits": 4}, "_attn_implementation": "flash_attention_2"}
    stored |= {
        "torch_dtype": "bfloat16",
        "auto_map": {"AutoModelForCausalLM": "modeling_own.Own"},
        "_name_or_path": "x",
    }
    assert count(LLAMA | stored) == count(LLAMA)


def test_the_config_is_left_as_it_is():
    config = LLAMA | {"rope_scaling": {"type": "linear", "factor": 2.0}}
    before = {**config, "rope_scaling": {**config["rope_scaling"]}}
    count(config)
    assert config == before


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({}, "model_type None is unknown"),
        ({"model_type": 3}, "model_type 3 is unknown"),
        ({"model_type": "no-such-type"}, "model_type 'no-such-type' is unknown to transformers; "),
        ({"model_type": "own", "auto_map": {"AutoConfig": "own.Own"}}, "its own code is not run"),
        (LLAMA | {"hidden_size": "wide"}, "no model of type llama can be made"),
        (LLAMA | {"num_attention_heads": 0}, "no model of type llama can be made"),
        ({"model_type": "vit"}, "model_type vit is no language model"),
    ],
)
def test_configs_that_cannot_be_used(config, says):
    with pytest.raises(InputError, match=rf"^m: config\.json: [^\n]*{says}[^\n]*accepted$"):
        parameters({"m": config})
