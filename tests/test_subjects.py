"""What is looked at: rows of two small models' files, and how models and revisions are named."""

import json
from functools import partial

import huggingface_hub
import pytest
import torch
from hub_server import HubServer
from safetensors.torch import save_file
from tokenizers import Tokenizer, models

from exor import InputError
from exor.pretrained.checkpoints import open_checkpoint
from exor.pretrained.sources import expand, open_source
from exor.pretrained.subjects import INPUT, OUTPUT, PUBLISHED, TIED, Choice, plan

TOKENS = ["<s>", "a", "b", "c", "d", "[unused1]", "e", "f"]
WIDTH = 6


def write(folder, *, tied, seed, tokens=TOKENS, rows=10, width=WIDTH):
    """A model's folder, with padding rows beyond its tokens; its tensors."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        "model.embed_tokens.weight": torch.randn(rows, width, generator=generator),
        "model.norm.weight": torch.linspace(0.5, 2, width),
    }
    if not tied:
        tensors["lm_head.weight"] = torch.randn(rows, width, generator=generator)
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    config = {"model_type": "llama", "tie_word_embeddings": tied, "vocab_size": rows, "hidden_size": width}
    (folder / "config.json").write_text(json.dumps(config))
    if tokens:
        tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token="a"))
        tokenizer.add_special_tokens([token for token in tokens if token == "<s>"])
        tokenizer.save(str(folder / "tokenizer.json"))
    return tensors


@pytest.fixture
def pair(tmp_path):
    """Checkpoints of a tied and an untied model, and their tensors."""
    tensors = {
        "tied": write(tmp_path / "one", tied=True, seed=1),
        "untied": write(tmp_path / "two", tied=False, seed=2),
    }
    return {role: open_checkpoint(tmp_path / name) for role, name in (("tied", "one"), ("untied", "two"))}, tensors


def test_a_pair_without_its_padding(pair):
    checkpoints, tensors = pair
    planned = plan(checkpoints)
    subject = planned.read()
    assert list(subject.matrices) == [TIED, INPUT, OUTPUT] and planned.widths == (WIDTH,) * 3
    assert torch.equal(subject.matrices[TIED], tensors["tied"]["model.embed_tokens.weight"][:8])
    assert torch.equal(subject.matrices[INPUT], tensors["untied"]["model.embed_tokens.weight"][:8])
    assert torch.equal(subject.matrices[OUTPUT], tensors["untied"]["lm_head.weight"][:8])
    assert subject.comparisons == PUBLISHED and subject.tokens == tuple(TOKENS)
    assert [fact["padding rows"] for fact in subject.facts] == [2, 2]
    assert [fact["tied"] for fact in subject.facts] == [True, False]
    assert any(note.startswith("8 tokens in common, by row") for note in subject.notes)


def test_the_published_convention_keeps_padding(pair):
    checkpoints, tensors = pair
    subject = plan(checkpoints, Choice(published=True)).read()
    assert torch.equal(subject.matrices[OUTPUT], tensors["untied"]["lm_head.weight"])
    assert subject.tokens == (*TOKENS, None, None)


def test_special_and_unused_tokens_can_be_left_out(pair):
    checkpoints, tensors = pair
    for choice, left in (
        (Choice(special=False), [1, 2, 3, 4, 5, 6, 7]),
        (Choice(unused=False), [0, 1, 2, 3, 4, 6, 7]),
        (Choice(special=False, unused=False, published=True), [1, 2, 3, 4, 6, 7, 8, 9]),
    ):
        subject = plan(checkpoints, choice).read()
        assert torch.equal(subject.matrices[OUTPUT], tensors["untied"]["lm_head.weight"][left])


def test_tokens_at_other_rows_are_matched_by_string(tmp_path):
    tied = write(tmp_path / "one", tied=True, seed=1)["model.embed_tokens.weight"]
    other = ["f", "x", "e", "a"]
    untied = write(tmp_path / "two", tied=False, seed=2, tokens=other, rows=5, width=4)["lm_head.weight"]
    planned = plan({"tied": open_checkpoint(tmp_path / "one"), "untied": open_checkpoint(tmp_path / "two")})
    subject = planned.read()
    assert subject.tokens == ("a", "e", "f") and planned.widths == (WIDTH, 4, 4)
    assert torch.equal(subject.matrices[TIED], tied[[1, 6, 7]])
    assert torch.equal(subject.matrices[OUTPUT], untied[[3, 2, 0]])


def test_the_published_convention_matches_strings_as_they_are_spelled(tmp_path):
    write(tmp_path / "one", tied=True, seed=1, tokens=["Ġa", "Ġb", "Ġc", "d", "Ċ"])
    write(tmp_path / "two", tied=False, seed=2, tokens=["d", "▁c", "▁b", "▁a", "x"])
    checkpoints = {"tied": open_checkpoint(tmp_path / "one"), "untied": open_checkpoint(tmp_path / "two")}
    assert plan(checkpoints).tokens == ("▁a", "▁b", "▁c", "d")
    assert plan(checkpoints, Choice(published=True)).tokens == ("d",)


def test_a_limit_is_a_fixed_sample_of_the_same_tokens(pair):
    checkpoints, tensors = pair
    planned = plan(checkpoints, Choice(limit=4))
    subject = planned.read()
    assert plan(checkpoints, Choice(limit=4)).tokens == planned.tokens and len(set(planned.tokens)) == 4
    assert len({plan(checkpoints, Choice(limit=4), seed=seed).tokens for seed in range(9)}) > 3
    rows = [TOKENS.index(token) for token in planned.tokens]
    assert rows == sorted(rows) and rows != list(range(4))
    assert torch.equal(subject.matrices[TIED], tensors["tied"]["model.embed_tokens.weight"][rows])
    assert torch.equal(subject.matrices[OUTPUT], tensors["untied"]["lm_head.weight"][rows])
    assert "A random sample of 4 of 8 tokens." in subject.notes
    assert plan(checkpoints, Choice(limit=8)).tokens == tuple(TOKENS)


def test_a_pair_given_the_wrong_way_round(pair):
    checkpoints, _ = pair
    with pytest.raises(InputError, match=r"one: not untied .*; --tied or --model accepts it") as told:
        plan({"tied": checkpoints["tied"], "untied": checkpoints["tied"]}).read()
    assert "\n" not in str(told.value)
    with pytest.raises(InputError, match=r"two: not tied .*; --untied or --model accepts it"):
        plan({"tied": checkpoints["untied"], "untied": checkpoints["tied"]}).read()


def test_the_final_norm(pair):
    checkpoints, tensors = pair
    gain = tensors["untied"]["model.norm.weight"]
    subject = plan(checkpoints).read()
    assert set(subject.gains) == {TIED, OUTPUT} and torch.equal(subject.gains[OUTPUT], gain)
    folded = plan(checkpoints, Choice(fold_norm=True)).read()
    assert folded.gains == {}
    assert torch.equal(folded.matrices[OUTPUT], (tensors["untied"]["lm_head.weight"] * gain)[:8])
    assert torch.equal(folded.matrices[TIED], (tensors["tied"]["model.embed_tokens.weight"] * gain)[:8])
    assert torch.equal(folded.matrices[INPUT], tensors["untied"]["model.embed_tokens.weight"][:8])


def test_one_model(pair):
    checkpoints, _ = pair
    subject = plan({"model": checkpoints["untied"]}).read()
    assert list(subject.matrices) == [INPUT, OUTPUT] and subject.comparisons == ((INPUT, OUTPUT),)
    assert plan({"model": checkpoints["untied"]}).widths == (WIDTH, WIDTH)
    tied = plan({"model": checkpoints["tied"]})
    assert list(tied.read().matrices) == [TIED] and tied.read().comparisons == () and tied.widths == (WIDTH,)


def test_reading_tells_of_its_progress(pair):
    told = {}

    def watch(what):
        return lambda done, total: told.setdefault(what, []).append((done, total))

    plan(pair[0]).read(watch)
    assert len(told) == 2
    for steps in told.values():
        assert steps[-1][0] == steps[-1][1]


# --- names --------------------------------------------------------------------------------------------------------


def test_a_revision_follows_the_name(monkeypatch):
    asked = []
    monkeypatch.setattr("exor.pretrained.sources.open_checkpoint", lambda name, **how: asked.append((name, how)))
    keys = {"input_key": "in", "output_key": None}
    open_source("org/name@step1000", input_key="in")
    open_source("org/name", input_key="in")
    assert asked == [("org/name", {"revision": "step1000"} | keys), ("org/name", keys)]


@pytest.mark.parametrize("source", ["@step1", "org/name@"])
def test_half_a_name(source):
    with pytest.raises(InputError, match=f"{source}: incomplete; org/name@revision is accepted"):
        open_source(source)


def test_what_exists_goes_before_revisions(tmp_path, monkeypatch):
    write(tmp_path / "two@halves", tied=False, seed=1)
    monkeypatch.chdir(tmp_path)
    assert open_source("two@halves").output is not None
    write(tmp_path / "many@s*", tied=True, seed=1)
    assert expand("many@s*") == ["many@s*"]


@pytest.fixture
def hub(monkeypatch, tmp_path):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with HubServer() as server:
        server.models["org/name"] = {name: tmp_path / name for name in ("main", "step0", "step1000", "step2000-x", "s")}
        monkeypatch.setattr(huggingface_hub, "HfApi", partial(huggingface_hub.HfApi, server.address))
        yield server


def test_patterns_of_revisions(hub):
    assert expand("org/name@step*") == [f"org/name@{name}" for name in ("step0", "step1000", "step2000-x")]
    assert expand("org/name@step[01]*") == ["org/name@step0", "org/name@step1000"]
    assert expand("org/name@step?") == ["org/name@step0"]
    assert hub.requests["api refs"] == 3
    assert expand("org/name@step9") == ["org/name@step9"] and expand("org/name") == ["org/name"]
    assert hub.requests["api refs"] == 3


def test_no_such_revisions(hub):
    with pytest.raises(InputError, match=r"org/name@Step\*: no revision of that pattern; there are main, step0, "):
        expand("org/name@Step*")
    with pytest.raises(InputError, match="org/other") as told:
        expand("org/other@s*")
    assert "\n" not in str(told.value)
