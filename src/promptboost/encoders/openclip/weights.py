"""Where the weights of open_clip models are: on this machine, at a hub that answers, or out of reach."""

import builtins
import json
import os
import ssl
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from promptboost.errors import EncoderError

#: Seconds that a hub has to answer in.
PATIENCE = 2.0
#: What a hub keeps the weights of a model in, as open_clip names them.
_WEIGHTS = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")
# What the lists of open_clip do without, and what takes long to load.
_HEAVY = ("torch", "safetensors", "huggingface_hub")


def check_reach(name: str) -> None:
    """Raise within seconds if a model is neither on this machine nor at a hub that answers.

    The hub's own client would try for a minute or two. Nor is open_clip loaded, which takes seconds itself.

    Parameters
    ----------
    name : str
        ``ViT-B-32/openai`` or ``hf-hub:org/name``; a file on disk is in reach.
    """
    if "@" in name or is_here(name) or status_of_hub() is not None:
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
    address = f"{hub()}/{path}"
    return (_asked_ahead.pop(address, None) or _Question(address)).answer()


def ask_ahead(names: Iterable[str]) -> None:
    """Begin to ask the hub if one of some encoders has to come from there: more can be loaded meanwhile."""
    address = f"{hub()}/"
    if not is_offline() and any(_may_be_asked_for(name) for name in names):
        _asked_ahead[address] = _Question(address)


def _may_be_asked_for(name: str) -> bool:
    return "@" not in name and "/" in name and not is_here(name)


class _Question:
    """A question for the header of a page, and the time there is for an answer."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._status: int | None = None
        self._end = time.monotonic() + PATIENCE
        # Looking up an address knows no limit of its own.
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def answer(self) -> int | None:
        """Return the HTTP status, or None if none comes in time."""
        self._thread.join(max(self._end - time.monotonic(), 0))
        return self._status

    def _ask(self) -> None:
        try:
            request = urllib.request.Request(self._address, method="HEAD")
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                self._status = int(answer.status)
        except urllib.error.HTTPError as error:
            self._status = error.code
        except urllib.error.URLError as error:
            if isinstance(error.reason, ssl.SSLError):  # its client may know its certificate
                self._status = 495
        except (OSError, ValueError):
            return


_asked_ahead: dict[str, _Question] = {}


def is_here(name: str) -> bool:
    """Tell whether weights and tokenizer of an open_clip model are in the caches of this machine."""
    try:
        known = catalogue()
    except ImportError:
        return True  # nothing can be loaded, and the message of loading says what is missing
    if name.startswith("hf-hub:"):
        return in_hub_cache(name.removeprefix("hf-hub:"))
    if "@" in name:
        architecture = name.partition("@")[0]
        return _tokenizer_is_here(known.get_model_config(architecture))
    architecture, _, tag = name.rpartition("/")
    if (architecture, tag) not in known.list_pretrained():
        return True  # there is no such model, and the message of loading says so
    published = known.get_pretrained_cfg(architecture, tag)
    url, repository = published.get("url", ""), published.get("hf_hub", "").rstrip("/")
    here = bool(repository) and in_hub_cache("/".join(repository.split("/")[:2]))
    here = here or (bool(published.get("file")) and Path(published["file"]).is_file())
    here = here or (bool(url) and (_other_cache() / url.rsplit("/", 1)[-1]).is_file())
    return here and _tokenizer_is_here(known.get_model_config(architecture))


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


def catalogue() -> Any:
    """Return what knows the models of open_clip: it, or its lists alone where it is not loaded yet.

    Raises ImportError if it is not installed.
    """
    if "open_clip" not in sys.modules:
        try:
            return _lists()
        except Exception:  # a version that is built otherwise
            pass
    import open_clip  # who has loaded it may have told it of models of their own

    return open_clip


@cache
def _lists() -> SimpleNamespace:
    """Read the lists of open_clip without torch, which takes seconds to load."""
    spec = find_spec("open_clip")
    if spec is None or spec.origin is None:
        raise ImportError("open_clip")
    folder = Path(spec.origin).parent
    published = _alone(folder / "pretrained.py")
    if ("ViT-B-32", "openai") not in published.list_pretrained():
        raise ImportError("open_clip's list of weights")

    def get_model_config(architecture: str) -> dict[str, Any] | None:
        file = folder / "model_configs" / f"{architecture}.json"
        return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None

    return SimpleNamespace(
        list_pretrained=published.list_pretrained,
        get_pretrained_cfg=published.get_pretrained_cfg,
        get_model_config=get_model_config,
    )


def _alone(file: Path) -> ModuleType:
    """Load a file of open_clip and those beside it that it needs, but neither its package nor torch."""

    def load(name: str, *given: Any, level: int = 0, **named: Any) -> Any:
        level = given[3] if len(given) > 3 else level
        if level == 1 and name:
            return _alone(file.parent / f"{name}.py")
        if level or name.partition(".")[0] in _HEAVY:
            raise ImportError(name)
        return builtins.__import__(name, *given, **named)

    spec = spec_from_file_location(f"_open_clip_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise ImportError(str(file))
    module = module_from_spec(spec)
    vars(module)["__builtins__"] = {**vars(builtins), "__import__": load}
    spec.loader.exec_module(module)
    return module


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
