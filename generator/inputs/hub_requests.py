"""Questions to the model hub: with a deadline, and each failure as one line that says what to do.

A token comes from the environment (HF_TOKEN, or what `hf auth login` stored), is read by huggingface_hub alone, and is never
kept here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, Queue
from typing import TypeVar

from generator.errors import SourceError
from generator.inputs.hub_connection import explain_no_connection

HUB_SECONDS = 20
"""How long the hub may take to answer one question, or to hand over small files."""
THREAD = "perfgen-hub"
BUSY = (408, 429, 500, 502, 503, 504)
"""statuses that say nothing of what was asked"""
UNREADABLE = (TypeError, LookupError, AttributeError, RecursionError)
"""What the library raises for an answer that is JSON and none of a hub: a proxy's page, a field of another type"""
KINDS = {"model": "", "dataset": "datasets/"}
"""repo_type of the hub, and how the address of such a page begins"""
Answer = TypeVar("Answer")


class HubUnreachable(SourceError):
    """The hub said nothing of what was asked: no connection, no time, too many requests, a fault of its own."""


class HubDenied(SourceError):
    """The hub has what was asked and does not hand it over: it is gated."""


def ask_hub(name: str, kind: str, ask: Callable[[], Answer], seconds: float | None = None) -> Answer:
    """What ``ask`` returns, within ``seconds`` (``HUB_SECONDS``). Raises ``SourceError``; a missing file stays
    ``EntryNotFoundError``."""
    from huggingface_hub import constants
    from huggingface_hub.errors import EntryNotFoundError, GatedRepoError, LocalEntryNotFoundError

    if reason := explain_no_connection(constants.ENDPOINT):
        raise HubUnreachable(*explain_unreachable(name, reason))
    answers: Queue[Answer] = Queue()
    errors: Queue[Exception] = Queue()
    done = threading.Event()

    def answer() -> None:
        try:
            answers.put(ask())
        except Exception as error:  # handed to the asking thread, which knows which of them are the hub's
            errors.put(error)
        done.set()

    # a thread, for the library has no deadline of its own: it tries six times and waits longer each time
    threading.Thread(target=answer, name=THREAD, daemon=True).start()
    limit = HUB_SECONDS if seconds is None else seconds
    if not done.wait(limit):
        hint = "try again, or give a folder or file; --offline does not ask"
        raise HubUnreachable(f"{name}: the hub did not answer in {limit:g} s", hint)
    try:
        return answers.get_nowait()
    except Empty:
        error = errors.get_nowait()
    if isinstance(error, EntryNotFoundError) and not isinstance(error, LocalEntryNotFoundError):
        raise error
    unreachable = is_connection_error(error) and (status_of(error) is None or status_of(error) in BUSY)
    kind_of_error = HubUnreachable if unreachable else HubDenied if isinstance(error, GatedRepoError) else SourceError
    raise kind_of_error(*explain_failure(name, kind, error)) from error


def explain_failure(name: str, kind: str, error: Exception) -> tuple[str, str]:
    """What went wrong, and what to do. Raises ``error`` itself where it is not the hub's."""
    from huggingface_hub import constants
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

    page = f"{constants.ENDPOINT}/{KINDS[kind]}{name}"
    what = "data set" if kind == "dataset" else "model"
    if isinstance(error, GatedRepoError):
        if error.response.status_code == 401:
            return f"{name} is gated, and no token was given", f"ask for access at {page}, then set HF_TOKEN"
        return f"{name} is gated, and your token has no access to it", f"ask for access at {page}"
    if isinstance(error, RepositoryNotFoundError):
        return f"the hub has no {what} {name}, or hides it", "check the name; a private one needs a token in HF_TOKEN"
    if isinstance(error, RevisionNotFoundError):
        return f"{name} has no such version: {summarize(error)}", f"{page} lists what there is"
    if isinstance(error, HfHubHTTPError):
        return explain_status(name, error)
    if is_connection_error(error):
        return explain_unreachable(name, summarize(error))
    if isinstance(error, UNREADABLE):
        what = f"{type(error).__name__}: {summarize(error)}"
        return (
            f"{name}: what {constants.ENDPOINT} answers is no answer of a hub ({what})",
            "check HF_ENDPOINT and proxies",
        )
    raise error


def explain_unreachable(name: str, reason: str) -> tuple[str, str]:
    from huggingface_hub import constants

    message = f"{name}: the hub at {constants.ENDPOINT} cannot be reached ({reason})"
    return message, "check the network, or give a folder or file; --offline does not ask"


def status_of(error: Exception) -> int | None:
    """The HTTP status of a hub's answer."""
    from huggingface_hub.errors import HfHubHTTPError

    return error.response.status_code if isinstance(error, HfHubHTTPError) else None


def explain_status(name: str, error) -> tuple[str, str]:
    """A plain HTTP status: too many requests, a wrong token, a fault of the hub."""
    from huggingface_hub.utils import parse_ratelimit_headers

    status = error.response.status_code
    if status == 429:
        limit = parse_ratelimit_headers(error.response.headers)
        wait = f"wait {limit.reset_in_seconds} s" if limit else "wait some minutes"
        return f"{name}: the hub takes no more requests from here now (429)", f"{wait}; with HF_TOKEN it takes more"
    if status in (401, 403):
        return f"{name}: the hub refuses your token ({status})", "check HF_TOKEN, or `hf auth whoami`"
    return f"{name}: the hub answers {status}: {summarize(error)}", "try again later, or give a folder or file"


def is_connection_error(error: Exception) -> bool:
    """No connection, a connection that broke, or an answer that is no hub's; the library's clients are not OSErrors."""
    from huggingface_hub.errors import HTTPError

    return isinstance(error, (OSError, ValueError, HTTPError))


def summarize(error: Exception) -> str:
    """The first line of a message of several."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
