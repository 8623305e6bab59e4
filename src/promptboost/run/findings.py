"""``issues.json``: images of a run that may be mislabeled, duplicated or outliers.

:mod:`promptboost.quality.issues` computes them.
"""

from pathlib import Path
from typing import Literal

import msgspec

from promptboost.baselines import Count, Share
from promptboost.run.run_folder import read_record

SCHEMA_VERSION = 1
#: Number of findings in the report.
SHOWN = 20

Kind = Literal["label", "two-labels", "leak", "repeat", "outlier"]
#: Heading of each kind, the most serious first.
KINDS: dict[str, str] = {
    "label": "labels that are probably wrong",
    "two-labels": "the same image under two labels",
    "leak": "test images that are in the training set",
    "outlier": "images that are like no class",
    "repeat": "the same image twice in a class",
}


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A suspicious image."""

    kind: Kind
    image: str
    split: Literal["learned", "held-out"]
    label: str
    suggested: str | None = None  # the class it is more probably of, or nearest to
    probability: Share | None = None  # of the suggested class
    score: float  # the larger, the more suspicious, among findings of one kind
    other: str | None = None  # the image that it is a copy of
    why: str = ""  # a sentence


class Issues(msgspec.Struct, frozen=True, kw_only=True):
    """The findings of a run, grouped by kind, the most suspicious first."""

    schema_version: int = SCHEMA_VERSION
    learned_images: Count
    held_out_images: Count
    only_words: Count  # images that are the only one of their class
    to_look_at: dict[str, Count]  # by kind
    findings: tuple[Finding, ...]

    def first(self, limit: int | None) -> tuple[Finding, ...]:
        """Return the first findings of each kind; without a limit, those worth reviewing."""
        return tuple(
            finding
            for kind in KINDS
            for finding in self.of_kind(kind)[
                : self.to_look_at.get(kind) if limit is None else limit
            ]
        )

    def of_kind(self, kind: str) -> tuple[Finding, ...]:
        """Return the findings of one kind."""
        return tuple(finding for finding in self.findings if finding.kind == kind)

    @classmethod
    def read(cls, path: Path) -> "Issues":
        """Read ``issues.json``."""
        return read_record(path, cls, SCHEMA_VERSION, "search for issues again")
