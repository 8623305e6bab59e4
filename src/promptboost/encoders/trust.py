"""Which encoders a file may name: a run of a stranger imports no code and contacts no hub unasked.

What a user types is their own decision. What stands in a file is not: its name is looked at first.
"""

import re

from promptboost.encoders.registry import is_registered
from promptboost.errors import EncoderError, PromptBoostError

_OWN = ("conse", "fake")  # made of installed packages


def check_trusted(name: str, *, allow_download: bool = False) -> None:
    """Check that an encoder named by a file may be loaded without asking.

    It may if promptboost or an installed package makes it without a hub, if its weights are here, or
    if it was used on this machine before, so that the embedding store knows it.

    Parameters
    ----------
    name : str
        As the file has it.
    allow_download : bool, default=False
        Whether weights may come from a model hub. Code is never imported because a file names it.

    Raises
    ------
    EncoderError
        If it may not; the message says what would happen, and how to allow it.

    Examples
    --------
    >>> check_trusted("fake:32-0")
    >>> check_trusted("os:system?command=true")
    Traceback (most recent call last):
    promptboost.errors.EncoderError: the file names the encoder 'os:system?command=true', which is \
code that would be imported and run; if you know it and want that, name it yourself: --encoder \
'os:system?command=true' (in Python: encoder=...)
    """
    kind, _, rest = name.partition(":")
    if kind in _OWN or name in _known_here():
        return
    from promptboost.config import AUTO
    from promptboost.encoders.openclip.weights import is_here

    if kind != "hf-hub" and rest and re.fullmatch(r"[\w.-]+", kind):
        if is_registered(kind):
            return
        raise EncoderError(
            f"the file names the encoder {name!r}, which is code that would be imported and run; if "
            f"you know it and want that, name it yourself: --encoder {name!r} (in Python: encoder=...)"
        )
    if name == AUTO:
        raise EncoderError(
            f"the file names the encoder {AUTO!r}, which asks a model hub what there is and is no model; "
            "name one yourself: --encoder NAME (in Python: encoder=...)"
        )
    if allow_download or not ("/" in name or "@" in name) or is_here(name):
        return
    raise EncoderError(
        f"the file names the encoder {name!r}, which is not on this machine and would be got from a "
        "model hub; to allow that, add --allow-download (in Python: allow_download=True)"
    )


def _known_here() -> set[str]:
    """Return the names of the encoders that were used on this machine before."""
    from promptboost.encoders.store import EmbeddingStore

    try:
        return {share.name for share in EmbeddingStore().report().encoders if share.name}
    except (PromptBoostError, OSError):  # a store that cannot be read knows nothing
        return set()
