"""What models call their tensors.

``LAYOUTS`` is all there is to know. Names are matched whole: the blocks of OLMo hold an
``ff_out.weight`` as well, and only ``transformer.ff_out.weight`` is the output matrix.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches

from exor import InputError


@dataclass(frozen=True)
class Layout:
    """Names of the tensors around the vocabulary.

    Attributes:
        bases: prefixes of the model below its head; the first that fits is taken.
        input: input matrix, after the base.
        outputs: output matrix, whole names.
        norms: final norm, after the base, without ``.weight``; for a masked model that of its head, whole names.
        biases: of the head, whole names; the first that is there is the one in use.
        masked: a masked language model, which is an encoder without output matrix if the head's tensors are absent.
    """

    bases: tuple[str, ...]
    input: str
    outputs: tuple[str, ...]
    norms: tuple[str, ...]
    biases: tuple[str, ...] = ()
    masked: bool = False


HEADS = ("lm_head.weight", "language_model.lm_head.weight", "model.lm_head.weight", "thinker.lm_head.weight")
BIASES = ("lm_head.bias",)
LAYOUTS = (
    Layout(  # Llama, Mistral, Qwen, OLMo in transformers, Gemma, Phi, StableLM, …, and inside models of text and images
        ("model.", "", "language_model.model.", "model.language_model.", "model.text_model.", "thinker.model."),
        "embed_tokens.weight",
        HEADS,
        ("norm", "final_layernorm", "final_norm", "embedding_norm"),
        BIASES,
    ),
    Layout(("model.decoder.", "decoder."), "embed_tokens.weight", HEADS, ("final_layer_norm",), BIASES),  # OPT
    Layout(  # GPT-2, GPT-Neo, GPT-J, MPT, StarCoder; OLMo's own format
        ("transformer.", "", "model.transformer."),
        "wte.weight",
        ("lm_head.weight", "transformer.ff_out.weight", "model.transformer.ff_out.weight"),
        ("ln_f", "norm_f"),
        BIASES,
    ),
    Layout(  # GPT-NeoX, Pythia
        ("gpt_neox.", ""), "embed_in.weight", ("embed_out.weight", "lm_head.weight"), ("final_layer_norm",)
    ),
    Layout(("transformer.", ""), "word_embeddings.weight", ("lm_head.weight",), ("ln_f",)),  # BLOOM, Falcon
    Layout(  # Mamba
        ("backbone.", ""), "embeddings.weight", ("lm_head.weight",), ("norm_f",)
    ),
    Layout(  # BERT
        ("bert.", ""),
        "embeddings.word_embeddings.weight",
        ("cls.predictions.decoder.weight",),
        ("cls.predictions.transform.LayerNorm",),
        ("cls.predictions.decoder.bias", "cls.predictions.bias"),
        masked=True,
    ),
    Layout(  # RoBERTa and those that followed it
        ("roberta.", ""),
        "embeddings.word_embeddings.weight",
        ("lm_head.decoder.weight",),
        ("lm_head.layer_norm",),
        ("lm_head.decoder.bias", "lm_head.bias"),
        masked=True,
    ),
    Layout(  # DistilBERT
        ("distilbert.", ""),
        "embeddings.word_embeddings.weight",
        ("vocab_projector.weight",),
        ("vocab_layer_norm",),
        ("vocab_projector.bias",),
        masked=True,
    ),
    Layout(  # ALBERT
        ("albert.", ""),
        "embeddings.word_embeddings.weight",
        ("predictions.decoder.weight",),
        ("predictions.LayerNorm",),
        ("predictions.decoder.bias", "predictions.bias"),
        masked=True,
    ),
    Layout(  # ModernBERT
        ("model.", ""),
        "embeddings.tok_embeddings.weight",
        ("decoder.weight",),
        ("head.norm",),
        ("decoder.bias",),
        masked=True,
    ),
    Layout(("",), "token_embd.weight", ("output.weight",), ("output_norm",), ("output.bias",)),  # GGUF
    Layout(("",), "tok_embeddings.weight", ("output.weight",), ("norm",)),  # Llama and Mistral, as first published
)


WANTED = frozenset(
    name
    for layout in LAYOUTS
    for base in layout.bases
    for name in (
        base + layout.input,
        *layout.outputs,
        *layout.biases,
        *(
            f"{prefix}{norm}.{end}"
            for norm in layout.norms
            for prefix in (base, "")
            for end in ("weight", "bias", "gamma", "beta")
        ),
    )
)
"""Every name that may be asked for."""


@dataclass(frozen=True)
class Names:
    """The tensors of one checkpoint; None for those that it does not hold."""

    input: str
    output: str | None
    norm_gain: str | None = None
    norm_bias: str | None = None
    head_bias: str | None = None
    masked: bool = False
    has_head: bool = False

    def every(self) -> list[str]:
        """Those that it holds."""
        return [n for n in (self.input, self.output, self.norm_gain, self.norm_bias, self.head_bias) if n]


def find_names(
    names: Collection[str], where: str, input_key: str | None = None, output_key: str | None = None
) -> Names:
    """Which tensors of a checkpoint are what.

    Args:
        names: of all its tensors.
        where: the checkpoint, as shown.
        input_key, output_key: the input and output matrix, if the caller knows better.

    Raises:
        InputError: there is no such tensor, or none that is known as an input matrix.
    """
    for key in (input_key, output_key):
        if key is not None and key not in names:
            raise InputError(f"{where}: holds no tensor {key}; {_nearest(key, names)}")
    candidates = list(_candidates(names))
    if input_key is not None:
        found = next((c for c in candidates if c.input == input_key), Names(input_key, None))
    elif candidates:
        found = max(candidates, key=lambda c: (c.output is not None, c.has_head))  # the first of the best
    else:
        raise InputError(
            f"{where}: none of its {len(names):,} tensors is known as an input embedding matrix; name it, and the "
            f"output matrix if there is one; {_nearest('embed_tokens.weight', names)}"
        )
    return found if output_key is None else replace(found, output=output_key, has_head=True)


def _candidates(names: Collection[str]) -> Iterator[Names]:
    def first(*wanted: str) -> str | None:
        return next((name for name in wanted if name in names), None)

    for layout in LAYOUTS:
        for base in layout.bases:
            if base + layout.input not in names:
                continue
            norms = [norm if layout.masked else base + norm for norm in layout.norms]
            gain = first(*(f"{norm}.{end}" for norm in norms for end in ("weight", "gamma")))
            bias = first(*(f"{norm}.{end}" for norm in norms for end in ("bias", "beta")))
            output, head_bias = first(*layout.outputs), first(*layout.biases)
            head = output is not None or (layout.masked and (gain is not None or head_bias is not None))
            yield Names(base + layout.input, output, gain, bias, head_bias, layout.masked, head)


def _nearest(key: str, names: Collection[str]) -> str:
    near = get_close_matches(key, names, 3, 0.4)
    near += [name for name in names if "embed" in name or "wte" in name or "head" in name][: 3 - len(near)]
    return f"the nearest are {', '.join(near)}" if near else f"it holds {', '.join(sorted(names)[:3])}, …"
