"""What went wrong on the way to the Hub, as a sentence and a remedy. The token is never part of either."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from tinychat.catalog import Catalog, HubSource
from tinychat.errors import DownloadError, TinychatError
from tinychat.hub.cache import hub_cache

NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
NOT_WRITABLE: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
WITHOUT_HUB: Final = "`tinychat run smollm2` needs no Hub: it comes from the package index."


def explained(error: Exception, source: HubSource) -> TinychatError:
    """Return what to tell a person about an exception of huggingface_hub, of its HTTP client or of the disk.

    An exception that is none of these is a mistake of ours and raised again.
    """
    # httpx2 is what huggingface_hub speaks HTTP with; its transport errors reach the caller as they are.
    import httpx2
    from huggingface_hub import constants, errors

    repo, page = source.repo, f"{constants.ENDPOINT}/{source.repo}"
    host = urlsplit(constants.ENDPOINT).netloc
    match error:
        case TinychatError():
            return error
        case errors.OfflineModeIsEnabled():
            return offline(source)
        case errors.LocalEntryNotFoundError() if isinstance(error.__cause__, Exception):
            return explained(error.__cause__, source)
        case errors.GatedRepoError():
            return _gated(repo, page)
        case errors.RepositoryNotFoundError():
            return DownloadError(
                f"The Hub has no model {repo}, or it is private.",
                Catalog.load().suggestion(repo) or "Check the name; a private model needs your token in HF_TOKEN.",
            )
        case errors.RevisionNotFoundError():
            return DownloadError(
                f"{repo} has no revision {source.revision}.", f"{page}/tree/main lists its branches and tags."
            )
        case errors.EntryNotFoundError():
            return DownloadError(f"A file of {repo} is gone from the Hub.", "Run the command again.")
        case errors.HfHubHTTPError():
            return _answered(error.response.status_code, repo, host)
        case errors.FileMetadataError():
            return _not_the_hub(host)
        case httpx2.HTTPError():
            return DownloadError(f"{host} can't be reached: {_reason(error)}.", f"Check the connection. {WITHOUT_HUB}")
        case OSError() if error.errno is not None:
            return of_disk(error, hub_cache(), repo)
        case OSError():  # huggingface_hub's own check of the length
            return DownloadError(
                f"A file of {repo} ended before all of it had come.", "Run the command again; whole files are kept."
            )
        case ValueError():  # an answer that isn't JSON
            return _not_the_hub(host)
    raise error


def offline(source: HubSource) -> DownloadError:
    """Return the sentence for a model that HF_HUB_OFFLINE keeps from being fetched."""
    return DownloadError(
        f"HF_HUB_OFFLINE is set, and {source.repo}@{source.revision} is not (or not wholly) in {hub_cache()}.",
        f"Unset it to download. {WITHOUT_HUB}",
    )


def no_space(what: str, needed: int, free: int, folder: Path, variable: str) -> DownloadError:
    """Return the sentence for a disk that is too full; sizes in bytes."""
    return DownloadError(
        f"{what} needs {needed / 1e6:,.0f} MB, but only {free / 1e6:,.0f} MB are free in {folder}.",
        f"Free {(needed - free) / 1e6 + 1:,.0f} MB, or set {variable} to a folder on another disk.",
    )


def of_disk(error: OSError, folder: Path, what: str) -> DownloadError:
    """Return the sentence for a file that couldn't be written below `folder`."""
    if error.errno in NO_SPACE:
        return DownloadError(f"The disk of {folder} filled up while {what} was being written.", "Free some space.")
    if error.errno in NOT_WRITABLE:
        return DownloadError(f"{error.filename or folder} can't be written: {error.strerror}.", "Check who owns it.")
    return DownloadError(f"{what} couldn't be stored in {folder}: {error.strerror or error}.")


def _gated(repo: str, page: str) -> DownloadError:
    from huggingface_hub import get_token

    if get_token() is None:
        return DownloadError(
            f"{repo} is gated: its owners give it to people who accept their licence.",
            f"Accept it at {page}, make a token at https://huggingface.co/settings/tokens and set HF_TOKEN to it.",
        )
    return DownloadError(
        f"{repo} is gated, and the account of {_token_place()} has not been let in.",
        f"Accept the licence at {page} (some owners answer by hand), or use another account's token.",
    )


def _answered(status: int, repo: str, host: str) -> DownloadError:
    """Return the sentence for an HTTP status that says nothing of the repository itself."""
    if status == 401:
        return DownloadError(
            f"{host} does not accept the token in {_token_place()}.",
            "Make a new one at https://huggingface.co/settings/tokens, or remove it: public models need none.",
        )
    if status == 403:
        return DownloadError(f"The token in {_token_place()} may not read {repo}.", "Give it the right to.")
    if status == 429:
        return DownloadError(f"{host} answers that there were too many requests.", "Wait a few minutes.")
    return DownloadError(f"{host} answered {status} when asked for {repo}.", f"Try again later. {WITHOUT_HUB}")


def _not_the_hub(host: str) -> DownloadError:
    return DownloadError(
        f"Something answered in place of {host}, but not as the Hub does.",
        "Check HF_ENDPOINT, the proxy, and whether this network wants a login in the browser first.",
    )


def _token_place() -> str:
    """Return where the token in use came from, never the token."""
    from huggingface_hub import constants

    return "HF_TOKEN" if os.environ.get("HF_TOKEN") else constants.HF_TOKEN_PATH


def _reason(error: Exception) -> str:
    """Return a transport error in a few words; some have no text of their own."""
    text = " ".join(str(error).split())
    text = "".join(character for character in text if character.isprintable())[:160].rstrip(". ")
    return text or type(error).__name__
