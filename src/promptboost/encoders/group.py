"""EncoderGroup: several encoders used as one."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from promptboost.encoders.base import UnitRows
from promptboost.encoders.embedder import Embedder, embed_images
from promptboost.errors import EmbeddingError, SettingError

if TYPE_CHECKING:
    from PIL.Image import Image

    from promptboost.data.dataset import Dataset


class EncoderGroup:
    """Several encoders used as one; their embeddings are concatenated.

    Each encoder has a block of columns, and all blocks are as wide as the widest, padded with zeros. It
    implements :class:`~promptboost.Encoder`, except that each block has length one, not the row.

    Parameters
    ----------
    members : sequence of Embedder
        Two or more, each once.

    Examples
    --------
    >>> names = ["fake:4-0", "fake:2-1"]
    >>> group = EncoderGroup([Embedder.open(name, cache=False) for name in names])
    >>> rows = group.encode_texts(["a cat", "a dog"])
    >>> rows.shape, [block.shape for block in group.split(rows)]
    ((2, 8), [(2, 4), (2, 2)])
    """

    def __init__(self, members: Sequence[Embedder]) -> None:
        self.members = tuple(members)
        fingerprints = [member.fingerprint for member in members]
        if len(set(fingerprints)) < len(fingerprints):
            raise SettingError("encoder lists the same encoder twice: give each once")
        joined = "\n".join(fingerprints).encode()
        self.id = "+".join(member.id for member in members)
        self.fingerprint = hashlib.blake2b(joined, digest_size=16).hexdigest()
        self.dim = len(members) * max(member.dim for member in members)
        self.context_length = min(member.context_length for member in members)
        self.causal_text = all(member.causal_text for member in members)
        self.logit_scale = self.members[0].logit_scale

    def encode_texts(self, texts: Sequence[str]) -> UnitRows:
        """Embed texts with every encoder."""
        return join([member.encode_texts(texts) for member in self.members])

    def encode_images(self, images: Iterable["Image"]) -> UnitRows:
        """Embed RGB images with every encoder."""
        every = list(images)
        return join([member.encode_images(every) for member in self.members])

    def images(
        self, images: "Dataset | Sequence[Any]", *, views: int = 0, view_scale: float = 0.5
    ) -> UnitRows:
        """Embed each image and some random crops of it; see :meth:`Embedder.images`."""
        return join(embed_images(self.members, images, views, view_scale))

    def originals(self, images: "Dataset | Sequence[Any]") -> UnitRows:
        """Embed each image without crops."""
        return self.images(images)[:, 0]

    def count_tokens(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """Return the largest number of tokens that any of the encoders needs."""
        counts = [member.count_tokens(texts) for member in self.members]
        return np.asarray(np.max(counts, axis=0))

    def split(self, rows: NDArray[Any]) -> list[NDArray[Any]]:
        """Return the embeddings of each encoder, (..., D) of (..., E · width)."""
        return split(rows, [member.dim for member in self.members])


def join(rows: Sequence[ArrayLike]) -> NDArray[Any]:
    """Put the embeddings of several encoders next to each other, in blocks of equal width."""
    blocks = [np.asarray(block) for block in rows]
    if len(blocks) == 1:
        return blocks[0]
    if len({block.shape[:-1] for block in blocks}) > 1:
        shapes = ", ".join(str(block.shape) for block in blocks)
        raise EmbeddingError(f"the encoders embedded different numbers of inputs: {shapes}")
    width = max(block.shape[-1] for block in blocks)
    shape = (*blocks[0].shape[:-1], len(blocks), width)
    joined = np.zeros(shape, dtype=np.result_type(*blocks))
    for number, block in enumerate(blocks):
        joined[..., number, : block.shape[-1]] = block
    return joined.reshape(*shape[:-2], len(blocks) * width)  # -1 fails without rows


def split(rows: NDArray[Any], dims: Sequence[int]) -> list[NDArray[Any]]:
    """Return the block of each encoder, the inverse of :func:`join`."""
    width = rows.shape[-1] // len(dims)
    return [
        np.ascontiguousarray(rows[..., number * width : number * width + dim])
        for number, dim in enumerate(dims)
    ]
