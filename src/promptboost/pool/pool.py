"""The prompts that boosting may choose from: for every class a list of sentences of any length."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from statistics import median
from typing import Any

from promptboost.errors import PoolError
from promptboost.pool.products import ClassPrompts, Texts, pack
from promptboost.pool.templates import fill

_AT_ONCE = 4096


@dataclass(frozen=True, eq=False, repr=False)
class PromptPool:
    """For every class an ordered list of prompts; made by :func:`build_pool`.

    A pool never changes. Two pools are equal when their fingerprints are. Prompts are made when
    they are asked for: ten thousand for each of a thousand classes take no more room than their
    templates and sentences.

    Examples
    --------
    >>> from promptboost.pool import build_pool
    >>> pool = build_pool(["owl", "bat"], descriptions={"owl": ["large round eyes"]})
    >>> pool.prompts("owl")[-1].source
    'descriptions'
    >>> pool.missing, pool.statistics()["prompts_by_source"]
    (('bat',), {'template': 160, 'descriptions': 1})
    """

    class_names: tuple[str, ...]  # in the order of the labels
    templates: tuple[str, ...]  # what every class has in common, and boosting starts from
    prompts_by_class: tuple[ClassPrompts, ...]  # sizes may differ; any sequences may be given
    missing: tuple[str, ...] = ()  # classes for which descriptions were given but none was found
    unused: tuple[str, ...] = ()  # names in the descriptions that are no class of this pool

    def __post_init__(self) -> None:
        named = zip(self.class_names, self.prompts_by_class, strict=True)
        object.__setattr__(self, "prompts_by_class", tuple(pack(*each) for each in named))

    def prompts(self, class_name: str) -> ClassPrompts:
        """Return the prompts of one class, in order."""
        try:
            return self.prompts_by_class[self._position[class_name]]
        except KeyError:
            raise PoolError(
                f"the pool has no class {class_name!r}; it has {', '.join(self.class_names[:10])}"
                f"{', …' if len(self.class_names) > 10 else ''}"
            ) from None

    def texts(self, class_name: str) -> Sequence[str]:
        """Return the texts of the prompts of one class, in order, each made when it is read."""
        return Texts(self.prompts(class_name))

    def template_texts(self) -> list[list[str]]:
        """Return, for every class, every template filled: the j-th of all are one classifier."""
        return [[fill(template, name) for template in self.templates] for name in self.class_names]

    @cached_property
    def fingerprint(self) -> str:
        """Changes whenever a class name, a template, a text or their order changes."""
        texts = (self.texts(name) for name in self.class_names)
        return words_fingerprint(self.class_names, self.templates, texts)

    @cached_property
    def prompts_by_source(self) -> dict[str, int]:
        """How many prompts each source gave, in the order in which they are first met."""
        return dict(sum((prompts.counts() for prompts in self.prompts_by_class), Counter()))

    def statistics(self) -> dict[str, Any]:
        """Count classes, templates and prompts, by class and by source; ready for JSON."""
        sizes = [len(prompts) for prompts in self.prompts_by_class]
        return {
            "classes": len(self.class_names),
            "templates": len(self.templates),
            "prompts": sum(sizes),
            "prompts_per_class": {
                "min": min(sizes),
                "median": float(median(sizes)),
                "max": max(sizes),
            },
            "prompts_by_source": dict(self.prompts_by_source),
            "missing": list(self.missing),
            "unused": list(self.unused),
            "fingerprint": self.fingerprint,
        }

    @cached_property
    def _position(self) -> dict[str, int]:
        return {name: k for k, name in enumerate(self.class_names)}

    def __contains__(self, class_name: object) -> bool:
        return class_name in self._position

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PromptPool):
            return NotImplemented
        return self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        prompts = sum(map(len, self.prompts_by_class))
        return f"<PromptPool: {len(self.class_names)} classes, {prompts} prompts>"


def words_fingerprint(
    class_names: Sequence[str], templates: Sequence[str], texts_by_class: Iterable[Iterable[str]]
) -> str:
    """Return what changes whenever a class name, a template, a text or their order changes.

    Saved ensembles carry it: it must stay what it is for pools that stay what they are.
    """
    digest = hashlib.blake2b(digest_size=16)
    # JSON marks where each string and list ends: ["ab", "c"] and ["a", "bc"] differ.
    digest.update(json.dumps([list(class_names), list(templates)]).encode())
    for texts in texts_by_class:
        digest.update(b"[")
        rest, comma = iter(texts), b""
        # A part at a time gives the bytes of one long list without making it.
        while some := list(islice(rest, _AT_ONCE)):
            digest.update(comma + json.dumps(some)[1:-1].encode())
            comma = b", "
        digest.update(b"]")
    return digest.hexdigest()
