"""Embedding matrices read from a Hub on this machine: what is fetched, what is kept, what goes wrong.

huggingface-hub reads its settings when it is imported, so it runs in processes of its own, with a user's settings.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hub_server import CHILD, HubServer
from safetensors.torch import save_file
from tiny_models import write, write_gguf

from exor.pretrained.checkpoints import open_checkpoint

ROWS, WIDTH, LAYER = 2000, 64, (1500, 512)
CONFIG = {"model_type": "llama", "tie_word_embeddings": False, "vocab_size": ROWS, "hidden_size": WIDTH}


def tensors(seed):
    generator = torch.Generator().manual_seed(seed)
    return {
        "model.embed_tokens.weight": torch.randn(ROWS, WIDTH, generator=generator).bfloat16(),
        "model.layers.0.mlp.up_proj.weight": torch.randn(LAYER, generator=generator).bfloat16(),
        "model.norm.weight": torch.ones(WIDTH).bfloat16(),
        "lm_head.weight": torch.randn(ROWS, WIDTH, generator=generator).bfloat16(),
    }


NEEDED = 2 * 2 * ROWS * WIDTH + 2 * WIDTH  # bytes of two matrices and a gain in bfloat16
HEADERS = 4096  # more than those of all files


def sharded(folder, seed):
    parts = (
        ("model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight"),
        ("model.norm.weight", "lm_head.weight"),
    )
    saved, index = tensors(seed), {}
    folder.mkdir(parents=True)
    for i, names in enumerate(parts):
        file = f"model-{i + 1:05d}-of-00002.safetensors"
        save_file({n: saved[n] for n in names}, folder / file)
        index |= dict.fromkeys(names, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text(f'{{"seed": {seed}}}')
    return folder


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    root = tmp_path_factory.mktemp("hub")
    with HubServer() as server:
        main = sharded(root / "sharded", 0)
        server.models["org/sharded"] = {"main": main, "step1000-tokens2B": sharded(root / "early", 1)}
        server.models["org/secret"] = {"main": write(root / "secret", tensors(2), CONFIG)}
        server.gated["org/secret"] = "hf_open"
        for name, zipped in (("torch", True), ("legacy", False)):
            folder = root / name
            folder.mkdir()
            torch.save(tensors(3), folder / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
            (folder / "config.json").write_text(json.dumps(CONFIG))
            server.models[f"org/{name}"] = {"main": folder}
        for name in ("gguf/a.gguf", "gguf/deep/b.gguf", "gguf/deep/c.gguf"):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            matrix = torch.randn(60, 32, generator=torch.Generator().manual_seed(len(name) + ord(name[-6])))
            decoy = torch.randn(4000, 512)
            write_gguf(root / name, {"token_embd.weight": matrix, "blk.0.ffn_up.weight": decoy}, "Q8_0")
        server.models["org/gguf"] = {"main": root / "gguf"}
        server.models["org/empty"] = {"main": root / "empty"}
        (root / "empty").mkdir()
        (root / "empty" / "README.md").write_text("nothing")
        yield server


class Child:
    """A process that opens checkpoints, with settings of its own."""

    def __init__(self, **settings):
        inherited = {
            k: v for k, v in os.environ.items() if not k.startswith(("HF_", "EXOR_")) and "proxy" not in k.lower()
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD],
            cwd=Path(__file__).parent.parent,
            env=inherited | {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"} | settings,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, source, **job):
        self.process.stdin.write(json.dumps({"source": source, "read": True} | job) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        assert "\n" not in answer.get("error", "")
        return answer

    def refused(self, *words, **job):
        told = self(**job).get("error", "nothing")
        assert all(word in told for word in words), told


@pytest.fixture(scope="module")
def start(hub):
    """Starts such processes, and ends them."""
    started = []

    def begin(folder, **settings):
        kept = {"HF_HOME": str(folder / "hf"), "EXOR_CACHE": str(folder / "lab")}
        started.append(Child(**{"HF_ENDPOINT": hub.address} | kept | settings))
        return started[-1]

    yield begin
    for child in started:
        child.process.stdin.close()
        child.process.wait(timeout=60)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def online(start, home):
    """A user with a network."""
    return start(home)


def fingerprint(hub, model, revision="main", file=None):
    folder = hub.models[model][revision]
    return open_checkpoint(folder / file if file else folder).read().fingerprint


def weights(hub):
    """Bytes sent of weights files."""
    return sum(n for file, n in hub.sent.items() if file.endswith((".safetensors", ".bin", ".gguf")))


def test_only_what_is_needed_is_fetched_and_only_once(hub, online):
    hub.reset()
    found = online("org/sharded", file="tokenizer.json")
    assert found["fingerprint"] == fingerprint(hub, "org/sharded") and not found["tied"]
    assert found["name"] == "org/sharded" and found["commit"] == hub.commit("org/sharded", "main")
    assert found["before"] == NEEDED and found["after"] == 0 and found["heard"] == [[NEEDED, NEEDED]]
    assert found["file"] == '{"seed": 0}'
    assert NEEDED < weights(hub) < 1.01 * NEEDED + HEADERS
    whole = sum(path.stat().st_size for path in hub.models["org/sharded"]["main"].glob("*.safetensors"))
    assert whole > 3 * NEEDED

    hub.reset()
    again = online("org/sharded", file="tokenizer.json")
    assert again["before"] == 0 and again["fingerprint"] == found["fingerprint"] and weights(hub) == 0
    hub.reset()
    pinned = online("org/sharded", revision=found["commit"])
    assert pinned["fingerprint"] == found["fingerprint"] and not hub.requests


def test_revisions(hub, online):
    found = online("org/sharded", revision="step1000-tokens2B")
    assert (
        found["fingerprint"] == fingerprint(hub, "org/sharded", "step1000-tokens2B") != fingerprint(hub, "org/sharded")
    )
    assert found["name"] == "org/sharded@step1000-tokens2B"
    assert found["commit"] == hub.commit("org/sharded", "step1000-tokens2B") != hub.commit("org/sharded", "main")
    online.refused("no revision step1000", "step1000-tokens2B", source="org/sharded", revision="step1000")


def test_torch_files(hub, online):
    hub.reset()
    found = online("org/torch")
    assert found["fingerprint"] == fingerprint(hub, "org/torch") and found["before"] == NEEDED
    assert weights(hub) < 1.01 * NEEDED + HEADERS
    hub.reset()
    assert online("org/torch")["fingerprint"] == found["fingerprint"] and weights(hub) == 0
    online.refused("read whole", "hf download org/legacy pytorch_model.bin", source="org/legacy")
    assert weights(hub) < 100


def test_gguf(hub, online):
    for source, file in (
        ("org/gguf", "a.gguf"),
        ("org/gguf/deep/b.gguf", "deep/b.gguf"),
        ("org/gguf/deep/c.gguf", "deep/c.gguf"),
    ):
        found = online(source)
        assert found["fingerprint"] == fingerprint(hub, "org/gguf", file=file), source
        assert found["before"] == 60 * 34 and found["tokens"][7] == "token 7" and found["tied"]
    assert Path(found["gguf"]).stat().st_size == (hub.models["org/gguf"]["main"] / file).stat().st_size
    hub.reset()
    assert online("org/gguf/deep/c.gguf")["fingerprint"] == found["fingerprint"] and weights(hub) == 0


def test_what_is_not_there(hub, online):
    online.refused("org/nowhere: no such model", hub.address, "there is org/sharded", source="org/nowhere")
    online.refused("holds no weights", source="org/empty")
    online.refused("gated", f"{hub.address}/org/secret", "HF_TOKEN", source="org/secret")
    online.refused("missing", source="org/gguf/other.gguf")


def test_a_token_opens_a_gated_model(hub, start, tmp_path):
    child = start(tmp_path, HF_TOKEN="hf_open")
    assert child("org/secret")["fingerprint"] == fingerprint(hub, "org/secret")


def test_a_download_that_breaks_leaves_nothing(hub, online, home):
    folder = hub.models["org/sharded"]["main"]
    hub.models["org/breaks"] = {"main": folder}
    assert online("org/breaks", read=False)["before"] == NEEDED
    hub.broken = 404
    online.refused("model.norm.weight", "answered 404", hub.address, source="org/breaks")
    hub.broken = None
    left = {path.name for path in (home / "lab" / "pretrained" / "org--breaks").rglob("*") if path.is_file()}
    assert left == {"files.json", "index.json", "main.json"}
    assert online("org/breaks")["fingerprint"] == fingerprint(hub, "org/sharded")


def test_what_huggingface_hub_has_is_read_from_there(hub, start, tmp_path):
    commit = hub.commit("org/torch", "main")
    cached = tmp_path / "hf" / "hub" / "models--org--torch"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text(commit)
    (cached / "snapshots").mkdir()
    (cached / "snapshots" / commit).symlink_to(hub.models["org/torch"]["main"])
    hub.reset()
    found = start(tmp_path, HF_HUB_OFFLINE="1")("org/torch")
    assert found["fingerprint"] == fingerprint(hub, "org/torch") and found["before"] == 0 and found["commit"] == commit
    assert not hub.requests


def test_offline_after_a_first_read(hub, online, start, home):
    first = online("org/sharded", file="tokenizer.json")
    hub.reset()
    offline = start(home, HF_HUB_OFFLINE="1")
    again = offline("org/sharded", file="tokenizer.json")
    assert {k: again[k] for k in ("fingerprint", "commit", "file")} == {
        k: first[k] for k in ("fingerprint", "commit", "file")
    }
    offline.refused("org/legacy2: ", "HF_HUB_OFFLINE", hub.address, str(home / "lab"), source="org/legacy2")
    assert not hub.requests


def test_without_a_network(online, start, home, tmp_path):
    known = online("org/sharded")
    lost = start(home, HF_ENDPOINT="http://127.0.0.1:9")
    assert lost("org/sharded")["fingerprint"] == known["fingerprint"]
    lost.refused("org/other: ", "http://127.0.0.1:9", "network", "HF_ENDPOINT", str(home / "lab"), source="org/other")
