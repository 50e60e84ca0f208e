"""The same question asked of real models: which of its two roles does a tied embedding matrix resemble?

Needs the extra ``[pretrained]``. Importing this package is cheap.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

from exor import InputError

Watch = Callable[[int, int], None]
"""Told how much of how much is done, now and then; the second is 0 where nobody knows."""


def unwatched(done: int, total: int) -> None:
    """A :data:`Watch` that tells nobody."""


def require(*packages: str) -> None:
    """Refuse to go on without some of the extra's packages.

    Raises:
        InputError: names those that are not installed, and what installs them.
    """
    if missing := [name for name in packages if find_spec(name) is None]:
        raise InputError(
            f"{', '.join(missing)}: not installed; the extra [pretrained] brings it: pip install -e '.[pretrained]'"
        )
