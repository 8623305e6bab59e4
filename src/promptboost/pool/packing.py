"""From prompts one by one to what makes them again in little room."""

from array import array
from collections.abc import Iterable, Sequence

from promptboost.pool.compact import ClassPrompts
from promptboost.pool.products import Listed, Part, Product, Prompt
from promptboost.pool.templates import fill

__all__ = ["Packer", "pack"]


def pack(class_name: str, prompts: Sequence[Prompt]) -> ClassPrompts:
    """Put the prompts of a class into little room; their order and content stay.

    Examples
    --------
    >>> prompts = (Prompt("an owl", "template", "a {}"), Prompt("eyes", "mine", sentence="eyes"))
    >>> pack("owl", prompts) == prompts
    True
    """
    if isinstance(prompts, ClassPrompts):
        return prompts
    packer = Packer(class_name)
    packer.extend(prompts)
    return packer.packed()


class Packer:
    """Takes the prompts of one class one by one, and keeps each template and sentence once.

    Parameters
    ----------
    class_name : str
        What templates are filled with.
    """

    def __init__(self, class_name: str) -> None:
        self.class_name = class_name
        self._parts: list[Part] = []
        self._filled: dict[str, str] = {}
        self._start_run(None)

    def extend(self, prompts: Iterable[Prompt]) -> None:
        """Take some prompts."""
        for prompt in prompts:
            self.add(prompt)

    def add(self, prompt: Prompt) -> None:
        """Take one prompt."""
        shape = None
        if self._can_be_made_again(prompt):
            # Prompts of one shape in a row make one product.
            has = (prompt.template is not None, prompt.sentence is not None)
            shape = (prompt.source, prompt.origin, has)
        if shape != self._shape:
            self._end_run()
            self._start_run(shape)
        if shape is None:
            self._odd.append(prompt)
        else:
            self._rows.append(self._templates.setdefault(prompt.template, len(self._templates)))
            self._columns.append(self._sentences.setdefault(prompt.sentence, len(self._sentences)))

    def packed(self) -> ClassPrompts:
        """Give all prompts taken so far."""
        self._end_run()
        self._start_run(None)
        return ClassPrompts(self._parts)

    def _can_be_made_again(self, prompt: Prompt) -> bool:
        parts = []
        if prompt.template is not None:
            if prompt.template not in self._filled:
                self._filled[prompt.template] = fill(prompt.template, self.class_name)
            parts.append(self._filled[prompt.template])
        if prompt.sentence is not None:
            parts.append(prompt.sentence)
        return bool(parts) and all(parts) and prompt.text == " ".join(parts)

    def _start_run(self, shape: tuple[str, str | None, tuple[bool, bool]] | None) -> None:
        self._shape = shape
        self._odd: list[Prompt] = []
        self._templates: dict[str | None, int] = {}
        self._sentences: dict[str | None, int] = {}
        self._rows, self._columns = array("q"), array("q")

    def _end_run(self) -> None:
        if self._odd:
            self._parts.append(Listed(tuple(self._odd)))
        if self._shape is None or not self._rows:
            return
        source, origin, _ = self._shape
        width = len(self._sentences)
        kept = array("q", (t * width + s for t, s in zip(self._rows, self._columns, strict=True)))
        whole = len(kept) == len(self._templates) * width and all(
            i == number for i, number in enumerate(kept)
        )
        starts = tuple(None if t is None else self._filled[t] for t in self._templates)
        self._parts.append(
            Product(
                source,
                tuple(self._templates),
                starts,
                tuple(self._sentences),
                origin,
                None if whole else kept,
            )
        )
