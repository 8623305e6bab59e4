"""Where the weights of open_clip models are: on this machine, at a hub that answers, or out of reach."""

import os
import ssl
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from promptboost.errors import EncoderError

#: Seconds that a hub has to answer in.
PATIENCE = 2.0
#: What a hub keeps the weights of a model in, as open_clip names them.
_WEIGHTS = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")


def check_reach(name: str) -> None:
    """Raise within seconds if a model is neither on this machine nor at a hub that answers.

    The hub's own client would try for a minute or two. Where no weights are kept at all, this is known
    without loading open_clip, which takes seconds itself.

    Parameters
    ----------
    name : str
        ``ViT-B-32/openai`` or ``hf-hub:org/name``; a file on disk is in reach.
    """
    # Who has loaded it may have told it of models of their own.
    looks = _keeps_weights() or "open_clip" in sys.modules
    if "@" in name or (looks and is_here(name)) or status_of_hub() is not None:
        return
    why = (
        "HF_HUB_OFFLINE is set"
        if is_offline()
        else f"{hub()} does not answer within {PATIENCE:g} s"
    )
    raise EncoderError(
        f"Cannot load {name}: its weights are not on this machine, and {why}. Get the file elsewhere and "
        "type ARCHITECTURE@FILE, or use conse:lite0, which needs no hub"
    )


def hub() -> str:
    """Return the address of the model hub, without a slash at its end."""
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def is_offline() -> bool:
    """Tell whether the user forbids to contact the hub."""
    forbidden = (os.environ.get(name, "") for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))
    return any(value.upper() in ("1", "ON", "YES", "TRUE") for value in forbidden)


def status_of_hub(path: str = "") -> int | None:
    """Ask the hub for the header of a page, once; return the HTTP status, or None without an answer.

    Nothing is asked where the user forbids it.
    """
    if is_offline():
        return None
    found: list[int] = []
    asker = threading.Thread(target=_ask, args=(f"{hub()}/{path}", found), daemon=True)
    asker.start()
    asker.join(PATIENCE)  # looking up an address knows no limit of its own
    return found[0] if found else None


def _ask(address: str, found: list[int]) -> None:
    request = urllib.request.Request(address, method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            found.append(int(answer.status))
    except urllib.error.HTTPError as error:
        found.append(error.code)
    except urllib.error.URLError as error:
        if isinstance(
            error.reason, ssl.SSLError
        ):  # it is there; its client may know its certificate
            found.append(495)
    except (OSError, ValueError):
        return


def is_here(name: str) -> bool:
    """Tell whether weights and tokenizer of an open_clip model are in the caches of this machine."""
    try:
        import open_clip
    except ImportError:
        return True  # nothing can be loaded, and the message of loading says what is missing
    if name.startswith("hf-hub:"):
        return in_hub_cache(name.removeprefix("hf-hub:"))
    if "@" in name:
        architecture = name.partition("@")[0]
        return _tokenizer_is_here(open_clip.get_model_config(architecture))
    architecture, _, tag = name.rpartition("/")
    if (architecture, tag) not in open_clip.list_pretrained():
        return True  # there is no such model, and the message of loading says so
    published = open_clip.get_pretrained_cfg(architecture, tag)
    url, repository = published.get("url", ""), published.get("hf_hub", "").rstrip("/")
    here = bool(repository) and in_hub_cache("/".join(repository.split("/")[:2]))
    here = here or (bool(published.get("file")) and Path(published["file"]).is_file())
    here = here or (bool(url) and (_other_cache() / url.rsplit("/", 1)[-1]).is_file())
    return here and _tokenizer_is_here(open_clip.get_model_config(architecture))


def _tokenizer_is_here(settings: dict[str, Any] | None) -> bool:
    repository = ((settings or {}).get("text_cfg") or {}).get("hf_tokenizer_name")
    return not repository or in_hub_cache(repository)


def in_hub_cache(repository: str, files: tuple[str, ...] = ("*",)) -> bool:
    """Tell whether one of some files of a repository is in the cache of the hub's client."""
    folder = _hub_cache()
    if folder is None:
        return False
    snapshots = folder / f"models--{repository.replace('/', '--')}" / "snapshots"
    return any(file.is_file() for name in files for file in snapshots.glob(f"*/{name}"))


def has_weights(repository: str) -> bool:
    """Tell whether the weights of a repository, as open_clip names them, are in the hub's cache."""
    return in_hub_cache(repository, _WEIGHTS)


def _keeps_weights() -> bool:
    """Tell whether there may be weights in a cache at all."""
    folder = _hub_cache()
    files = () if folder is None else folder.glob("models--*/snapshots/*/*")
    return any(True for _ in files) or any(True for _ in _other_cache().glob("*"))


def _hub_cache() -> Path | None:
    try:
        from huggingface_hub import constants
    except ImportError:
        return None
    return Path(constants.HF_HUB_CACHE)


def _other_cache() -> Path:
    """Return where open_clip keeps what is not from the hub."""
    return Path("~/.cache/clip").expanduser()


@contextmanager
def from_cache_alone() -> Iterator[None]:
    """Let the hub's client take what is in its cache, and ask nobody whether there is something newer."""
    try:
        from huggingface_hub import constants
    except ImportError:
        yield
        return
    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before
