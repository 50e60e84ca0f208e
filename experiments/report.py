"""Tables and figure of finished runs: distances, when they vanish, and accuracy, over seeds.

Prints the tables, and writes training-curves.png, training-curves.pdf and results.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from exor import InputError
from experiments.command import main

app = App(name="python -m experiments.report", help=__doc__, help_format="plaintext", version_flags=[])


@app.default
def report(
    root: Annotated[Path, Parameter(help="Folder with the runs of one experiment.")] = Path("runs/exor/main"),
    /,
    *,
    out: Annotated[Path, Parameter(help="Where the files go.")] = Path("report"),
    reference: Annotated[
        Path | None, Parameter(help="Folder of curves to compare with, {tied,untied}-seed-<n>.csv.")
    ] = None,
    readme: Annotated[Path | None, Parameter(help="File whose results, between its markers, to renew.")] = None,
    picture: Annotated[Path, Parameter(help="Where that file's picture goes, seen from its folder.")] = Path(
        "docs/results/training-curves.png"
    ),
) -> int:
    """Tables and figure of finished runs."""
    from rich.console import Console  # slow to import, as is the library behind the tables, and --help is not
    from rich.table import Table
    from rich.text import Text

    from exor import figures, tables
    from exor.runs import write_file

    experiment = tables.collect(root)
    compared = tables.reference_table(reference) if reference else None
    results = tables.report(experiment, compared)
    renewed = _renewed(readme, results) if readme else ""

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=160)
    for sheet in tables.sheets(experiment, compared):
        shown = Table(title=sheet.title, caption=Text(sheet.note), title_justify="left", caption_justify="left")
        for heading in sheet.headings:
            shown.add_column(Text(heading))
        for row in sheet.rows:
            shown.add_row(*map(Text, row))
        if sheet.rows:
            console.print(shown)
    if experiment.left_out:
        console.print(f"Left out: {', '.join(experiment.left_out)}.")

    figure = figures.training_curves(
        experiment.table,
        pairs=[relation.name for relation in experiment.relations],
        ceiling=experiment.ceiling,
        exact=not experiment.sampled,
    )
    png, pdf = figures.save(figure, out / "training-curves")
    write_file(out / "results.md", results)
    written = [png, pdf, out / "results.md"]
    if readme:
        copy = readme.resolve().parent / picture
        copy.parent.mkdir(parents=True, exist_ok=True)
        write_file(copy, png.read_bytes())
        write_file(readme.resolve(), renewed)
        written += [copy, readme]
    console.print(f"Written: {', '.join(map(str, written))}", soft_wrap=True)
    return 0


def _renewed(readme: Path, results: str) -> str:
    """The text of a file with new results."""
    from exor.tables import replace_results

    try:
        return replace_results(readme.read_text(encoding="utf-8"), results)
    except InputError as error:
        raise InputError(f"{readme}: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{readme}: cannot be read ({getattr(error, 'strerror', None) or 'not UTF-8 text'})") from None


if __name__ == "__main__":
    main(app)()
