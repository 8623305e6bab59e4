"""Grow the pool of a run by sentences about the classes it confuses, and fit again."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from promptboost.errors import RunError
from promptboost.io import write_json
from promptboost.llm.client import ModelSettings
from promptboost.llm.generation import generate_pool
from promptboost.llm.questions import Pair, confused_pairs, contrast_questions, grow_pool
from promptboost.llm.replies import ReplyCache
from promptboost.llm.requests import RequestPolicy
from promptboost.model import PromptEnsemble
from promptboost.pool import build_pool, read_pool, save_pool
from promptboost.pool.io import is_saved_pool
from promptboost.pool.pool import union
from promptboost.pool.readers import emoji_descriptions, read_sources
from promptboost.pool.sources import match_classes
from promptboost.progress import Progress, no_progress
from promptboost.run.fit import fit_run
from promptboost.run.results import Results
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
    folder.steady(lambda: _words(folder))
    prompts = folder.settings.prompts
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


def measured_on(run: Path) -> str | None:
    """Return the split whose confusions were counted, such as ``test``; None for training images."""
    return RunFolder(run).results.task.held_out


def write_grown(run: Path, more: Mapping[str, Sequence[str]], file: Path) -> dict[str, list[str]]:
    """Write a file with the sentences of a run and new ones.

    In a saved pool the new sentences follow its prompts, with the source ``"grown"``.
    """
    folder = RunFolder(run)
    names, sentences = folder.steady(lambda: _words(folder))
    grown = grow_pool(names, sentences, more)
    prompts = folder.settings.prompts
    if prompts is not None and is_saved_pool(prompts):
        pool = read_pool(prompts, names)
        added = build_pool(names, templates=pool.templates, descriptions={"grown": more})
        save_pool(union(pool, added), file)
    else:
        write_json(file, grown)
    return grown


def fit_again(
    run: Path,
    prompts: Path,
    new_run: Path,
    *,
    overwrite: bool = False,
    progress: Progress = no_progress,
    say: Callable[[str], None] = lambda _: None,
    finish: tuple[Callable[[Path], object], ...] = (),
) -> Results:
    """Fit with the settings of a run and other sentences into a new folder; return the results."""
    folder = RunFolder(run)
    settings = folder.settings.merged({"prompts": str(prompts)})
    return fit_run(
        str(folder.source),
        new_run,
        settings,
        overwrite=overwrite,
        progress=progress,
        finish=finish,
        say=say,
    )


def fit_command(run: Path, prompts: Path, new_run: str = "NEW_RUN") -> str:
    """Return the command equivalent to :func:`fit_again`."""
    folder = RunFolder(run)
    config = str(folder.settings_path)
    return folder.fit_command("-o", new_run, "--config", config, "--prompts", str(prompts))


def contrast_sentences(
    first: str, second: str, count: int, model: ModelSettings, replies: Path
) -> dict[str, list[str]]:
    """Ask a language model how two classes differ; return up to `count` sentences about each.

    Replies are cached in the file `replies`.
    """
    generated = generate_pool(
        contrast_questions(first, second, count),
        replace(model, max_retries=1),
        ReplyCache(replies),
        per_class=count,
        policy=RequestPolicy(workers=2),
    )
    if not generated.sentences:
        reasons = [*generated.answers.failed.values(), generated.answers.stopped]
        reason = next(filter(None, reasons), "its replies held no sentences")
        raise RunError(f"the language model gave no sentences: {reason}")
    return generated.sentences


def _words(folder: RunFolder) -> tuple[tuple[str, ...], dict[str, list[str]]]:
    """Return the classes of a run and the sentences of each, without templates."""
    names = PromptEnsemble.load(folder.ensemble_path).class_names
    if (file := folder.settings.prompts) is None:
        return names, emoji_descriptions() if folder.source.is_emoji else {}
    sentences: dict[str, list[str]] = {}
    for source in read_sources(file):
        if not source.templates:
            for name, texts in match_classes(source, names).texts.items():
                sentences.setdefault(name, []).extend(texts)
    return names, sentences
