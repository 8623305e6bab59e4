"""What a comparison has to do: methods that can be used, on every draw."""

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from promptboost.encoders import Encoder
from promptboost.errors import PromptBoostError
from promptboost.experiments.cells import Key, Notebook
from promptboost.experiments.request import CompareRequest
from promptboost.experiments.world import World
from promptboost.methods import METHODS, Method, Transfer, make_method

__all__ = ["Cell", "Say", "say_what_is_short", "usable_cells"]

#: Called with a line for people now and then.
Say = Callable[[str], None]


@dataclass(frozen=True)
class Cell:
    """One method, learnt from one draw, and everywhere it is to be measured.

    Examples
    --------
    >>> Cell("logistic", make_method("logistic"), shots=1, seed=3).seeded().seed
    3
    >>> Cell("logistic?seed=5", make_method("logistic?seed=5"), shots=1, seed=3).seeded().seed
    5
    """

    spelling: str
    method: Method
    shots: int
    seed: int

    def key(self, world: World, on: Encoder) -> Key:
        """Give what its result on an encoder is kept under."""
        return {
            "method": self.spelling,
            "shots": self.shots,
            "seed": self.seed,
            "encoder": world.encoder.id,
            "on": on.id,
        }

    def keys(self, world: World) -> list[Key]:
        """Give where it is to be measured: on its own encoder, then on all others."""
        return [self.key(world, on) for on in (world.encoder, *world.targets)]

    def seeded(self) -> Method:
        """Give the method, with the seed of the draw where it draws itself and none is spelled."""
        names = {f.name for f in dataclasses.fields(self.method)}  # type: ignore[arg-type]
        if "seed" not in names or re.search(r"[?&]seed=", self.spelling):
            return self.method
        return dataclasses.replace(self.method, seed=self.seed)  # type: ignore[type-var]


def usable_cells(request: CompareRequest, world: World, book: Notebook, say: Say) -> list[Cell]:
    """Make the methods and what is to be done with them; refuse those that cannot be used."""
    spelled = [name for name in request.methods if name != "all"]
    every = METHODS if "all" in request.methods else ()
    methods = {name: make_method(name) for name in (*every, *spelled)}
    first = world.draw(request.shots[0], request.seeds[0]).learn
    found: list[Cell] = []
    for name, method in methods.items():
        cells = [Cell(name, method, k, seed) for k in request.shots for seed in request.seeds]
        # What is all there can be shown, though a server that it needs is down.
        if any(key not in book for cell in cells for key in cell.keys(world)):
            again = world.targets if method.carries_over is Transfer.REFIT else []
            try:
                for encoder in (world.encoder, *again):
                    method.check(first, world.pool, encoder)
            except PromptBoostError as error:
                if name in spelled:
                    raise type(error)(f"{name} cannot be used here: {error}") from error
                say(f"without {name}: {error}")
                continue
        found += cells
    return found


def say_what_is_short(request: CompareRequest, world: World, say: Say) -> None:
    """Tell where a number of shots is not what every class gets."""
    for shots in request.shots:
        learn = world.draw(shots, request.seeds[0]).learn
        counts = np.bincount(learn.labels, minlength=learn.n_classes)
        if fewer := int((counts < shots).sum()):
            say(
                f"at {shots} shots {fewer} of {learn.n_classes} classes have fewer pictures to learn "
                f"from, {counts.min()} at least: all that they have are taken"
            )
