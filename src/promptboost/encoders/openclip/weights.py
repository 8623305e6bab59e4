"""Whether the weights of open_clip models are on this machine or in reach."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from promptboost.encoders.hub_files import check_hub, in_hub_cache

#: File names of weights in a repository of open_clip.
WEIGHTS = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")


def check_reach(name: str) -> None:
    """Raise within seconds if a model is neither on this machine nor at a hub that answers."""
    if "@" not in name and not is_here(name):
        check_hub(name, "Get the file elsewhere and type ARCHITECTURE@FILE")


def is_here(name: str) -> bool:
    """Return whether weights and tokenizer of an open_clip model are on this machine."""
    if name.startswith("hf-hub:") and find_spec("open_clip"):
        return in_hub_cache(name.removeprefix("hf-hub:"))
    try:
        import open_clip
    except ImportError:
        return True  # loading raises an error with what is missing
    if "@" in name:
        architecture = name.partition("@")[0]
        return _tokenizer_is_here(open_clip.get_model_config(architecture))
    architecture, _, tag = name.rpartition("/")
    if (architecture, tag) not in open_clip.list_pretrained():
        return True  # there is no such model: loading raises an error
    published = open_clip.get_pretrained_cfg(architecture, tag)
    url, repository = published.get("url", ""), published.get("hf_hub", "").rstrip("/")
    here = bool(repository) and in_hub_cache("/".join(repository.split("/")[:2]))
    here = here or (bool(published.get("file")) and Path(published["file"]).is_file())
    # Where open_clip keeps what is not from the hub.
    file = Path("~/.cache/clip").expanduser() / url.rsplit("/", 1)[-1]
    here = here or (bool(url) and file.is_file())
    return here and _tokenizer_is_here(open_clip.get_model_config(architecture))


def architectures() -> set[str]:
    """Return open_clip's own architectures, without importing it, which takes seconds."""
    spec = find_spec("open_clip")
    folder = Path(spec.origin if spec and spec.origin else "").parent
    return {file.stem for file in folder.glob("model_configs/*.json")}


def _tokenizer_is_here(settings: dict[str, Any] | None) -> bool:
    repository = ((settings or {}).get("text_cfg") or {}).get("hf_tokenizer_name")
    return not repository or in_hub_cache(repository)
