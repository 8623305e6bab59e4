"""Grow the pool of a run by sentences about the classes it confuses, and fit again."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from promptboost.data.source import DataSource
from promptboost.errors import RunError
from promptboost.io import write_json
from promptboost.llm.client import ModelSettings
from promptboost.llm.generation import generate_pool
from promptboost.llm.questions import Pair, confused_pairs, pair_questions
from promptboost.llm.replies import ReplyCache
from promptboost.pool import build_pool, read_pool, save_pool
from promptboost.pool.io import is_saved_pool
from promptboost.pool.pool import union
from promptboost.pool.readers import emoji_descriptions, read_sources
from promptboost.pool.sources import match_classes
from promptboost.pool.text import distinct
from promptboost.run.run_folder import RunFolder


def run_pairs(run: Path, most: int) -> list[Pair]:
    """Return the most confused pairs of classes of a run."""
    folder = RunFolder(run)
    folder.check_finished()
    pairs = confused_pairs(msgspec.to_builtins(folder.results.confusions), most)
    if not pairs:
        raise RunError(f"the run in {run} confuses no classes, so there are no questions")
    return pairs


def check_growable(run: Path, file: Path) -> None:
    """Raise a RunError unless the run's sentences can be read and grown into `file`."""
    folder = RunFolder(run)
    names = folder.steady(lambda: folder.ensemble.class_names)
    prompts = folder.settings.prompts
    _sentences(prompts, folder.source, names)
    wanted = ".jsonl" if prompts is not None and is_saved_pool(prompts) else ".json"
    if file.suffix.lower() != wanted:
        raise RunError(
            f"the run in {run} was fitted with {'a saved pool' if wanted == '.jsonl' else 'sentences'}"
            f", which grows into a file of the same kind; choose a name that ends in {wanted}"
        )
    if prompts is not None and file.exists() and file.samefile(prompts):
        raise RunError(
            f"{file} holds the sentences that the run in {run} was fitted with, so it is not "
            "replaced; choose another name"
        )


def write_grown(run: Path, more: Mapping[str, Sequence[str]], file: Path) -> dict[str, list[str]]:
    """Write a file with the sentences of a run and new ones."""
    folder = RunFolder(run)
    names = folder.steady(lambda: folder.ensemble.class_names)
    return grow_prompts(folder.settings.prompts, folder.source, names, more, file)


def grow_prompts(
    prompts: str | None,
    source: DataSource,
    names: Sequence[str],
    more: Mapping[str, Sequence[str]],
    file: Path,
) -> dict[str, list[str]]:
    """Write a file with the sentences of a fit, which may have had a file of `prompts`, and new ones.

    Repeats are left out. In a saved pool the new sentences follow its prompts, with the source
    ``"grown"``.
    """
    old = _sentences(prompts, source, names)
    every = {name: distinct([*old.get(name, []), *more.get(name, [])]) for name in names}
    grown = {name: sentences for name, sentences in every.items() if sentences}
    if prompts is not None and is_saved_pool(prompts):
        pool = read_pool(prompts, names)
        added = build_pool(names, templates=pool.templates, descriptions={"grown": more})
        save_pool(union(pool, added), file)
    else:
        write_json(file, grown)
    return grown


def fit_command(run: Path, prompts: Path) -> str:
    """Return the command that fits with the settings of a run and other sentences."""
    folder = RunFolder(run)
    config = str(folder.settings_path)
    return folder.fit_command("-o", "NEW_RUN", "--config", config, "--prompts", str(prompts))


def contrast_sentences(
    first: str, second: str, count: int, model: ModelSettings, replies: Path
) -> dict[str, list[str]]:
    """Ask a language model how two classes differ; return up to `count` sentences about each.

    Replies are cached in the file `replies`.
    """
    generated = generate_pool(
        pair_questions([Pair(first, second, 0)], (first, second), count),
        replace(model, max_retries=1),
        ReplyCache(replies),
        workers=2,
    )
    if not generated.sentences:
        raise RunError(f"the language model gave no sentences: {generated.problem}")
    return generated.sentences


def _sentences(
    prompts: str | None, source: DataSource, names: Sequence[str]
) -> dict[str, list[str]]:
    """Return the sentences of a fit by class, without templates."""
    if prompts is None:
        return emoji_descriptions() if source.is_emoji else {}
    sentences: dict[str, list[str]] = {}
    for entry in read_sources(prompts):
        if not entry.templates:
            for name, texts in match_classes(entry, names).texts.items():
                sentences.setdefault(name, []).extend(texts)
    return sentences
