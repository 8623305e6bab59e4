"""WordNet numbers of ImageNet's classes, as far as installed libraries know them."""

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

__all__ = ["imagenet_names", "is_wnid"]

_WNID = re.compile(r"n\d{8}")


def is_wnid(name: str) -> bool:
    """Say whether a name is a WordNet number.

    Examples
    --------
    >>> is_wnid("n01514668"), is_wnid("rooster")
    (True, False)
    """
    return _WNID.fullmatch(name) is not None


@cache
def imagenet_names() -> dict[str, list[str]]:
    """Return the numbers of each ImageNet class by CLIP's name for it.

    The numbers come from timm and the names, in the same order, from open_clip; without both
    there is no table, and a synonyms file has to say what the numbers mean. Two pairs of classes
    have the same name in CLIP's list: such a name has two numbers.
    """
    timm = find_spec("timm")
    if timm is None or timm.origin is None or find_spec("open_clip") is None:
        return {}
    try:
        numbers = Path(timm.origin).with_name("data") / "_info" / "imagenet_synsets.txt"
        wnids = numbers.read_text("utf-8").split()
        from open_clip import IMAGENET_CLASSNAMES
    except (OSError, ImportError):
        return {}
    if len(wnids) != len(IMAGENET_CLASSNAMES) or not all(map(is_wnid, wnids)):
        return {}
    found: dict[str, list[str]] = {}
    for wnid, name in zip(wnids, IMAGENET_CLASSNAMES, strict=True):
        found.setdefault(name, []).append(wnid)
    return found
