"""A pool that was saved as JSON Lines: its sentences by the source they came from, its templates.

Concatenations are not read as such: they are made of the templates and sentences that are, and
``build_pool`` makes them again.
"""

from pathlib import Path

from promptboost.pool.io import is_saved_pool, load_pool
from promptboost.pool.readers.source import Reader, Source

__all__ = ["SAVED"]


def _read(path: Path, dataset: str | None) -> tuple[Source, ...]:
    """Read one source for each that the prompts name, the templates first."""
    pool = load_pool(path)
    texts_of: dict[str, dict[str, dict[str, None]]] = {}
    for name in pool.class_names:
        for prompt in pool.prompts(name):
            if prompt.source == "template" and prompt.template in pool.templates:
                continue  # every class gets those
            source, text = prompt.source, prompt.text
            if source in ("template", "concat"):  # what others make, not where words come from
                source, text = prompt.origin or "descriptions", prompt.sentence or text
            texts_of.setdefault(source, {}).setdefault(name, {})[text] = None
    sources = [
        Source(source, "pool", path, {name: tuple(texts) for name, texts in by_class.items()})
        for source, by_class in texts_of.items()
    ]
    if pool.templates:
        sources.insert(0, Source("template", "pool", path, {}, templates=pool.templates))
    return tuple(sources)


SAVED = Reader("pool", is_saved_pool, _read)
