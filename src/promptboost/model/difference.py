"""What changed between two ensembles, by sentence and weight."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from promptboost.model.ensemble import PromptEnsemble

# Weights are sums of quotients: what differs by less is the same.
_SAME = 1e-9


@dataclass(frozen=True)
class ClassDifference:
    """What changed in the sentences of one class: sentence → weight."""

    name: str
    added: Mapping[str, float]  # heaviest first
    removed: Mapping[str, float]
    changed: Mapping[str, tuple[float, float]]  # before and after, largest change first

    @classmethod
    def between(
        cls, name: str, before: Mapping[str, float], after: Mapping[str, float]
    ) -> "ClassDifference":
        """Compare two banks of sentences with their weights."""
        changed = {
            text: (before[text], weight)
            for text, weight in after.items()
            if text in before and abs(weight - before[text]) > _SAME
        }
        by_change = sorted(
            changed.items(), key=lambda pair: (-abs(pair[1][1] - pair[1][0]), pair[0])
        )
        return cls(
            name,
            {text: weight for text, weight in after.items() if text not in before},
            {text: weight for text, weight in before.items() if text not in after},
            dict(by_change),
        )

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)


@dataclass(frozen=True)
class Difference:
    """What changed from one ensemble to another."""

    classes: tuple[ClassDifference, ...]  # of both, in which something changed
    added_classes: tuple[str, ...]
    removed_classes: tuple[str, ...]
    same: int  # how many sentences, counted class by class, are in both

    @classmethod
    def between(cls, before: PromptEnsemble, after: PromptEnsemble) -> "Difference":
        """Compare two ensembles; classes are the same if their names are."""
        both = [name for name in before.class_names if name in after.class_names]
        banks = {name: (before.prompts(name), after.prompts(name)) for name in both}
        differences = (ClassDifference.between(name, *banks[name]) for name in both)
        return cls(
            tuple(one for one in differences if one),
            tuple(name for name in after.class_names if name not in before.class_names),
            tuple(name for name in before.class_names if name not in after.class_names),
            sum(len(first.keys() & second.keys()) for first, second in banks.values()),
        )

    def of_class(self, name: str) -> "Difference":
        """Keep what is about one class."""
        kept = tuple(one for one in self.classes if one.name == name)
        return replace(self, classes=kept, added_classes=(), removed_classes=())

    def __bool__(self) -> bool:
        return bool(self.classes or self.added_classes or self.removed_classes)

    def record(self) -> dict[str, Any]:
        """Return the difference as plain types."""
        return {
            "classes": {
                one.name: {
                    "added": dict(one.added),
                    "removed": dict(one.removed),
                    "changed": {
                        text: {"before": before, "after": after}
                        for text, (before, after) in one.changed.items()
                    },
                }
                for one in self.classes
            },
            "added_classes": list(self.added_classes),
            "removed_classes": list(self.removed_classes),
            "same": self.same,
        }
