"""Tables of text, ready to show: in a terminal, as Markdown, in a web page."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from math import floor, isfinite, isnan, log10

import pandas as pd

from exor.config import RunConfig
from exor.effects import HOLM, fewest_seeds
from exor.findings import LAST, MET
from exor.gather import Experiment, shown
from exor.misses import Found
from exor.signflips import EXACT_SEEDS, MIN_SEEDS

AGREES = {True: "agrees", False: "disagrees", None: "undecided"}
MARKS = {True: "✓", False: "✗", None: "?"}


class Number(str):
    """A number as it is printed, which still knows its value."""

    value: float

    def __new__(cls, text: str, value: float) -> Number:
        self = super().__new__(cls, text)
        self.value = float(value)
        return self


@dataclass(frozen=True)
class Sheet:
    """A table of text.

    Attributes:
        keys: what each row is about, for those who look up more about it; empty if there is nothing more.
    """

    title: str
    note: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    keys: tuple[tuple[str, ...], ...] = ()

    def markdown(self) -> str:
        """As Markdown, title and note above."""
        lines = [self.headings, ("---",) * len(self.headings), *[[plain(cell) for cell in row] for row in self.rows]]
        return f"**{self.title}.** {self.note}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


# --- numbers as they are printed --------------------------------------------------------------------------------


def number(value: float, digits: int = 3) -> Number:
    """With so many digits that count, thousands separated, and a true minus sign."""
    return Number(_fixed(value, _decimals([value], digits)), value)


def count(value: int) -> Number:
    """A whole number."""
    return Number(f"{value:,}", value)


def share(value: float, digits: int = 3) -> Number:
    """A share in per cent."""
    return Number(f"{number(100 * value, digits)} %" if isfinite(value) else "–", value)


def with_interval(value: float, low: float, high: float, scale: float = 1) -> Number:
    """``−0.0083 [−0.0960; 0.0801]``, all with as many decimals as the largest needs for three digits."""
    places = _decimals([scale * v for v in (value, low, high)], 3)
    middle, *ends = (_fixed(scale * v, places) for v in (value, low, high))
    known = not (isnan(low) or isnan(high))
    return Number(middle + (f" [{ends[0]}; {ends[1]}]" if known else ""), value)


def probability(p: float) -> Number:
    """A p value."""
    return Number("<0.001" if p < 0.0005 else f"{p:.3f}", p)


def dash(pair: str) -> str:
    """A pair as it is printed."""
    return pair.replace("-", "–")


def plain(text: str) -> str:
    """A text that means nothing else in a table of Markdown."""
    return re.sub(r"([\\`*_<|])", r"\\\1", text)


def _decimals(values: Iterable[float], digits: int) -> int:
    """Decimals with which the largest of them shows so many digits."""
    largest = max((abs(v) for v in values if isfinite(v)), default=0.0)
    return min(max(digits - 1 - floor(log10(largest)), 0), 9) if largest else 0


def _fixed(value: float, places: int) -> str:
    if not isfinite(value):
        return "–" if isnan(value) else "∞" if value > 0 else "−∞"
    text = f"{value:,.{places}f}"
    return "0" if not float(text.replace(",", "")) and not value else text.replace("-", "−")


# --- findings ---------------------------------------------------------------------------------------------------


def of_effects(effects: pd.DataFrame) -> Sheet:
    """The effects table (:func:`exor.effects.effects`)."""
    rows, keys = [], []
    for e in effects.to_dict("records"):
        timed = e["quantity"] == "convergence"
        what = {"accuracy": "accuracy", "distance": "distance", "convergence": "steps"}[e["quantity"]]
        label = f"{what} {dash(e['pair'])}, {e['against']}" if e["pair"] else what
        difference = with_interval(e["difference"], e["low"], e["high"])
        means = [
            Number(("≥ " if timed and e[f"never_{mode}"] else "") + number(e[mode]), e[mode])
            for mode in ("tied", "untied")
        ]
        rows.append(
            (
                label,
                *means,
                Number(f"{difference}*", difference.value) if e["bound"] else difference,
                probability(e["p_holm"]),
                e["verdict"],
                f"{e['predicted']} {MARKS[_truth(e['agrees'])]}" if e["predicted"] else "–",
            )
        )
        keys.append((e["quantity"], e["pair"], e["against"]))
    headings = ("quantity, untied matrix", "tied", "untied", "tied − untied [95 %]", "p (Holm)", "verdict", "theory")
    return Sheet("Effects of tying", effects_note(effects), headings, tuple(rows), tuple(keys))


def effects_note(effects: pd.DataFrame) -> str:
    """What the numbers of an effects table are."""
    n, rows = int(effects["n"].iloc[0]), len(effects)
    seeds = effects["seeds"].iloc[0]
    words = [f"{n} seed{'s' if n > 1 else ''} ({ranges(seeds)}) in both modes, paired by seed; means over the last"]
    words[0] += f" {LAST:,} steps; steps: until the two rows have met, below {100 * MET:.0f} % of their first distance"
    words[0] += " for good."
    test = "all flips counted" if n <= EXACT_SEEDS else "a fixed sample of the flips"
    if n < MIN_SEEDS:
        words.append(f"Interval: Student's t. Fewer than {MIN_SEEDS} seeds can reach no verdict.")
    else:
        words.append(f"Interval and p: sign-flip permutation test, {test}; p adjusted for all {rows} rows (Holm).")
        words.append(f"A verdict needs p ≤ {HOLM:g}.")
    if MIN_SEEDS <= n < (fewest := fewest_seeds(rows)):
        words.append(f"No table of {rows} rows can reach one with fewer than {fewest} seeds.")
    words.append("Theory: ✓ all of the interval on the predicted side, ✗ on the other, ? neither.")
    if effects[["never_tied", "never_untied"]].to_numpy().any():
        words.append("≥ and *: some runs never met, and the last step stands for theirs.")
    return " ".join(words)


def of_theory(theory: pd.DataFrame, effects: pd.DataFrame | None = None, opposite: bool = False) -> Sheet:
    """The theory table (:func:`exor.theory.theory`), and what theory says of accuracy.

    Args:
        opposite: the pairs of symbols for different bits, instead of those for the same one.
    """
    rows: list[tuple[str, ...]] = []
    keys = []
    for t in theory[theory["opposite"] == opposite].to_dict("records"):
        rows.append(
            (
                label(t["mode"], t["matrix"], t["pair"]),
                f"{t['semantic_gap']:.3g} / {t['conditional_gap']:.3g}",
                t["predicted"],
                Number(f"{number(t['start'])} → {number(t['end'])}", t["end"]),
                with_interval(t["share"], t["share_low"], t["share_high"], 100),
                Number(f"{t['met']}/{t['n']}", t["met"] / t["n"]),
                Number(thousands(t["median"]), t["median"]),
                AGREES[_truth(t["agrees"])],
            )
        )
        keys.append((t["mode"], t["matrix"], t["pair"]))
    if effects is not None and not effects.empty and not opposite:
        e = effects.iloc[0]
        said = AGREES[_truth(e["agrees"])] if e["predicted"] else "–"
        change = Number(f"{number(e['untied'])} → {number(e['tied'])}", e["tied"])
        difference = with_interval(e["difference"], e["low"], e["high"])
        ends = Number(difference[difference.find("[") :] if "[" in difference else "–", difference.value)
        rows.append(("accuracy", "–", e["predicted"] or "–", change, ends, "–", "–", said))
        keys.append(("accuracy", "", ""))
    note = (
        f"Gaps: semantic / conditional. Observed: distance at the start → mean over the last {LAST:,} steps. The rows "
        f"have come together if that is below {100 * MET:.0f} % of the start, which is undecided if the 95 % interval "
        "lies on both sides. Met: runs that stay below; median: of their steps (Kaplan–Meier). Both ways: "
        "between the two untied matrices, see the effects. Accuracy: untied → tied, and the interval of the difference."
    )
    if opposite:
        note = "Theory keeps symbols for different bits apart in every matrix. Columns as above."
    headings = ("matrix, pair", "gaps", "theory", "observed", "% of start [95 %]", "met", "median", "verdict")
    title = "Pairs of symbols for different bits" if opposite else "Theory and observation"
    return Sheet(title, note, headings, tuple(rows), tuple(keys))


def opposites_line(theory: pd.DataFrame) -> str:
    """What became of the pairs of symbols for different bits, in a sentence; empty if there are none."""
    rows = theory[theory["opposite"]]
    if rows.empty:
        return ""
    said = [_truth(a) for a in rows["agrees"]]
    counts = [said.count(True), said.count(False), said.count(None)]
    nearest = rows.sort_values("share").iloc[0]
    where = label(nearest["mode"], nearest["matrix"], nearest["pair"])
    return (
        f"Theory keeps symbols for different bits apart. Of {len(rows)} such pairs in a matrix, {counts[0]} agree, "
        f"{counts[1]} disagree, {counts[2]} are undecided; the closest ends at {share(nearest['share'])} of its start "
        f"({where})."
    )


def of_misses(found: Found) -> Sheet:
    """Which contexts miss the ceiling (:func:`exor.misses.of_experiment`)."""
    modes = list(found.tables)
    first = found.tables[modes[0]]
    rows = []
    for i, context in enumerate(first.to_dict("records")):
        cells = []
        for mode in modes:
            m = found.tables[mode].iloc[i]
            missing = Number(f"{m['runs_missing']}/{m['runs']}", m["runs_missing"])
            cells += [missing, share(m["missed"]), number(m["cost"], 2)]
        if any(found.tables[mode].iloc[i]["runs_missing"] for mode in modes):
            ones = Number(str(context["ones"]), context["ones"])
            rows.append((context["parity"], ones, context["best"], share(context["probability"]), *cells))
    note = [
        "Contexts of the training strings by what decides the masked bit: the parity symbol and the visible ones. "
        "Missed: share of their probability where the prediction is not a best one, mean over runs; cost: accuracy "
        "lost there."
    ]
    for mode in modes:
        note.append(f"{mode.capitalize()}: {number(found.tables[mode]['cost'].sum(), 2)} below the ceiling in all.")
    if rest := len(first) - len(rows):
        note.append(f"{rest} other kinds of context are missed by no run." if rows else "No run misses anything.")
    if found.sampled:
        note.append(f"Estimated from a fixed sample of {found.contexts:,} of {found.every:,} contexts.")
    columns = [f"{mode} {what}" for mode in modes for what in ("runs", "missed", "cost")]
    headings = ("parity", "ones", "best", "probability", *columns)
    return Sheet("Contexts that miss the ceiling", " ".join(note), headings, tuple(rows))


def of_settings(experiments: Sequence[Experiment]) -> Sheet:
    """Settings that differ between experiments."""
    configs = [e.config for e in experiments]
    names = [f.name for f in fields(RunConfig) if f.name not in ("seed", "tied")]
    names = [n for n in names if len({getattr(c, n) for c in configs}) > 1]
    rows = [(e.name, *(shown(getattr(e.config, n)) for n in names)) for e in experiments]
    note = "Settings that differ between the experiments; all others are equal." if names else "All settings are equal."
    return Sheet("Configuration differences", note, ("experiment", *names), tuple(rows) if names else ())


def label(mode: str, matrix: str, pair: str) -> str:
    """A pair in a matrix, as it is printed."""
    return f"{'tied' if mode == 'tied' else f'untied {matrix}'} {dash(pair)}"


def ranges(numbers: Iterable[int]) -> str:
    """``42–51, 60`` for whole numbers in order."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][-1] + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    return ", ".join(f"{r[0]}–{r[-1]}" if len(r) > 2 else ", ".join(map(str, r)) for r in runs)


def thousands(step: float) -> str:
    """A step in thousands; never for infinity."""
    return f"{step / 1000:.0f}k" if isfinite(step) else "never"


def _truth(agrees: object) -> bool | None:
    """From a column of pandas, which may hold NaN for None."""
    return None if agrees is None or agrees != agrees else bool(agrees)
