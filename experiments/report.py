"""What tying changed, from whatever runs a folder holds.

Prints the table of effects and that of theory and observation for every experiment, and writes report.html,
results.md, effects.csv, and a folder of figures for each. Unfinished, diverged and damaged runs are left out and
named; after damaged ones the exit status is 2.
"""

from __future__ import annotations

import datetime
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from exor import InputError
from experiments.command import main

if TYPE_CHECKING:
    from rich.console import Console

    from exor.report import Analysis

WIDTH = 100  # columns, where the output is no terminal

app = App(name="python -m experiments.report", help=__doc__, help_format="plaintext", version_flags=[])


@app.default
def report(
    root: Annotated[Path, Parameter(help="Folder with runs.")] = Path("runs/exor"),
    /,
    *,
    out: Annotated[Path, Parameter(help="Where the files go.")] = Path("report"),
    reference: Annotated[
        Path | None,
        Parameter(help="Folder of curves to compare with, {tied,untied}-seed-<n>.csv; for the runs of one experiment."),
    ] = None,
    readme: Annotated[
        Path | None,
        Parameter(help="File whose results, between its markers, to renew; for the runs of one experiment."),
    ] = None,
    picture: Annotated[Path, Parameter(help="Where that file's picture goes, seen from its folder.")] = Path(
        "docs/results/training-curves.png"
    ),
) -> int:
    """What tying changed, from whatever runs a folder holds."""
    from rich.console import Console  # slow to import, as is the library behind the tables, and --help is not

    from exor import gather, results
    from exor import report as library
    from exor.runs import write_file

    if readme or reference:
        gather.collect(root)  # an InputError for anything but the whole runs of one experiment
    gathered = gather.gather(root)
    gather.require_some(gathered)
    compared = gather.reference_table(reference) if reference else None
    block = results.results(gathered.experiments[0], compared) if readme else ""
    renewed = _renewed(readme, block) if readme else ""

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=WIDTH)
    analyses = [library.analyse(experiment) for experiment in gathered.experiments]
    for analysis in analyses:
        _tell(analysis, console)
    if gathered.left_out:
        left_out = ", ".join(f"{run.name} {run}" for run in gathered.left_out)
        console.print(f"Left out: {left_out}.", markup=False)

    given = {"--out": out, "--reference": reference, "--readme": readme, "--picture": picture if readme else None}
    words = [str(word) for option, value in given.items() if value for word in (option, value)]
    command = shlex.join(["python", "-m", "experiments.report", str(root), *words])
    date = datetime.date.today().isoformat()
    written = library.write(analyses, gathered, out, command=command, date=date, reference=compared)
    told = [path for path in written if path.parent == out]
    if readme:
        png = next(path for path in written if path.name == "training-curves.png")
        copy = readme.resolve().parent / picture
        copy.parent.mkdir(parents=True, exist_ok=True)
        write_file(copy, png.read_bytes())
        write_file(readme.resolve(), renewed)
        told += [copy, readme]
    console.print(f"Written: {', '.join(map(str, told))}", soft_wrap=True, markup=False)
    if gathered.damaged:
        raise InputError(f"left out as damaged: {'; '.join(run.why for run in gathered.damaged)}")
    return 0


def _tell(analysis: Analysis, console: Console) -> None:
    """One experiment on a terminal."""
    from rich.text import Text

    from exor.sheets import opposites_line
    from experiments.terminal import show

    console.rule(Text(analysis.experiment.name, style="bold"), align="left")
    for sheet in analysis.sheets:
        show(sheet, console)
    for line in (opposites_line(analysis.theory), *analysis.notes):
        if line:
            console.print(Text(line))
    console.print()


def _renewed(readme: Path, block: str) -> str:
    """The text of a file with new results."""
    from exor.results import replace_results

    try:
        return replace_results(readme.read_text(encoding="utf-8"), block)
    except InputError as error:
        raise InputError(f"{readme}: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{readme}: cannot be read ({getattr(error, 'strerror', None) or 'not UTF-8 text'})") from None


if __name__ == "__main__":
    main(app)()
