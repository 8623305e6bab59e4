"""A pool that was saved as JSON Lines: its sentences by the source they came from, its templates.

Concatenations are not read as such: they are made of the templates and sentences that are, and
``build_pool`` makes them again.
"""

from pathlib import Path

from promptboost.pool.io import is_saved_pool, load_pool
from promptboost.pool.readers.source import Source

__all__ = ["KIND", "read", "recognises"]

KIND = "pool"


def recognises(path: Path) -> bool:
    """Say whether a file begins as a saved pool does."""
    return is_saved_pool(path)


def read(path: Path) -> tuple[Source, ...]:
    """Read one file: one source for each that its prompts name, the templates first.

    Examples
    --------
    >>> import tempfile
    >>> from promptboost.pool import build_pool, save_pool
    >>> pool = build_pool(["owl"], templates=["a {}."], descriptions={"cupl": {"owl": ["eyes"]}})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_pool(pool, Path(folder, "birds.jsonl"))
    ...     [(source.name, source.sentences, source.templates) for source in read(
    ...         Path(folder, "birds.jsonl")
    ...     )]
    [('template', {}, ('a {}.',)), ('cupl', {'owl': ('eyes',)}, ())]
    """
    pool = load_pool(path)
    found: dict[str, dict[str, dict[str, None]]] = {}
    for name in pool.class_names:
        for prompt in pool.prompts(name):
            if prompt.source == "template" and prompt.template in pool.templates:
                continue  # every class gets those
            source, text = prompt.source, prompt.text
            if source in ("template", "concat"):  # what others make, not where words come from
                source, text = prompt.origin or "descriptions", prompt.sentence or text
            found.setdefault(source, {}).setdefault(name, {})[text] = None
    sources = [
        Source(source, KIND, path, {name: tuple(texts) for name, texts in own.items()})
        for source, own in found.items()
    ]
    if pool.templates:
        sources.insert(0, Source("template", KIND, path, {}, templates=pool.templates))
    return tuple(sources)
