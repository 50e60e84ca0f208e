"""Vocabularies from files made by the tokenizers library and by hand, and matching against decoding and brute force."""

import json
from dataclasses import dataclass, field

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from exor import InputError
from exor.pretrained.spellings import BYTES
from exor.pretrained.vocabulary import UNUSED, Vocabulary, bytes_of, keep, match, read_vocabulary

TEXT = ["the cat sat on the mat, and the dog ran; naïve café\n\tthe end 中文 the cat the dog and on"] * 5


@dataclass
class Fake:
    """A checkpoint of files in memory."""

    files: dict[str, object] = field(default_factory=dict)
    rows: int = 10
    config: dict = field(default_factory=dict)
    tokens: list[str] | None = None
    token_types: list[int] | None = None
    gguf_path: None = None
    name: str = "fake"

    def file(self, name):
        held = self.files.get(name)
        return held if held is None or isinstance(held, bytes) else json.dumps(held).encode()


def byte_level(size: int = 300) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=alphabet, special_tokens=["<|end|>"], show_progress=False
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.add_tokens([AddedToken("  ", normalized=False)])
    return tokenizer


def sentence_piece() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    specials = ["<unk>", *(f"<0x{b:02X}>" for b in range(256))]
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()  # for training only, as Llama has none
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=specials, show_progress=False)
    tokenizer.train_from_iterator(TEXT, trainer)
    held = json.loads(tokenizer.to_str()) | {"pre_tokenizer": None}
    held["added_tokens"] = held["added_tokens"][:1]  # bytes are ordinary tokens there
    return Tokenizer.from_str(json.dumps(held))


def of(tokenizer: Tokenizer, rows: int | None = None, name: str = "fake") -> Vocabulary:
    files = {"tokenizer.json": tokenizer.to_str().encode()}
    return read_vocabulary(Fake(files, rows or tokenizer.get_vocab_size(), name=name))


def made(*tokens: str | None, name: str = "made", **more) -> Vocabulary:
    return Vocabulary(tokens, frozenset(), frozenset(), "hand", name=name, **more)


def test_rows_are_those_of_the_tokenizer_and_padding_has_none():
    tokenizer = byte_level()
    size = tokenizer.get_vocab_size()
    found = of(tokenizer, size + 4)
    assert len(found.tokens) == size + 4 and found.tokens[size:] == (None,) * 4
    assert list(found.tokens[:size]) == [tokenizer.id_to_token(i) for i in range(size)]
    assert found.source == "tokenizer.json" and found.spelling == "byte-level" and found.named and not found.notes
    assert [found.tokens[i] for i in found.special] == ["<|end|>"] and [found.tokens[i] for i in found.added] != []
    assert len(keep(found)) == size and len(keep(found, padding=True)) == size + 4
    assert len(keep(found, special=False)) == size - 1


def test_the_tokenizer_decides_before_the_config():
    """As in OLMo, whose config counts padding rows."""
    vocab = {f"t{i}": i for i in range(50_280)}
    fake = Fake({"tokenizer.json": {"model": {"type": "BPE", "vocab": vocab}}}, 50_304, {"vocab_size": 50_304})
    found = read_vocabulary(fake)
    assert len(keep(found)) == 50_280 and len(keep(found, padding=True)) == 50_304


def test_holes_are_padding_and_tokens_without_rows_are_left_out():
    fake = Fake({"vocab.json": {"a": 0, "b": 2, "c": 5, "d": 6}}, 5)
    found = read_vocabulary(fake)
    assert found.tokens == ("a", None, "b", None, None)
    assert "2 tokens" in found.notes[0] and keep(found).tolist() == [0, 2]


def test_bytes_are_those_that_byte_level_decoding_gives():
    tokenizer = byte_level()
    found = of(tokenizer)
    decoder = decoders.ByteLevel()
    for i, said in enumerate(bytes_of(found)):
        text = found.tokens[i] if i in found.special | found.added else decoder.decode([found.tokens[i]])
        assert said.decode("utf-8", "replace") == text
    assert set(BYTES) == set(pre_tokenizers.ByteLevel.alphabet()) and sorted(BYTES.values()) == list(range(256))


def test_bytes_are_those_that_sentence_piece_decoding_gives():
    tokenizer = sentence_piece()
    found = of(tokenizer)
    assert found.spelling == "SentencePiece"
    for token, said in zip(found.tokens, bytes_of(found), strict=True):
        assert said.decode("utf-8", "replace") == tokenizer.decoder.decode([token])


def test_tokens_of_different_spellings_match_by_bytes():
    a, b = of(byte_level(), name="a"), of(sentence_piece(), name="b")
    found = match(a, b)
    assert found.how == "by the bytes they stand for"
    pairs = {(a.tokens[i], b.tokens[j]) for i, j in zip(found.rows_a.tolist(), found.rows_b.tolist(), strict=True)}
    assert {("Ġthe", "▁the"), ("Ċ", "<0x0A>"), ("Ã", "<0xC3>")} <= pairs
    bytes_a, bytes_b = bytes_of(a), bytes_of(b)  # the first row of each
    first = {said: i for i, said in reversed(list(enumerate(bytes_b)))}
    expected = {i: first[s] for i, s in enumerate(bytes_a) if s in first and bytes_a.index(s) == i}
    assert dict(zip(found.rows_a.tolist(), found.rows_b.tolist(), strict=True)) == expected
    assert found.rows_a.tolist() == sorted(expected) and found.tokens == tuple(a.tokens[i] for i in sorted(expected))
    raw = match(a, b, raw=True)
    assert {a.tokens[i] for i in raw.rows_a.tolist()} == set(a.tokens) & set(b.tokens) and "strings" in raw.how


def test_one_tokenizer_matches_by_row_padding_included():
    tokenizer = byte_level()
    size = tokenizer.get_vocab_size()
    for raw in (False, True):
        found = match(of(tokenizer, size + 3), of(tokenizer, size + 9), raw=raw)
        assert found.rows_a.tolist() == found.rows_b.tolist() == list(range(size)) and "by row" in found.how
        padded = match(of(tokenizer, size + 3), of(tokenizer, size + 9), padding=True, raw=raw)
        assert padded.rows_a.tolist() == padded.rows_b.tolist() == list(range(size + 3))
        assert padded.tokens[-1] is None


def test_one_token_elsewhere_means_matching_by_text():
    found = match(made("x", "y", "z", None), made("y", "x", "z", "w", name="other"), padding=True)
    assert found.rows_a.tolist() == [0, 1, 2] and found.rows_b.tolist() == [1, 0, 2]
    assert found.how == "by the bytes they stand for" and found.tokens == ("x", "y", "z")
    assert any("without a token" in note and note.startswith("made") for note in found.notes)


def test_of_two_rows_for_one_text_the_first_counts():
    a = made("q", "Ġthe", "  ", "ĠĠ", spelling="byte-level", added=frozenset({2}))
    b = made("▁▁", "▁the", "▁▁▁", "▁the", name="b", spelling="SentencePiece")
    found = match(a, b)
    assert found.rows_a.tolist() == [1, 2] and found.rows_b.tolist() == [1, 0]
    assert sum("1 tokens mean the same" in note for note in found.notes) == 2


def test_word_pieces():
    b = made("the", "##ing", ",", "中", "##,", "##", "[CLS]", name="b", spelling="WordPiece")
    assert bytes_of(b) == [b" the", b"ing", b",", "中".encode(), b",", b"##", b"[CLS]"]
    found = match(made("ing", "Ġthe", "the", ",", spelling="byte-level"), b)
    assert found.rows_a.tolist() == [0, 1, 3] and found.rows_b.tolist() == [1, 0, 2]
    assert any("space before" in note for note in found.notes)


def test_few_tokens_in_common_are_said_and_none_is_an_error():
    found = match(made("a", "b", "c"), made("x", "c", "y", "z", name="b"))
    assert any("Fewer than half of the smaller vocabulary's 3" in note for note in found.notes)
    assert not any("Fewer" in n for n in match(made("a", "b", "c", "d"), made("b", "a", name="b")).notes)
    with pytest.raises(InputError, match=r"^made and b: no token in common \('b' and 'y'"):
        match(made("a", "b"), made("x", "y", name="b"))


def test_special_and_unused_tokens_can_be_dropped():
    tokens = ["<s>", "a", "[unused3]", "b", "<|reserved_special_token_0|>"]
    added = [{"id": 0, "content": "<s>", "special": True}, {"id": 4, "content": tokens[4], "special": True}]
    held = {"model": {"vocab": [[t, 0.0] for t in tokens[:4]], "type": "Unigram"}, "added_tokens": added}
    found = read_vocabulary(Fake({"tokenizer.json": held}, 5))
    assert found.tokens == tuple(tokens) and found.special == {0, 4} and found.unused == {2, 4}
    assert keep(found, special=False).tolist() == [1, 2, 3] and keep(found, unused=False).tolist() == [0, 1, 3]
    assert match(found, found, special=False, unused=False).rows_a.tolist() == [1, 3]


def test_names_of_places_kept_free():
    free = ["[unused12]", "<unused0>", "<|reserved_special_token_3|>", "<extra_id_1>", "<|extra_id_1|>", "<|extra_0|>"]
    free += ["<SPECIAL_20>", "[control_8]", "<|placeholder1|>", "<|dummy_3|>", "<|reserved_200013|>", "madeupword0002"]
    used = ["|||PHONE_NUMBER|||", "<|endoftext|>", "<|im_start|>", "unused", "[unused]", "<0x0A>", "<h1>", "extra 1"]
    used += ["unused12", "<extra_id_1", "Ġ[unused12]", "<|fim_prefix|>", "[1]", "<s>"]
    assert all(UNUSED.fullmatch(token) for token in free) and not any(UNUSED.fullmatch(token) for token in used)


def test_slow_tokenizers_files():
    files = {"vocab.json": {"Ġa": 0, "b": 1, "<e>": 2}, "merges.txt": b"", "added_tokens.json": {"<x>": 3, "new": 4}}
    files["special_tokens_map.json"] = {"eos_token": {"content": "<e>"}, "additional_special_tokens": ["<x>"]}
    found = read_vocabulary(Fake(files, 6))
    assert found.tokens == ("Ġa", "b", "<e>", "<x>", "new", None) and found.spelling == "byte-level"
    assert found.special == {2, 3} and found.added == {3, 4} and found.source == "vocab.json"
    lines = "[PAD]\nthe\r\n##ing\n\u2028\n".encode()  # not every end of a line for str.splitlines is one
    found = read_vocabulary(Fake({"vocab.txt": lines}, 4))
    assert found.tokens == ("[PAD]", "the", "##ing", "\u2028") and found.special == {0}
    assert found.spelling == "WordPiece" and found.source == "vocab.txt"


def test_the_vocabulary_in_a_gguf_file():
    tokens = ["<s>", "<0x0A>", "▁the", "user", "<spare>", "[PAD5]", "[PAD7]"]
    found = read_vocabulary(Fake(rows=8, tokens=tokens, token_types=[3, 6, 1, 4, 5, 5, 5], config={"vocab_size": 8}))
    assert found.tokens == ("<s>", "<0x0A>", "▁the", "user", "<spare>", None, "[PAD7]", None)
    assert found.special == {0} and found.unused == {4, 6} and found.source == "GGUF"
    assert bytes_of(found)[:4] == [b"<s>", b"\n", b" the", b"user"]


def test_added_tokens_alone_are_no_vocabulary():
    decoder = {str(i): {"content": f"<{i}>", "special": True} for i in range(3)}
    few = Fake({"tokenizer_config.json": {"added_tokens_decoder": decoder}}, 100, {"vocab_size": 90})
    found = read_vocabulary(few)
    assert not found.named and len(keep(found)) == 90 and found.source == "config.json" and found.notes
    few.rows, few.config = 4, {}
    found = read_vocabulary(few)
    assert found.tokens == ("<0>", "<1>", "<2>", None) and found.special == {0, 1, 2}


def test_without_strings_rows_match_only_if_there_are_as_many():
    blind, seen = read_vocabulary(Fake(rows=4, config={"vocab_size": 3})), made("a", "b", "c")
    found = match(blind, seen)
    assert found.rows_a.tolist() == found.rows_b.tolist() == [0, 1, 2] and found.tokens == ("a", "b", "c")
    assert "taken for granted" in found.notes[0]
    assert len(keep(read_vocabulary(Fake(rows=4, config={})))) == 4
    with pytest.raises(InputError, match=r"fake: no tokenizer found, .*\(3 and 2\)"):
        match(blind, made("a", "b"))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", b"{"),
        ("tokenizer.json", b"[]"),
        ("tokenizer.json", b"{}"),
        ("tokenizer.json", b"\xff\xfe\xfd"),
        ("tokenizer.json", {"model": None}),
        ("tokenizer.json", {"model": {"vocab": {"a": "x"}}}),
        ("tokenizer.json", {"model": {"vocab": {"a": -1}}}),
        ("tokenizer.json", {"model": {"vocab": {"a": 1.5}}}),
        ("tokenizer.json", {"model": {"vocab": [1, 2]}}),
        ("tokenizer.json", {"model": {"vocab": {}}, "added_tokens": [{"id": 1}]}),
        ("tokenizer.json", {"model": {"vocab": {}}, "added_tokens": 3}),
        ("tokenizer.json", {"model": {"vocab": {}}, "pre_tokenizer": {"pretokenizers": 3}}),
        ("vocab.json", {"a": None}),
        ("vocab.txt", b"\xff"),
    ],
)
def test_damaged_files_are_named(name, content):
    with pytest.raises(InputError, match=rf"^fake: {name}: damaged \([^\n]+\)$"):
        read_vocabulary(Fake({name: content}))


@pytest.mark.parametrize("name", ["added_tokens.json", "tokenizer_config.json", "special_tokens_map.json"])
def test_damaged_files_beside_a_vocabulary_are_named(name):
    for content in (b"nothing", {"added_tokens_decoder": {"x": 1}, "a": "b", "additional_special_tokens": [{}]}):
        with pytest.raises(InputError, match=rf"^fake: .*{name}.* damaged"):
            read_vocabulary(Fake({"vocab.json": {"a": 0}, name: content}))


def test_added_tokens_are_text_and_special_ones_names():
    found = made("é", "é", "▁é", spelling="byte-level", added=frozenset({1}))
    assert bytes_of(found)[:2] == [b"\xe9", "é".encode()]
    named = Vocabulary(("▁<s>", "▁<s>"), frozenset({1}), frozenset(), "hand", spelling="SentencePiece")
    assert bytes_of(named) == [b" <s>", "▁<s>".encode()]
