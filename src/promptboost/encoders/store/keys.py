"""What a vector is filed under: 16-byte digests of the content it was computed from."""

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from promptboost.errors import StoreError

__all__ = ["KEY_BYTES", "KeyPairs", "as_pairs", "first_positions", "picture_key", "text_key"]

KEY_BYTES = 16

KeyPairs = NDArray[np.uint64]
"""Keys as an ``(n, 2)`` array: two 64-bit halves, which numpy sorts and searches natively."""


def text_key(text: str) -> bytes:
    """Digest a text, exactly as given: another space or another case is another key.

    Examples
    --------
    >>> len(text_key("a photo of a cat"))
    16
    >>> text_key("a cat") == text_key("a cat ")
    False
    """
    # A lone surrogate (from a badly decoded file) is odd but must not stop a run.
    data = text.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=KEY_BYTES, person=b"text").digest()


def picture_key(picture_bytes_digest: bytes, view: str) -> bytes:
    """Digest one view of a picture.

    Parameters
    ----------
    picture_bytes_digest : bytes
        A digest of the picture file's bytes, so that a renamed picture is still known.
    view : str
        Names the view (crop, flip, ...) and everything that it depends on; ``""`` for none.

    Examples
    --------
    >>> picture_key(b"digest of the file", "crop 3") == picture_key(b"digest of the file", "")
    False
    """
    # The length in front keeps ("ab", "c") and ("a", "bc") apart.
    prefix = len(picture_bytes_digest).to_bytes(8, "little")
    data = prefix + picture_bytes_digest + view.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=KEY_BYTES, person=b"picture").digest()


def as_pairs(keys: Sequence[bytes]) -> KeyPairs:
    """Turn digests into an ``(n, 2)`` array of their halves."""
    for position, key in enumerate(keys):
        if len(key) != KEY_BYTES:
            raise StoreError(
                f"Key {position} has {len(key)} bytes where the store needs {KEY_BYTES}: "
                "make keys with text_key or picture_key."
            )
    return np.frombuffer(b"".join(keys), dtype="<u8").reshape(-1, 2)


def first_positions(pairs: KeyPairs) -> NDArray[np.int64]:
    """Give, for each key, the position at which the same key first occurs.

    Examples
    --------
    >>> first_positions(as_pairs([text_key("a"), text_key("b"), text_key("a")])).tolist()
    [0, 1, 0]
    """
    order = np.lexsort((pairs[:, 1], pairs[:, 0]))  # stable: equal keys stay in their order
    ordered = pairs[order]
    is_new = np.ones(len(pairs), dtype=np.bool_)
    is_new[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    first = np.empty(len(pairs), dtype=np.int64)
    first[order] = order[is_new][np.cumsum(is_new) - 1]
    return first
