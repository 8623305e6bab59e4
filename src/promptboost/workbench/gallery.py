"""Gallery: the images of a workbench by name, held-out ones and those that a user brings."""

import secrets
from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from promptboost.errors import SettingError
from promptboost.run.bench import Bench
from promptboost.run.fit import thumbnail

#: Images of the user's own that are remembered, so that an explanation follows the edits.
_TAKEN = 8
Row = NDArray[np.floating]


class Gallery:
    """Finds images of a bench by their names, and remembers some that are not of it.

    Parameters
    ----------
    bench : Bench
        The held-out images that are shown.
    """

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self._places = {name: place for place, name in enumerate(bench.images)}
        self._taken: OrderedDict[str, tuple[str, Row]] = OrderedDict()
        self._thumbnails: dict[int, str] = {}

    def take(self, name: str, row: Row) -> str:
        """Remember the embedding of an image of the user's own; return what it is called here."""
        number = secrets.token_hex(8)
        self._taken[number] = name, row
        while len(self._taken) > _TAKEN:
            self._taken.popitem(last=False)
        return number

    def taken(self, number: str) -> tuple[str, Row]:
        """Return the name and embedding of an image of the user's own."""
        if number not in self._taken:
            raise SettingError("this image is not remembered any more; choose it again")
        return self._taken[number]

    def held_out(self, name: str) -> tuple[str, Row]:
        """Return the class of a held-out image, as the images call it, and its embedding."""
        place = self._place(name)
        label = self.bench.class_names[int(self.bench.labels[place])]
        return label, self.bench.scores.embeddings[place]

    def thumbnail(self, name: str) -> str:
        """Return a small JPEG of a held-out image, as an address that holds the data itself."""
        place = self._place(name)
        if place not in self._thumbnails:
            if self.bench.held_out is None:
                raise SettingError("the images themselves are not here")
            self._thumbnails[place] = thumbnail(self.bench.held_out.images[place])
        return self._thumbnails[place]

    def _place(self, name: str) -> int:
        if name not in self._places:
            raise SettingError(f"there is no image {name!r} among those that are shown")
        return self._places[name]
