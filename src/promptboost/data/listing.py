"""What a reader finds, before any picture is opened."""

from collections.abc import Iterable
from dataclasses import dataclass

from promptboost.data.dataset import Picture
from promptboost.data.reading import BadPicture

__all__ = ["Listing"]


@dataclass(frozen=True)
class Listing:
    """Pictures not yet opened, what cannot be used, and every class that was named.

    ``classes`` is kept apart because a class all of whose pictures are bad must not vanish.

    Examples
    --------
    >>> Listing.of([Picture("1", "cat", b"...")], []).classes
    ('cat',)
    """

    pictures: tuple[Picture, ...]
    bad: tuple[BadPicture, ...]
    classes: tuple[str, ...]

    @classmethod
    def of(
        cls,
        pictures: Iterable[Picture],
        bad: Iterable[BadPicture],
        classes: Iterable[str] | None = None,
    ) -> "Listing":
        """Make a listing; unless given, the classes are those of the pictures."""
        pictures = tuple(pictures)
        named = (picture.label for picture in pictures) if classes is None else classes
        return cls(pictures, tuple(bad), tuple(dict.fromkeys(named)))
