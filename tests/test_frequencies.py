"""Token counts against encoding all text at once, and tokenizers from every kind of file."""

import gzip
import importlib
import json
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from exor import InputError
from exor.pretrained import frequencies
from exor.pretrained.frequencies import count_dataset, count_text
from exor.pretrained.tokenizing import tokenizer_of

SENTENCE = "the cat sat on a mat; and then it ran, naïve café 中文 🙂 12 345 (it's) ... x_y"
QWEN = r"(?i:'s|'t|'re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def prose(lines: int, seed: int = 0) -> str:
    """Lines with indents, blank lines, and spaces at their ends."""
    draw = random.Random(seed)
    made = []
    for _ in range(lines):
        words = " ".join(draw.choices(SENTENCE.split(), k=draw.randint(1, 9)))
        made.append(draw.choice(["", "", "", "    ", "\t"]) + words + draw.choice(["\n", "\n", "\n", "  \n", "\n\n"]))
    return "".join(made) + "the end\n"


def trained(pattern: str | None = None, size: int = 420) -> Tokenizer:
    """A byte-level tokenizer; its regular expression is GPT-2's or the one given."""
    from tokenizers import Regex

    tokenizer = Tokenizer(models.BPE())
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    split = [pre_tokenizers.Split(Regex(pattern), "isolated")] if pattern else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*split, level])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=alphabet, special_tokens=["<|end|>"], show_progress=False
    )
    tokenizer.train_from_iterator([prose(200, 9)], trainer)
    return tokenizer


GPT2, QWEN_LIKE = trained(), trained(QWEN)


def brute(text: str, tokenizer: Tokenizer, rows: int) -> list[int]:
    found = Counter(tokenizer.encode(text, add_special_tokens=False).ids)
    return [found[i] for i in range(rows)]


def write(folder: Path, text: str, name: str = "text.txt") -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


@pytest.mark.parametrize("tokenizer", [GPT2, QWEN_LIKE], ids=["gpt2", "qwen"])
@pytest.mark.parametrize(("piece", "batch"), [(40, 1), (64, 1000), (333, 50), (2**16, 2**20)])
def test_counts_are_those_of_the_whole_text_whatever_the_size_of_pieces(tmp_path, monkeypatch, tokenizer, piece, batch):
    monkeypatch.setattr(frequencies, "PIECE", piece)
    monkeypatch.setattr(frequencies, "BATCH", batch)
    monkeypatch.setattr(frequencies, "LONGEST", 1000)
    text, rows = prose(400), tokenizer.get_vocab_size()
    found = count_text([write(tmp_path, text)], tokenizer, rows)
    assert found.counts.tolist() == brute(text, tokenizer, rows) and found.counts.dtype == np.int64
    assert found.tokens == found.counts.sum() and found.source.endswith("text.txt")


@pytest.mark.parametrize("glue", ["\n\n", " \n", " ", "x"])
def test_text_without_a_good_place_to_cut(tmp_path, monkeypatch, glue):
    """No text is lost, and pieces stay small."""
    monkeypatch.setattr(frequencies, "PIECE", 50)
    text = glue.join(["word"] * 500)
    pieces = [*frequencies._cut(text[i : i + 50] for i in range(0, len(text), 50))]
    assert "".join(pieces) == text and max(map(len, pieces)) <= 50 * (frequencies.LONGEST + 1)
    ends = {" ": "d", " \n": "\n", "\n\n": "\n"}.get(glue)
    assert ends is None or {piece[-1] for piece in pieces[:-1]} == {ends}
    rows = GPT2.get_vocab_size()
    count = count_text([write(tmp_path, text)], GPT2, rows)
    assert count.counts[GPT2.token_to_id("Ġ")] == brute(text, GPT2, rows)[GPT2.token_to_id("Ġ")]


def test_several_files_compressed_or_not(tmp_path):
    texts = [prose(20, seed) for seed in range(3)]
    (tmp_path / "b.gz").write_bytes(gzip.compress(texts[1].encode()))
    (tmp_path / "c").write_bytes(b"\xef\xbb\xbf" + texts[2].replace("\n", "\r\n").encode())
    paths = [write(tmp_path, texts[0]), tmp_path / "b.gz", tmp_path / "c", write(tmp_path, "", "empty.txt")]
    rows = GPT2.get_vocab_size()
    found = count_text(paths, GPT2, rows)
    assert found.counts.tolist() == np.sum([brute(text, GPT2, rows) for text in texts], axis=0).tolist()
    assert found.source == "4 text files" and not found.notes


@pytest.mark.parametrize("limit", [1, 7, 1000])
def test_the_first_tokens_up_to_the_limit(tmp_path, monkeypatch, limit):
    monkeypatch.setattr(frequencies, "PIECE", 64)
    monkeypatch.setattr(frequencies, "BATCH", 200)
    text = prose(400)
    ids = GPT2.encode(text).ids[:limit]
    found = count_text([write(tmp_path, text)], GPT2, 500, limit=limit)
    assert found.counts.tolist() == np.bincount(ids, minlength=500).tolist() and found.tokens == limit
    assert f"the limit of {limit:,} tokens" in found.notes[0]
    assert not count_text([tmp_path / "text.txt"], GPT2, 500, limit=10**9).notes


def test_tokens_without_a_row_and_rows_without_a_token(tmp_path):
    text, whole = prose(50), brute(prose(50), GPT2, 600)
    few = count_text([write(tmp_path, text)], GPT2, 300)
    assert few.counts.tolist() == whole[:300] and few.tokens == sum(whole)
    assert f"{sum(whole[300:]):,} of the tokens read have no row" in few.notes[0]
    many = count_text([tmp_path / "text.txt"], GPT2, 600)
    assert many.counts.tolist() == whole and not many.notes


def test_special_tokens_between_texts_cutting_off_and_padding_do_not_count(tmp_path):
    from tokenizers import processors

    tokenizer = Tokenizer.from_str(GPT2.to_str())
    tokenizer.post_processor = processors.TemplateProcessing(single="<|end|> $A", special_tokens=[("<|end|>", 0)])
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding(length=2000, pad_id=3)
    found = count_text([write(tmp_path, "the cat <|end|> " * 30)], tokenizer, 420)
    assert found.counts.tolist() == brute("the cat <|end|> " * 30, GPT2, 420) and found.counts[0] == 30
    assert tokenizer.truncation and tokenizer.padding


def test_ids_beyond_the_number_of_tokens(tmp_path):
    vocab = {"a": 0, "b": 900}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    found = count_text([write(tmp_path, "a b b\n")], tokenizer, 10)
    assert found.tokens == 3 and found.counts.tolist() == [1, *[0] * 9] and "2 of the tokens" in found.notes[0]


def test_bad_bytes_are_replaced_and_counted(tmp_path):
    (tmp_path / "latin").write_bytes("the café ran on, naïve\n".encode("latin-1") * 10 + "\ufffd\n".encode())
    found = count_text([tmp_path / "latin"], GPT2, 420)
    assert found.counts.tolist() == brute("the caf\ufffd ran on, na\ufffdve\n" * 10 + "\ufffd\n", GPT2, 420)
    assert "20 bytes are not UTF-8" in found.notes[-1]


@pytest.mark.parametrize(
    "content", [bytes(range(256)) * 9, "text".encode("utf-16"), random.Random(0).randbytes(5000).replace(b"\0", b"")]
)
def test_binary_files_are_refused(tmp_path, content):
    (tmp_path / "x.bin").write_bytes(content)
    with pytest.raises(InputError, match=r"x\.bin: not UTF-8 text; [^\n]+accepted$"):
        count_text([tmp_path / "x.bin"], GPT2, 420)


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "cut.gz").write_bytes(gzip.compress(prose(500).encode())[:-200])
    (tmp_path / "bad.gz").write_bytes(b"\x1f\x8b" + bytes(50))
    for name, says in (
        ("cut.gz", "cannot be read"),
        ("bad.gz", "cannot be read"),
        ("none", "No such file"),
        (".", "a folder"),
    ):
        with pytest.raises(InputError, match=rf"[^\n]*: [^\n]*{says}[^\n]*accepted$"):
            count_text([tmp_path / name], GPT2, 420)
    with pytest.raises(InputError, match=r"empty\.txt: no text"):
        count_text([write(tmp_path, "", "empty.txt")], GPT2, 420)
    with pytest.raises(InputError, match="no files"):
        count_text([], GPT2, 420)


def test_bytes_done_are_told(tmp_path, monkeypatch):
    monkeypatch.setattr(frequencies, "PIECE", 500)
    told: list[tuple[int, int]] = []
    (tmp_path / "b.gz").write_bytes(gzip.compress(prose(300).encode()))
    paths = [write(tmp_path, prose(300)), tmp_path / "b.gz"]
    count_text(paths, GPT2, 420, watch=lambda done, total: told.append((done, total)))
    total = sum(path.stat().st_size for path in paths)
    assert len(told) > 10 and told == sorted(told) and told[-1] == (total, total)


# --- data sets --------------------------------------------------------------------------------------------------

TEXTS = [prose(3, seed) for seed in range(40)]


def table(folder: Path, suffix: str, **columns: list) -> Path:
    path, frame = folder / f"data{suffix}", pd.DataFrame(columns or {"id": range(40), "text": TEXTS})
    if suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_json(path, orient="records", lines=True)
    return path


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet", ".jsonl.gz"])
def test_a_data_set_in_a_file(tmp_path, suffix):
    told: list[tuple[int, int]] = []
    found = count_dataset(str(table(tmp_path, suffix)), GPT2, 420, watch=lambda *done: told.append(done))
    assert found.counts.tolist() == np.sum([brute(text, GPT2, 420) for text in TEXTS], axis=0).tolist()
    assert told[-1] == (found.tokens, 0) and "column text" in found.source


def test_a_data_set_in_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(frequencies, "BATCH", 300)
    table(tmp_path, ".jsonl")
    ids = [i for text in TEXTS for i in GPT2.encode(text).ids]
    told: list[tuple[int, int]] = []
    found = count_dataset(str(tmp_path), GPT2, 420, limit=300, watch=lambda *done: told.append(done))
    assert found.counts.tolist() == np.bincount(ids[:300], minlength=420).tolist()
    assert told[-1] == (300, 300) and len(told) > 1


def test_which_column(tmp_path):
    path = str(table(tmp_path, ".jsonl", n=[1, 2], body=["the cat", None], other=["x", "y"]))
    assert count_dataset(path, GPT2, 420, column="body").counts.tolist() == brute("the cat", GPT2, 420)
    for column, says in (
        (None, r"--column is needed .* are body, other"),
        ("none", "no column 'none'"),
        ("n", "holds int"),
    ):
        with pytest.raises(InputError, match=rf"data\.jsonl: [^\n]*{says}|data\.jsonl: column n {says}"):
            count_dataset(path, GPT2, 420, column=column)
    only = str(table(tmp_path, ".jsonl", n=[1], body=["the cat"]))
    assert count_dataset(only, GPT2, 420).tokens == len(GPT2.encode("the cat").ids)


def test_the_split_of_a_folder(tmp_path):
    (tmp_path / "train.jsonl").write_text(json.dumps({"text": "the"}) + "\n")
    (tmp_path / "test.jsonl").write_text(json.dumps({"text": "cat cat"}) + "\n")
    assert count_dataset(f"{tmp_path}::test", GPT2, 420).counts.tolist() == brute("cat cat", GPT2, 420)
    with pytest.raises(InputError, match=r"::dev: cannot be read as a data set \([^\n]*train[^\n]*accepted"):
        count_dataset(f"{tmp_path}::dev", GPT2, 420)


def test_data_sets_that_cannot_be_read(tmp_path):
    (tmp_path / "bad.jsonl").write_text("{nothing")
    (tmp_path / "table.xlsx").write_text("x")
    (tmp_path / "empty").mkdir()
    for name in ("bad.jsonl", "table.xlsx", "empty"):
        with pytest.raises(InputError, match=rf"^[^\n]*{name}: [^\n]+accepted[^\n]*$"):
            count_dataset(str(tmp_path / name), GPT2, 420)
    with pytest.raises(InputError, match=r"^a:b:c:d: not the name of a data set"):
        count_dataset("a:b:c:d", GPT2, 420)


def raising(error: Exception):
    def dataset_info(*_args, **_options):
        raise error

    return dataset_info


def test_what_the_hub_says(monkeypatch):
    from huggingface_hub import HfApi, constants, errors

    http = importlib.import_module(errors.HfHubHTTPError.__bases__[0].__module__.split(".")[0])  # whichever it is
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    answer = http.Response(404, request=http.Request("GET", "https://hub"))
    for error, says in (
        (errors.GatedRepoError("no", response=answer), "gated; ask for access"),
        (errors.RepositoryNotFoundError("no", response=answer), "no such data set"),
        (http.ConnectError("Name or service not known"), r"cannot be fetched .*Name or service.*is there a network"),
    ):
        monkeypatch.setattr(HfApi, "dataset_info", raising(error))
        with pytest.raises(InputError, match=rf"^org/name:en: {says}[^\n]*$"):
            count_dataset("org/name:en", GPT2, 420)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.load_dataset", raising(errors.OfflineModeIsEnabled("no")))
    with pytest.raises(InputError, match=r"^org/name: [^\n]*HF_HUB_OFFLINE is set"):
        count_dataset("org/name", GPT2, 420)


# --- tokenizers -------------------------------------------------------------------------------------------------


@dataclass
class Fake:
    """A checkpoint of files in memory."""

    files: dict[str, bytes] = field(default_factory=dict)
    gguf_path: Path | None = None
    tokens: list[str] | None = None
    token_types: list[int] | None = None
    rows: int = 420
    config: dict = field(default_factory=dict)
    name: str = "fake"

    def file(self, name):
        return self.files.get(name)


def slow_files() -> dict[str, bytes]:
    model = json.loads(GPT2.to_str())["model"]
    merges = "#version: 0.2\n" + "".join(" ".join(pair) + "\n" for pair in model["merges"])
    config = {
        "tokenizer_class": "GPT2Tokenizer",
        "unk_token": "<|end|>",
        "bos_token": "<|end|>",
        "eos_token": "<|end|>",
    }
    held = {"vocab.json": json.dumps(model["vocab"]), "merges.txt": merges, "tokenizer_config.json": json.dumps(config)}
    return {name: text.encode() for name, text in held.items()}


def test_a_tokenizer_from_its_own_file():
    tokenizer = Tokenizer.from_str(GPT2.to_str())
    tokenizer.add_tokens([AddedToken("the cat", normalized=False)])
    found = tokenizer_of(Fake({"tokenizer.json": tokenizer.to_str().encode(), "vocab.json": b"{"}))
    assert found.to_str() == tokenizer.to_str()


def test_a_tokenizer_from_the_files_of_a_slow_one():
    found = tokenizer_of(Fake(slow_files()))
    for text in (prose(30), " the cat\n\n  sat<|end|>"):
        assert found.encode(text, add_special_tokens=False).ids == GPT2.encode(text).ids


def test_a_tokenizer_from_a_gguf_file(tmp_path):
    from gguf import GGUFWriter

    model = json.loads(GPT2.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    writer = GGUFWriter(tmp_path / "model.gguf", "gpt2")
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3] + [1] * (len(tokens) - 1))
    writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_block_count(1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    found = tokenizer_of(Fake(gguf_path=tmp_path / "model.gguf", tokens=tokens))
    for text in (prose(30), " the cat\n\n  sat"):
        assert found.encode(text, add_special_tokens=False).ids == GPT2.encode(text).ids


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, "no tokenizer found"),
        ({"tokenizer.json": b"{}"}, r"tokenizer\.json: damaged"),
        ({"tokenizer.json": b"\xff"}, r"tokenizer\.json: damaged"),
        ({"vocab.json": b"{"}, r"vocab\.json cannot be read as a tokenizer"),
        ({"tokenizer.model": b"nothing"}, r"tokenizer\.model cannot be read as a tokenizer"),
    ],
)
def test_tokenizers_that_cannot_be_had(files, says):
    with pytest.raises(InputError, match=rf"^fake: {says}[^\n]*accepted$"):
        tokenizer_of(Fake(files))
