"""How models are named: a folder, a file, ``org/name`` or ``org/name@revision``, and patterns of revisions."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

from exor import InputError
from exor.pretrained.checkpoints import Checkpoint, open_checkpoint
from exor.pretrained.hub_errors import told


def open_source(source: str, *, input_key: str | None = None, output_key: str | None = None) -> Checkpoint:
    """A model by its name; what exists on this machine goes before the Hub.

    Raises:
        InputError: as :func:`exor.pretrained.checkpoints.open_checkpoint`.
    """
    name, at, revision = source.partition("@")
    keys = {"input_key": input_key, "output_key": output_key}
    if not at or Path(source).expanduser().exists():
        return open_checkpoint(source, **keys)
    if not (name and revision):
        raise InputError(f"{source}: incomplete; org/name@revision is accepted")
    return open_checkpoint(name, revision=revision, **keys)


def expand(source: str) -> list[str]:
    """``org/name@step*`` as all branches and tags of that pattern; anything else as it is.

    Raises:
        InputError: no such revision; the Hub cannot be asked.
    """
    name, _, pattern = source.partition("@")
    if not any(c in pattern for c in "*?[") or Path(source).expanduser().exists():
        return [source]
    from huggingface_hub import HfApi

    with told(name, "the list of its revisions"):
        refs = HfApi().list_repo_refs(name)
    known = dict.fromkeys(ref.name for ref in (*refs.branches, *refs.tags))
    if not (found := [f"{name}@{revision}" for revision in known if fnmatchcase(revision, pattern)]):
        some = ", ".join(list(known)[:5])
        raise InputError(f"{source}: no revision of that pattern; there are {some}{', …' * (len(known) > 5)}")
    return found
