"""Embedding matrices read from files, against the tensors that were saved and models that run them."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tiny_models import (
    CAUSAL,
    LLAMA,
    MASKED,
    VOCABULARY,
    WIDTH,
    config_of,
    matrices,
    model_of,
    random,
    refused,
    same,
    tied,
    untied,
    write,
    write_gguf,
)

from exor import InputError
from exor.pretrained import tensors
from exor.pretrained.checkpoints import open_checkpoint
from exor.pretrained.configs import KINDS

# --- architectures ----------------------------------------------------------------------------------------------


def final_norm(model):
    """The norm right before the output matrix: in the head if there is one, else the outermost."""
    ends = ("norm", "ln_f", "final_layer_norm", "final_layernorm", "LayerNorm", "layer_norm", "vocab_layer_norm")
    found = {name: m for name, m in model.named_modules() if name.endswith(ends) and "word_embeddings" not in name}
    heads = ("cls", "lm_head", "vocab_layer_norm", "predictions", "head.")
    return found[min(found, key=lambda name: (not name.startswith(heads), name.count(".")))]


@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize("kind", CAUSAL + MASKED)
def test_what_is_read_makes_the_models_own_logits(kind, tie, tmp_path):
    model = model_of(kind, tie_word_embeddings=tie)
    model.save_pretrained(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    found = checkpoint.read()
    inward, outward = matrices(model)
    assert torch.equal(found.input, inward) and torch.equal(found.output, outward)
    assert found.tied == tie == (found.input is found.output) == (checkpoint.output is None)
    assert checkpoint.memory == (4 if tie else 8) * inward.numel() and checkpoint.model_type == kind
    assert not found.notes

    seen = {}
    norm = final_norm(model)
    norm.register_forward_hook(lambda _, inputs, output: seen.update(before=inputs[0], after=output))
    model.get_input_embeddings().register_forward_hook(lambda _, inputs, output: seen.update(looked_up=output))
    ids = torch.arange(5, 15)[None]
    with torch.no_grad():
        made = model(ids)
    logits = found.logit_scale * F.linear(seen["after"], found.output, found.head_bias)
    if found.logit_cap is not None:
        logits = found.logit_cap * torch.tanh(logits / found.logit_cap)
    assert torch.allclose(logits, made.logits, rtol=1e-5, atol=1e-5)

    width = (seen["before"].shape[-1],)
    if found.norm == "RMSNorm":
        normed = F.rms_norm(seen["before"], width, found.norm_gain, 1e-5)
    else:
        normed = F.layer_norm(seen["before"], width, found.norm_gain, found.norm_bias, 1e-5)
        assert (found.norm == "without parameters") == (found.norm_gain is None)
    assert torch.allclose(normed, seen["after"], rtol=1e-3, atol=1e-3)
    if found.norm_gain is None:
        assert found.folded() is found.output
    else:
        assert torch.equal(found.folded(), found.output @ torch.diag(found.norm_gain))
    if kind in ("gemma", "gemma2", "gemma3_text", "granite", "llama"):
        scale = {"granite": 12.0, "llama": 1.0}.get(kind, WIDTH**0.5)
        assert found.input_scale == pytest.approx(scale, rel=1e-7)
        given = seen["looked_up"] if kind != "granite" else 12.0 * seen["looked_up"]
        assert torch.allclose(given, found.input[ids] * found.input_scale)


def test_scales_and_caps_of_the_config(tmp_path):
    gemma = config_of("gemma2", final_logit_softcapping=20.0).to_dict()
    found = open_checkpoint(write(tmp_path / "a", tied(), gemma)).read()
    assert found.logit_cap == 20 and torch.equal(found.norm_gain, tied()["model.norm.weight"] + 1)
    assert open_checkpoint(write(tmp_path / "b", tied(), {"model_type": "gemma2"})).read().logit_cap == 30
    assert open_checkpoint(write(tmp_path / "c", tied(), {"model_type": "cohere"})).read().logit_scale == 0.0625
    half = {name: tensor.bfloat16() for name, tensor in tied().items()}
    found = open_checkpoint(write(tmp_path / "d", half, gemma)).read()
    assert found.input_scale == torch.tensor(WIDTH**0.5).bfloat16().item() != WIDTH**0.5
    refused(
        write(tmp_path / "e", tied(), gemma | {"final_logit_softcapping": "x"}), "final_logit_softcapping", "number"
    )


@pytest.mark.parametrize("names", ["language_model.model.{}", "model.language_model.{}"])
def test_language_models_inside_models_of_images(names, tmp_path):
    saved = {
        names.format("embed_tokens.weight"): random(1),
        names.format("norm.weight"): random(3, 1)[0],
        "vision_tower.embeddings.weight": random(5),
    }
    config = {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "final_logit_softcapping": 7.0}}
    found = open_checkpoint(write(tmp_path / "tied", saved, config)).read()
    assert found.tied and found.logit_cap == 7 and found.input_scale == pytest.approx(WIDTH**0.5)
    assert torch.equal(found.input, random(1)) and torch.equal(found.norm_gain, random(3, 1)[0] + 1)
    saved["lm_head.weight" if names.startswith("model") else "language_model.lm_head.weight"] = random(4)
    found = open_checkpoint(write(tmp_path / "untied", saved, config)).read()
    assert not found.tied and torch.equal(found.output, random(4)) and "tied unless" in found.notes[0]


def test_base_models_have_no_prefix(tmp_path):
    saved = {name.removeprefix("model."): tensor for name, tensor in tied().items()}
    same(write(tmp_path / "tied", saved, LLAMA | {"tie_word_embeddings": True}), tied())
    refused(write(tmp_path / "untied", saved, LLAMA), "no output matrix", "llama is untied unless")


def test_defaults_are_those_of_transformers():
    from transformers import CONFIG_MAPPING

    for kind, facts in KINDS.items():
        assert CONFIG_MAPPING[kind]().tie_word_embeddings == facts.tied, kind


def test_encoders_without_a_head(tmp_path):
    from transformers import AutoModel

    AutoModel.from_config(config_of("bert")).save_pretrained(tmp_path / "base")
    refused(tmp_path / "base", "no output matrix", "encoder")
    model_of("bert").save_pretrained(tmp_path / "head")
    saved = load_file(tmp_path / "head" / "model.safetensors")
    ends = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    old = {next((n.replace(a, b) for a, b in ends.items() if a in n), n): t for n, t in saved.items()}
    write(tmp_path / "old", old, {"model_type": "bert"})
    new, old = open_checkpoint(tmp_path / "head").read(), open_checkpoint(tmp_path / "old").read()
    assert torch.equal(new.norm_gain, old.norm_gain) and torch.equal(new.norm_bias, old.norm_bias) and old.tied


def test_final_norms_that_are_not_found_or_not_there(tmp_path):
    saved = {"model.embed_tokens.weight": random(1), "lm_head.weight": random(4)}
    found = open_checkpoint(write(tmp_path / "llama", saved, LLAMA)).read()
    assert found.norm == "not found" and "final norm" in found.notes[0]
    with pytest.raises(InputError, match="final norm was not found"):
        found.folded()
    assert open_checkpoint(write(tmp_path / "olmo", saved, {"model_type": "olmo"})).read().norm == "without parameters"
    saved = {"model.decoder.embed_tokens.weight": random(1)}
    opt = {"model_type": "opt", "do_layer_norm_before": False}
    assert open_checkpoint(write(tmp_path / "opt", saved, opt)).read().norm == "none"


# --- tied or untied ---------------------------------------------------------------------------------------------


def test_the_tensors_decide_not_the_config(tmp_path):
    says_tied = LLAMA | {"tie_word_embeddings": True}
    found = same(write(tmp_path / "differ", untied(), says_tied), untied())
    apart = float((random(1) - random(4)).norm() / random(1).norm())
    assert found.notes == (
        f"config.json says tied, but the matrices differ: taken as untied (relative distance {apart:.2g})",
    )
    equal = untied() | {"lm_head.weight": random(1)}
    found = open_checkpoint(write(tmp_path / "equal", equal, LLAMA | {"tie_word_embeddings": False})).read()
    assert found.tied and found.output is found.input and found.why == "both matrices are stored and equal"
    assert "config.json says untied" in found.notes[0] and "taken as tied" in found.notes[0]
    nearly = untied() | {"lm_head.weight": random(1) + 1e-6}
    assert not open_checkpoint(write(tmp_path / "nearly", nearly, LLAMA)).read().tied
    rounded = untied() | {"lm_head.weight": random(1).bfloat16()}
    found = open_checkpoint(write(tmp_path / "rounded", rounded, LLAMA)).read()
    assert found.tied and "up to rounding" in found.why and torch.equal(found.input, random(1))


def test_a_missing_head(tmp_path):
    same(write(tmp_path / "says", tied(), LLAMA | {"tie_word_embeddings": True}), tied())
    found = same(write(tmp_path / "default", tied(), {"model_type": "smollm3"}), tied())
    assert found.why == "no output matrix is stored, and smollm3 is tied unless config.json says otherwise"
    refused(write(tmp_path / "untied", tied(), LLAMA | {"tie_word_embeddings": False}), "config.json says untied")
    refused(write(tmp_path / "unknown", tied(), {"model_type": "abc"}), "abc")
    refused(write(tmp_path / "none", tied()), "no config.json")
    same(write(tmp_path / "both", untied()), untied())


def test_named_keys(tmp_path):
    saved = {"a.in": random(1), "a.out": random(4), "embedding.weight": random(5)}
    folder = write(tmp_path / "x", saved)
    refused(folder, "none of its 3 tensors", "embedding.weight")
    refused(folder, "no tensor a.inn", "a.in", input_key="a.inn")
    found = open_checkpoint(folder, input_key="a.in", output_key="a.out").read()
    assert torch.equal(found.input, random(1)) and torch.equal(found.output, random(4))
    found = open_checkpoint(write(tmp_path / "y", untied(), LLAMA), output_key="model.layers.0.mlp.up_proj.weight")
    assert torch.equal(found.read().output, random(2)) and "norm_gain" in found.others


def test_matrices_of_different_shapes(tmp_path):
    refused(write(tmp_path / "a", untied() | {"lm_head.weight": random(1, 59)}), "60 × 32", "59 × 32")
    refused(write(tmp_path / "b", untied() | {"lm_head.weight": random(1, 60, 31)}), "60 × 32", "60 × 31")
    refused(write(tmp_path / "c", untied() | {"lm_head.weight": random(1)[0]}), "lm_head.weight", "[32]")
    refused(write(tmp_path / "d", untied() | {"lm_head.weight": random(1).int()}), "int32", "floating point")
    holed = random(4)
    holed[17, 3] = float("nan")
    refused(write(tmp_path / "e", untied() | {"lm_head.weight": holed}), "row 17", "not finite")


# --- the rest ---------------------------------------------------------------------------------------------------


def test_fingerprints(tmp_path):
    one = open_checkpoint(write(tmp_path / "a", untied(), LLAMA)).read().fingerprint
    torch.save(untied(), tmp_path / "m.bin")
    assert open_checkpoint(tmp_path / "m.bin").read().fingerprint == one
    other = untied()
    other["lm_head.weight"][59, 31] += 1
    assert open_checkpoint(write(tmp_path / "b", other)).read().fingerprint != one
    tie = {"tie_word_embeddings": True}
    assert open_checkpoint(write(tmp_path / "c", tied(), LLAMA | tie)).read().fingerprint != one


def test_watch_hears_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(tensors, "BLOCK", 10 * 4 * WIDTH)
    heard = []
    open_checkpoint(write(tmp_path, untied())).read(watch=lambda done, total: heard.append((done, total)))
    whole = 2 * 4 * VOCABULARY * WIDTH + 4 * WIDTH
    assert {total for _, total in heard} == {whole} and heard[-1][0] == whole and len(heard) == 13
    assert heard == sorted(heard)


def test_small_files(tmp_path):
    folder = write(tmp_path, untied(), LLAMA)
    (folder / "tokenizer.json").write_text("{}")
    checkpoint = open_checkpoint(folder)
    assert checkpoint.file("tokenizer.json") == b"{}" and checkpoint.file("vocab.json") is None
    assert checkpoint.tokens is None and checkpoint.gguf_path is None and checkpoint.commit is None
    assert checkpoint.name == str(folder) and checkpoint.config == LLAMA


PEAK = """
import resource, sys
from exor.pretrained.checkpoints import open_checkpoint
import exor.pretrained.gguf_files
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
checkpoint = open_checkpoint(sys.argv[1])
before = peak()
found = checkpoint.read()
print((peak() - before) / checkpoint.memory)
"""


@pytest.mark.slow
@pytest.mark.parametrize("form", ["safetensors", "bin", "legacy", "gguf"])
def test_peak_memory(form, tmp_path):
    big = {"model.embed_tokens.weight": random(1, 50_000, 1024), "lm_head.weight": random(2, 50_000, 1024)}
    path = tmp_path / f"m.{form}"
    if form == "gguf":
        saved = {"token_embd.weight": big["model.embed_tokens.weight"], "output.weight": big["lm_head.weight"]}
        write_gguf(path, saved, "Q8_0")
    elif form == "safetensors":
        save_file(big, path)
    else:
        torch.save(big, path, _use_new_zipfile_serialization=form == "bin")
    script = [sys.executable, "-c", PEAK, str(path)]
    done = subprocess.run(script, cwd=Path(__file__).parent.parent, capture_output=True, text=True, check=True)
    assert float(done.stdout) <= (1.3 if form != "legacy" else 3), done.stdout
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > 0
