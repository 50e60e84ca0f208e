"""The claims of the first paper (B24), held against effects and theory tables of one or more experiments."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from exor.sheets import Number, Sheet, dash, with_interval

SOONER = "tied rows that theory wants together meet sooner"
LOWER = "tied accuracy is lower where theory pulls a pair both ways"
OUTPUT = "untied output: only conditionally equivalent pairs come together"
INPUT = "untied input: semantically equivalent pairs come together"
SAYS = {True: "reproduces", False: "contradicted", None: "undecided"}


def claims(name: str, effects: pd.DataFrame, theory: pd.DataFrame) -> pd.DataFrame:
    """What an experiment says of every claim that it can speak of.

    Args:
        name: of the experiment.
        effects: see :func:`exor.effects.effects`; may be empty.
        theory: see :func:`exor.theory.theory`.

    Returns:
        claim, experiment, what; value with its 95 % interval low to high: tied − untied in steps or accuracy, or the
        share of the first distance that is left; reproduces: True where all of the interval is on the claimed side,
        False where all is on the other, None otherwise.
    """
    rows = []
    for e in effects.to_dict("records"):
        against = f"tied − untied {e['against']}".strip()
        if e["quantity"] == "convergence":
            rows.append((SOONER, f"{dash(e['pair'])}, {against}, steps", e["difference"], e["low"], e["high"]))
        elif e["quantity"] == "accuracy" and e["predicted"]:
            rows.append((LOWER, against, e["difference"], e["low"], e["high"]))
    found = [(claim, name, *row, True if row[-1] < 0 else False if row[-2] > 0 else None) for claim, *row in rows]
    untied = theory[(theory["mode"] == "untied") & ~theory["opposite"]]
    for t in untied.to_dict("records"):
        claim = INPUT if t["matrix"] == "input" else OUTPUT
        if claim == INPUT and t["semantic_gap"] > 0:
            continue
        what = f"{dash(t['pair'])}, {'apart' if t['predicted'] == 'apart' else 'together'}, share of its start"
        agrees = t["agrees"] if isinstance(t["agrees"], bool) else None
        found.append((claim, name, what, t["share"], t["share_low"], t["share_high"], agrees))
    columns = ["claim", "experiment", "what", "value", "low", "high", "reproduces"]
    return pd.DataFrame(found, columns=columns)


def sheet(tables: Iterable[pd.DataFrame]) -> Sheet:
    """The claims of several experiments, claim by claim."""
    every = pd.concat(list(tables), ignore_index=True)
    rows: list[tuple[str, ...]] = []
    counts = []
    for claim in (SOONER, LOWER, OUTPUT, INPUT):
        for c in every[every["claim"] == claim].to_dict("records"):
            says = c["reproduces"] if isinstance(c["reproduces"], bool) else None
            value: Number = with_interval(c["value"], c["low"], c["high"])
            rows.append((claim, c["experiment"], c["what"], value, SAYS[says]))
        said = [row[-1] for row in rows if row[0] == claim]
        if said:
            yes, no = said.count(SAYS[True]), said.count(SAYS[False])
            counts.append(f"{claim}: {yes} of {len(said)} reproduce, {no} contradicted.")
    note = (
        "95 % intervals over seeds, not adjusted for their number: where there is no effect, about one in twenty shows "
        "one. " + " ".join(text[:1].upper() + text[1:] for text in counts)
    )
    headings = ("claim", "experiment", "what", "value [95 %]", "verdict")
    return Sheet("Published claims", note, headings, tuple(rows))
