"""Files of model hubs: in the cache of this machine, at a hub that answers, or out of reach."""

import os
import re
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path

from promptboost.encoders.runtime import first_line, require_modules
from promptboost.errors import EncoderError

#: Seconds to wait for the hub.
PATIENCE = 2.0


def model_folder(name: str, source: str, patterns: Sequence[str]) -> Path:
    """Return the folder of a model: `source` on disk, or the files of a repository on the hub.

    Files that are not in the hub's cache are downloaded. `name` is for messages; the last of the `patterns`
    of files stands for the weights.
    """
    if (folder := Path(source).expanduser()).is_dir():
        return folder
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", source):
        raise EncoderError(f"{name}: there is no folder {source}, nor is it organization/model")
    require_modules(["huggingface_hub"], "hub", "models of a hub")
    from huggingface_hub import snapshot_download

    if not (cached := in_hub_cache(source, tuple(patterns[-1:]))):
        check_hub(name, "Get its files elsewhere and type their folder")
    try:
        with from_cache_alone() if cached else nullcontext():
            files = list(patterns)
            return Path(snapshot_download(source, allow_patterns=files, endpoint=hub()))
    except (OSError, ValueError) as error:  # what the hub's client raises is derived from these
        raise EncoderError(f"Cannot load {name}: {first_line(error)}") from error


def is_model_here(source: str) -> bool:
    """Return whether a model is a folder on disk or in the hub's cache."""
    return Path(source).expanduser().is_dir() or in_hub_cache(source)


def check_hub(name: str, advice: str) -> None:
    """Raise within seconds if the hub does not answer; its client would try for a minute or two."""
    if status_of_hub() is not None:
        return
    silent = f"{hub()} does not answer within {PATIENCE:g} s"
    why = "HF_HUB_OFFLINE is set" if is_offline() else silent
    raise EncoderError(
        f"Cannot load {name}: its weights are not on this machine, and {why}. {advice}, or use "
        "conse:lite0, which needs no hub"
    )


def hub() -> str:
    """Return the address of the model hub, without a slash at its end."""
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def is_offline() -> bool:
    """Return whether the user forbids network access."""
    forbidden = (os.environ.get(name, "") for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))
    return any(value.upper() in ("1", "ON", "YES", "TRUE") for value in forbidden)


def status_of_hub(path: str = "") -> int | None:
    """Return the HTTP status of a page of the hub; None if it does not answer, or offline."""
    if is_offline():
        return None
    statuses: list[int | None] = []
    # In a thread, because looking up an address has no time limit.
    thread = threading.Thread(
        target=lambda: statuses.append(_status(f"{hub()}/{path}")), daemon=True
    )
    thread.start()
    thread.join(PATIENCE)
    return statuses[0] if statuses else None


def _status(address: str) -> int | None:
    """Return the HTTP status of an address, or None if it does not answer."""
    try:
        request = urllib.request.Request(address, method="HEAD")
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except urllib.error.URLError as error:
        # The hub's client may trust its certificate.
        return 495 if isinstance(error.reason, ssl.SSLError) else None
    except (OSError, ValueError):
        return None


def in_hub_cache(repository: str, files: tuple[str, ...] = ("*",)) -> bool:
    """Return whether one of some files of a repository is in the hub's cache."""
    if find_spec("huggingface_hub") is None:
        return False
    from huggingface_hub.constants import HF_HUB_CACHE

    snapshots = Path(HF_HUB_CACHE, f"models--{repository.replace('/', '--')}", "snapshots")
    return any(file.is_file() for name in files for file in snapshots.glob(f"*/{name}"))


@contextmanager
def from_cache_alone() -> Iterator[None]:
    """Let the hub's client use its cache without checking for newer files."""
    from huggingface_hub import constants

    was_offline = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = was_offline
