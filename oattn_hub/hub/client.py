"""The one way to the Hub: which token goes where, and what its refusals mean in plain words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from oattn_hub import __version__
from oattn_hub.errors import (
    HubAuthError,
    HubConflict,
    HubError,
    HubNotFound,
    HubUnavailable,
    InvalidInput,
    OattnError,
)
from oattn_hub.models.identify import is_hub_id
from oattn_hub.tokens import is_local, token_for

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

_ADVICE = "Check the network and HF_ENDPOINT, then run the same command again; nothing was lost."
MAX_PAUSE_SECONDS = 30  # asked to wait longer, we say so instead of waiting in silence
FIRST_ANSWER_SECONDS = 10.0  # how long the first request may take, before the network counts as down


def open_api(token: str | bool | None = None, endpoint: str | None = None) -> HfApi:
    """The client, which knows who we are; a real token is never sent to a local Hub unless it is passed by name."""
    from huggingface_hub import HfApi, constants

    address = endpoint or constants.ENDPOINT
    return HfApi(
        endpoint=address, token=token_for(address, token), library_name="oattn_hub", library_version=__version__
    )


def check_repo_id(repo_id: str) -> str:
    """Refuse what cannot be the name of a repo before anything is asked of the Hub."""
    if not is_hub_id(repo_id):
        raise InvalidInput(f"{repo_id!r} is not a repo id. A repo id looks like 'me/bert-heads'.")
    return repo_id


@contextmanager
def explained(doing: str, repo_id: str, api: HfApi) -> Iterator[None]:
    """Turn whatever the client raises into one of our errors, with what to do about it."""
    try:
        yield
    except OattnError:
        raise
    except Exception as error:
        explanation = explain(error, doing, repo_id, api)
        if explanation is None:
            raise
        raise explanation from error


def explain(error: BaseException, doing: str, repo_id: str, api: HfApi) -> OattnError | None:
    """What an exception of the client means; ``None`` if it is not the client's."""
    from huggingface_hub import errors

    failed = f"Could not {doing} {repo_id}"
    url = f"{api.endpoint}/{repo_id}"
    if isinstance(error, errors.HFValidationError):
        return InvalidInput(f"{failed}: {error} A repo id looks like 'me/bert-heads'.")
    if isinstance(error, errors.OfflineModeIsEnabled):
        return HubUnavailable(f"{failed}: HF_HUB_OFFLINE is set. Unset it, or use what is in the cache.")
    if isinstance(error, errors.GatedRepoError):
        return HubAuthError(
            f"{failed}: it is gated. Ask for access at {url}, log in with `hf auth login`, then run again."
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return HubNotFound(f"{failed}: that revision is not there (any more). See {url}/tree/main for what is.")
    if isinstance(error, errors.RepositoryNotFoundError):
        return HubNotFound(f"{failed}: no such repo at {api.endpoint}, or it is private. {_who(api)}")
    if isinstance(error, errors.LocalEntryNotFoundError):
        return HubUnavailable(f"{failed}: it is not in the cache and {api.endpoint} does not answer. {_ADVICE}")
    if isinstance(error, errors.EntryNotFoundError):
        return HubNotFound(f"{failed}: a file it needs is not there. See {url}/tree/main for what is.")
    if isinstance(error, errors.HfHubHTTPError):
        return _explain_status(error, failed, api)
    if isinstance(error, ValueError) and "README.md" in str(error):
        reason = " ".join(str(error).split())
        return HubError(f"{failed}: the Hub refuses the card's metadata ({reason}). Mend README.md and run again.")
    if isinstance(error, (RuntimeError, ValueError)) and error.__cause__ is not None:  # an upload, finally refused
        return explain(error.__cause__, doing, repo_id, api)
    if _is_transport_error(error):
        return HubUnavailable(f"{failed}: no connection to {api.endpoint}. {_ADVICE}")
    if isinstance(error, ConnectionError):  # what a refused or broken Xet upload comes as
        hint = (
            "This local Hub takes large files by LFS: set HF_HUB_DISABLE_XET=1." if is_local(api.endpoint) else _ADVICE
        )
        return HubUnavailable(f"{failed}: the upload of large files to {api.endpoint} broke off. {hint}")
    return None


def _explain_status(error: HfHubHTTPError, failed: str, api: HfApi) -> HubError:
    status = error.response.status_code
    answer = " ".join((error.server_message or f"HTTP {status}").split())
    if status == 401:
        return HubAuthError(f"{failed}: {answer} {_who(api)}")
    if status in (402, 413, 507) or "quota" in answer.lower() or "storage limit" in answer.lower():
        return HubError(f"{failed}: the account's storage is full ({answer}). Delete something or name another owner.")
    if status == 403:
        return HubAuthError(f"{failed}: {answer}. The token may not write there; make one with the write right.")
    if status in (409, 412):
        return HubConflict(f"{failed}: somebody else changed it meanwhile ({answer}). Nothing was written; run again.")
    if status == 429:
        wait = error.response.headers.get("Retry-After")
        return HubUnavailable(
            f"{failed}: too many requests. Wait {f'{wait} s' if wait else 'some minutes'}, run again."
        )
    if status >= 500:
        return HubUnavailable(f"{failed}: the Hub fails (HTTP {status}: {answer}). Run the same command again later.")
    return HubError(f"{failed}: the Hub answered HTTP {status}: {answer}")


def is_passing(error: BaseException) -> bool:
    """Whether the same request may well succeed in a moment."""
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    if isinstance(error, HfHubHTTPError):
        wait = error.response.headers.get("Retry-After", "")
        patient = not wait.isdecimal() or int(wait) <= MAX_PAUSE_SECONDS
        return patient and error.response.status_code in (408, 429, 500, 502, 503, 504)
    if isinstance(error, (RuntimeError, ValueError)) and error.__cause__ is not None:
        return is_passing(error.__cause__)
    return (isinstance(error, ConnectionError) and not isinstance(error, OfflineModeIsEnabled)) or _is_transport_error(
        error
    )


def is_silence(error: BaseException) -> bool:
    """Whether nobody answered within the time limit."""
    return any(parent.__name__ == "TimeoutException" for parent in type(error).__mro__)


def _is_transport_error(error: BaseException) -> bool:
    # By name: huggingface_hub 1 raises httpx's class, 2 httpx2's.
    return any(parent.__name__ == "TransportError" for parent in type(error).__mro__)


def _who(api: HfApi) -> str:
    if is_local(api.endpoint):
        return "This is a local Hub: set HF_TOKEN to the token that `oattn hub serve` printed."
    if api.token is None:
        return "Log in with `hf auth login`, or pass token=."
    return "Check the name, and that the token is valid and may see it."
