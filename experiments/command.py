"""What all commands share: how they end, and how options are made from dataclasses."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import Field, field
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Group, Parameter, Token

from exor import InputError


def run(app: App, arguments: list[str] | None = None) -> int:
    """Run a command and return its exit status: 0 done, 1 failed, 2 bad input, 128 + n stopped by signal n."""
    try:
        return app(arguments, exit_on_error=False, print_error=False, result_action="return_value") or 0
    except (InputError, CycloptsError) as error:
        message = " ".join(str(error).split())
    except OSError as error:  # a full disk, say
        if error.errno is None:
            raise
        message = f"{error.filename or 'output'}: {error.strerror}"
    except KeyboardInterrupt:
        return 130
    print(f"error: {message}", file=sys.stderr)
    return 2


def whole(_: Any, tokens: Sequence[Token]) -> int:
    """A whole number, and not one that rounding would make."""
    text = tokens[0].value
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number") from None


def optional(name: str, kind: Any, source: Field, group: Group) -> tuple[str, Any, Any]:
    """An option for a dataclass field that is None unless it is given; its help tells the field's default."""
    default = source.default
    told = " ".join(f"{v:g}" for v in default) if isinstance(default, tuple) else default
    text = source.metadata["help"] + (f" [default: {told}]" if default is not None else "")
    note = Parameter(
        help=text,
        group=group,
        consume_multiple=isinstance(default, tuple),
        negative_iterable="",
        converter=whole if kind in (int, int | None) else None,
    )
    return name, Annotated[kind | None, note], field(default=None)


def main(app: App) -> Callable[[], None]:
    """An entry point that exits with the command's status."""
    return lambda: sys.exit(run(app))
