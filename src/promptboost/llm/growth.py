"""A run's pool, grown by what tells its mixed-up classes apart; and the fit that goes on with it."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from promptboost.errors import RunError
from promptboost.io import write_json
from promptboost.llm.client import ModelSettings
from promptboost.llm.generation import generate_pool
from promptboost.llm.questions import Pair, confused_pairs, contrast_questions, grow_pool
from promptboost.llm.replies import ReplyCache
from promptboost.llm.requests import Manner, Retries
from promptboost.model import PromptEnsemble
from promptboost.pool import (
    build_pool,
    emoji_descriptions,
    is_saved_pool,
    meet,
    read_pool,
    read_sources,
    save_pool,
    union,
)
from promptboost.progress import Progress, no_progress
from promptboost.run.fit import fit_run
from promptboost.run.results import Results
from promptboost.run.run_folder import RunFolder


def run_pairs(run: Path, most: int) -> list[Pair]:
    """Find the pairs of classes that a run mixes up most."""
    folder = RunFolder(run)
    folder.check_finished()
    pairs = confused_pairs(msgspec.to_builtins(folder.results.confusions), most)
    if not pairs:
        raise RunError(f"the run in {run} mixes up no classes, so there is nothing to ask about")
    return pairs


def check_growable(run: Path, file: Path) -> None:
    """Raise unless the sentences of a run can be read, and `file` can hold them but does not yet."""
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
    """Return on which images the pairs were found: ``test``, ``val``, …; None for those learnt from."""
    return RunFolder(run).results.task.held_out


def write_grown(run: Path, more: Mapping[str, Sequence[str]], file: Path) -> dict[str, list[str]]:
    """Write a file with the sentences a run had, and more.

    A saved pool stays whole: the new sentences come after its prompts, as the source ``"grown"``.
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
    """Fit as a run was fitted, with other sentences, into a new folder; return its figures."""
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
    """Return the command that does what :func:`fit_again` does."""
    folder = RunFolder(run)
    config = str(folder.settings_path)
    return folder.fit_command("-o", new_run, "--config", config, "--prompts", str(prompts))


def sentences_apart(
    one: str, other: str, count: int, model: ModelSettings, replies: Path
) -> dict[str, list[str]]:
    """Ask a language model for what tells two classes apart: some sentences about each.

    Replies are kept in a file, and not asked for again.
    """
    manner = Manner(workers=2, retries=Retries(attempts=2))
    questions = contrast_questions(one, other, count)
    done = generate_pool(questions, model, ReplyCache(replies), per_class=count, manner=manner)
    if not done.sentences:
        failed = [*done.answers.failed.values(), done.answers.stopped]
        why = next(filter(None, failed), "its replies held no sentences")
        raise RunError(f"the language model gave no sentences: {why}")
    return done.sentences


def _words(folder: RunFolder) -> tuple[tuple[str, ...], dict[str, list[str]]]:
    names = _class_names(folder)
    return names, _sentences(folder, names)


def _class_names(folder: RunFolder) -> tuple[str, ...]:
    return PromptEnsemble.load(folder.ensemble_path).class_names


def _sentences(folder: RunFolder, class_names: Sequence[str]) -> dict[str, list[str]]:
    """Return the sentences of each class, without templates and what was made with them."""
    if (file := folder.settings.prompts) is None:
        return emoji_descriptions() if folder.source.is_emoji else {}
    found: dict[str, list[str]] = {}
    for source in read_sources(file):
        if not source.templates:
            for name, texts in meet(source, class_names).texts.items():
                found.setdefault(name, []).extend(texts)
    return found
