"""The asymmetry study: accuracy and the distance of two synonyms against how differently they occur.

Reads the runs of a sweep over languages, prints the table, and writes <stem>.png, <stem>.pdf, <stem>.md and <stem>.csv.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from experiments.command import main

app = App(name="python -m experiments.asymmetry", help=__doc__, help_format="plaintext", version_flags=[])


@app.default
def asymmetry(
    file: Annotated[Path, Parameter(help="YAML file of the sweep.")] = Path("experiments/sweeps/asymmetry.yaml"),
    /,
    *,
    runs: Annotated[Path, Parameter(help="Where its runs are.")] = Path("runs"),
    out: Annotated[Path, Parameter(help="Where the files go.")] = Path("report"),
    pair: Annotated[str, Parameter(help="The synonyms.")] = "0A-0B",
) -> int:
    """Accuracy and distance against the conditional gap."""
    from rich.console import Console  # slow to import, as are the libraries behind the tables

    from exor import asymmetry, comparisons, figures, sweeps
    from exor.runs import write_file
    from experiments.terminal import show

    table = sweeps.table(sweeps.read(file), runs)
    found = asymmetry.along_gap(table, pair)
    sheet = asymmetry.sheet(found, asymmetry.trend(table, pair), pair)
    console = Console(highlight=False)
    console = console if console.is_terminal else Console(highlight=False, width=140)
    show(sheet, console)
    done = table[table["state"] == "finished"]
    names = {"gap": f"conditional_gap/{pair}", "accuracy": "accuracy_train", "ceiling": "ceiling_accuracy_train"}
    written = [*figures.save(comparisons.against_gap(done, pair, **names), out / file.stem)]
    for suffix, text in ((".md", sheet.markdown()), (".csv", found.to_csv(index=False))):
        written.append(out / f"{file.stem}{suffix}")
        write_file(written[-1], text)
    if left := len(table) - len(done):
        console.print(f"Left out: {left} of {len(table)} runs that are not finished.")
    console.print(f"Written: {', '.join(map(str, written))}", soft_wrap=True)
    return 0


if __name__ == "__main__":
    main(app)()
