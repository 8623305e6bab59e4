"""A task so small that it can be read: what the examples of all methods learn."""

import numpy as np

from promptboost.encoders.fake import FakeEncoder
from promptboost.methods.pictures import FewShotSet, RowPictures

__all__ = ["colour_shots"]


def colour_shots(red: str, blue: str) -> tuple[FewShotSet, FakeEncoder]:
    """Make a few-shot set of four pictures, and the encoder that sees them.

    Parameters
    ----------
    red, blue : str
        Names of the two classes. Pictures of the first are red and dark red, those of the second
        blue and light blue.

    Examples
    --------
    >>> shots, encoder = colour_shots("fire", "ice")
    >>> shots.class_names, shots.labels.tolist(), shots.pictures.rows(encoder).shape
    (('fire', 'ice'), [0, 0, 1, 1], (4, 32))
    """
    encoder = FakeEncoder()
    rows = encoder.encode_texts(["red", "dark red", "blue", "light blue"])[:, None]
    pictures = RowPictures({encoder.id: rows})
    return FewShotSet(pictures, np.array([0, 0, 1, 1]), (red, blue)), encoder
