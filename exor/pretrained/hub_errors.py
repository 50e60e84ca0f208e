"""What went wrong with the Hub, in one line, and what helps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches

from exor import InputError


class Unreachable(InputError):
    """There is no way to the Hub, or it was not to be asked."""


@contextmanager
def told(name: str, what: str, revision: str | None = None) -> Iterator[None]:
    """Turn what huggingface-hub and the network below it raise into one line.

    Args:
        name: the model, as shown.
        what: was to be fetched.
        revision: that was asked for, if it is not known to exist.

    Raises:
        Unreachable: no network, or offline.
        InputError: everything else.
    """
    from huggingface_hub import constants
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    network: type[Exception] = HfHubHTTPError.__bases__[0]  # the HTTP library's error, whichever library it is
    try:
        yield
    except InputError:
        raise
    except (network, OSError, ConnectionError, HFValidationError) as error:
        raise _explained(error, name, what, revision, constants.ENDPOINT, network) from error


def _explained(
    error: BaseException, name: str, what: str, revision: str | None, endpoint: str, network: type[Exception]
) -> InputError:
    from huggingface_hub import errors

    repository = name.split("@")[0]
    chain = list(_chain(error))

    def any_of(*kinds: type) -> BaseException | None:
        return next((e for e in chain if isinstance(e, kinds)), None)

    if any_of(errors.GatedRepoError):
        return InputError(
            f"{name}: gated; ask for access at {endpoint}/{repository}, then set HF_TOKEN or run `hf auth login`"
        )
    if any_of(errors.RevisionNotFoundError):
        return InputError(f"{repository}: has no revision {revision}{_revisions(repository, revision or '')}")
    if any_of(errors.RepositoryNotFoundError, errors.HFValidationError):
        return InputError(
            f"{repository}: no such model at {endpoint}, and no such file or folder here{_models(repository)}; "
            "a private model needs HF_TOKEN"
        )
    if any_of(errors.OfflineModeIsEnabled):
        return _unreachable(name, what, endpoint, "HF_HUB_OFFLINE is set; unset it")
    if (answer := any_of(errors.HfHubHTTPError)) is not None:
        response = getattr(answer, "response", None)
        status = getattr(response, "status_code", "an error")
        if status == 429:
            return InputError(f"{name}: {endpoint} refuses more requests for now; try again later, or set HF_TOKEN")
        hint = "HF_TOKEN gives no access" if status in (401, 403) else "try again later"
        return InputError(f"{name}: {what} cannot be fetched from {endpoint} (it answered {status}); {hint}")
    if any_of(network, ConnectionError, TimeoutError, errors.LocalEntryNotFoundError):
        why = _line(next((e for e in chain if isinstance(e, network | ConnectionError)), error))
        hint = f"{why}; is there a network? HF_ENDPOINT names another server, HTTPS_PROXY a proxy"
        return _unreachable(name, what, endpoint, hint)
    return InputError(f"{name}: {what} cannot be fetched ({_line(error)})")


def _unreachable(name: str, what: str, endpoint: str, why: str) -> Unreachable:
    from huggingface_hub import constants

    from exor.program import cache_folder

    return Unreachable(
        f"{name}: {what} cannot be fetched from {endpoint} ({why}); only the embedding matrices would be fetched, "
        f"to {cache_folder() / 'pretrained'}, and a copy in {constants.HF_HUB_CACHE} would do as well"
    )


def _revisions(repository: str, asked: str) -> str:
    """The revisions there are, the nearest ones if there are many."""
    from huggingface_hub import HfApi

    try:
        refs = HfApi().list_repo_refs(repository)
    except Exception:  # the suggestion is not worth an error of its own
        return ""
    known = [ref.name for ref in (*refs.branches, *refs.tags)]
    near = known if len(known) <= 5 else get_close_matches(asked, known, 5, 0.3) or known[:5]
    return f"; {'there are' if near == known else 'the nearest are'} {', '.join(near)}" if near else ""


def _models(repository: str) -> str:
    """Models with a similar name."""
    from huggingface_hub import HfApi

    try:
        found = [model.id for model in HfApi().list_models(search=repository.split("/")[-1], limit=3)]
    except Exception:  # the suggestion is not worth an error of its own
        return ""
    return f"; there is {', '.join(found)}" if found else ""


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:120]
