"""One self-contained web page, in the design that all reports share."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure
from PIL import Image  # matplotlib writes its own with it

from exor import figures
from exor.runs import versions
from exor.sheets import Sheet


class Link(str):
    """A text that leads somewhere."""

    href: str

    def __new__(cls, text: str, href: str) -> Link:
        self = super().__new__(cls, text)
        self.href = href
        return self


@dataclass(frozen=True)
class Picture:
    """A figure in a page.

    Attributes:
        stem: of its files.
        png: in base64.
        pdf: the same as a file.
    """

    stem: str
    title: str
    png: str
    pdf: Link


@dataclass(frozen=True)
class Section:
    """A part of a page with its own heading.

    Attributes:
        id: in the address; unique in a page.
        name: the heading.
        parts: shown one after the other: tables, figures, sentences.
        notes: what a reader has to know, in sentences.
    """

    id: str
    name: str
    parts: tuple[Sheet | Picture | str, ...]
    notes: tuple[str, ...] = ()


def link(path: Path, out: Path) -> Link:
    """To a file or a folder, as seen from a page in ``out``."""
    return Link(str(path), quote(os.path.relpath(path.absolute(), out.absolute())))


def picture(figure: Figure, folder: Path, stem: str, title: str, out: Path) -> Picture:
    """Save a figure in a folder as PNG and PDF, and put it into a page in ``out``."""
    png, pdf = figures.save(figure, folder / stem)
    return Picture(stem, title, base64.b64encode(_small(png.read_bytes())).decode(), link(pdf, out))


def _small(png: bytes) -> bytes:
    """The same picture in 256 colours, which these figures do not exceed by much."""
    buffer = io.BytesIO()
    image = Image.open(io.BytesIO(png)).convert("RGB")
    image.quantize(256, dither=Image.Dither.NONE).save(buffer, "png", optimize=True)
    return buffer.getvalue()


def render(
    template: str,
    *,
    heading: str,
    name: str,
    sections: Sequence[Any],
    command: str,
    date: str,
    closing: str = "",
    **more: Any,
) -> str:
    """A page as HTML; all text is escaped.

    Args:
        template: a file of this package that extends ``page.html.jinja``, such as ``sections.html.jinja``, which shows
            any :class:`Section` below ``about``, a sentence.
        heading, name: of the page, and of what it is on.
        sections: what it shows; each has an ``id`` and a ``name``.
        command, date: how and when it was made.
        closing: its last sentence.
        more: for the template.
    """
    environment = Environment(
        loader=PackageLoader("exor", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    common = {"heading": heading, "name": name, "sections": sections, "command": command, "date": date}
    return environment.get_template(template).render(**common, closing=closing, versions=versions(), **more)


def csv(table: pd.DataFrame) -> str:
    """A table as CSV.

    A text that a spreadsheet would take for a formula, because it begins with ``=``, ``+``, ``-`` or ``@``, has an
    apostrophe before it.
    """
    table = table.copy()
    words = table.select_dtypes(exclude=["number", "bool"]).columns
    table[words] = table[words].map(lambda v: f"'{v}" if isinstance(v, str) and v[:1] in "=+-@\t\r" and v else v)
    return table.to_csv(index=False, lineterminator="\n")
