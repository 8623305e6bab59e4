"""Descriptions of the classes of a fit: questions per class, then per pair that is confused."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from promptboost.baselines import confusions
from promptboost.config import FitConfig
from promptboost.data.shots import Task, load_task
from promptboost.data.source import DataSource
from promptboost.encoders.embedder import open_embedder
from promptboost.errors import PoolError, RunError
from promptboost.llm.client import ModelSettings
from promptboost.llm.generation import Budget, Generated, Plan, generate_pool, plan
from promptboost.llm.growth import grow_prompts
from promptboost.llm.questions import Pair, Question, confused_pairs, pair_questions, questions_for
from promptboost.llm.replies import ReplyCache
from promptboost.pool.io import is_saved_pool
from promptboost.progress import Progress, no_progress
from promptboost.run.fit import check_apart, check_inputs, pool_for, thumbnail
from promptboost.run.results import EmbeddedTask
from promptboost.run.run_folder import RunFolder, check_place, lasting_settings, usable_store
from promptboost.training import Trainer

#: Sentences per class, pairs of classes, and sentences per class of a pair.
PER_CLASS, PAIRS, PER_PAIR = 10, 10, 5
# Pixels of the longer side of an image that is sent.
_SIDE = 512
_PAIRS_SHOWN = 3


@dataclass(frozen=True)
class Describer:
    """Write the sentences of a fit with a language model."""

    model: ModelSettings  # the language model
    budget: Budget = field(default_factory=Budget)  # limits of requests and tokens
    # send one training image of each confused class, at most 512 pixels wide and high
    send_images: bool = False
    # called before the first request with the plan of the questions about classes, and one of the
    # most questions about pairs that can follow. An exception prevents the requests.
    confirm: Callable[[Plan, Plan], object] = lambda *_: None

    def describe(
        self,
        source: str,
        run: Path,
        settings: FitConfig,
        *,
        overwrite: bool = False,
        resume: bool = False,
        cache: bool = True,
        device: str | None = None,
        progress: Progress = no_progress,
        say: Callable[[str], None] = lambda _: None,
    ) -> FitConfig:
        """Write descriptions into a run folder; return the settings of a fit with them.

        Sentences of `settings` are kept, and the new ones follow. The pairs are those that a text confuses
        that was composed without the image in question: test images are not used. Replies are kept in the
        run folder, and the same call asks only for those that are missing. With `resume`, a run that was
        begun keeps its sentences.
        """
        home, data = RunFolder(run), DataSource.parse(source)
        home.check_free(overwrite=overwrite, resume=resume)
        begun = home.unfinished or home
        if resume and begun.state != "missing":
            return settings.merged({"prompts": begun.settings.prompts})
        check_apart(data, home)
        check_place(home)
        settings = lasting_settings(settings)
        check_inputs(data, settings)
        task = load_task(data, settings, progress=progress)
        names, prompts = task.class_names, settings.prompts
        saved_pool = prompts is not None and is_saved_pool(prompts)
        file = home.path.absolute() / f"descriptions.json{'l' if saved_pool else ''}"
        if file.exists() and not home.replies_path.exists():
            raise RunError(f"{file} was not written by a language model; move it away")
        questions = questions_for(names, "context", PER_CLASS)
        with home.writing("describe", fit=True):
            replies = ReplyCache(home.replies_path)
            possible = islice(combinations(names, 2), PAIRS)
            most = [Pair(*pair, count=0) for pair in possible]
            placeholders = dict.fromkeys(names, "") if self.send_images else None
            pairs_plan = plan(
                pair_questions(most, names, PER_PAIR, placeholders), self.model, replies
            )
            self.confirm(plan(questions, self.model, replies), pairs_plan)

            def ask(questions: Sequence[Question]) -> Generated:
                options = {"budget": self.budget, "progress": progress, "notify": say}
                generated = generate_pool(questions, self.model, replies, **options)
                for line in generated.remarks():
                    say(line)
                return generated

            generated = ask(questions)
            if generated.answers.stopped is not None or not generated.sentences:
                again = "the same command asks for the missing replies only"
                if generated.answers.stopped is None:
                    again = f"see {home.replies_path}, and delete it to ask again"
                raise PoolError(
                    f"there are no descriptions, so nothing was fitted: {generated.problem}; {again}"
                )
            sentences = generated.sentences
            grown = grow_prompts(prompts, data, names, sentences, file)
            settings = settings.merged({"prompts": str(file)})
            cache = usable_store(cache, say)
            encoder = open_embedder(
                settings.encoders, cache=cache, progress=progress, device=device
            )
            pool = pool_for(settings, data, names)
            embedded = EmbeddedTask.embed(task, pool, settings, encoder, progress=progress)
            pairs, typical = _confused(task, embedded, settings, progress, say)
            if pairs:
                images = None
                if self.send_images:
                    confused = {name for pair in pairs for name in (pair.first, pair.second)}
                    learn = task.learn.images
                    images = {name: thumbnail(learn[typical[name]], _SIDE) for name in confused}
                generated = ask(pair_questions(pairs, names, PER_PAIR, images))
                for name, texts in generated.sentences.items():
                    sentences[name] = [*sentences.get(name, []), *texts]
                grown = grow_prompts(prompts, data, names, sentences, file)
            say(
                f"{file.name}: {sum(map(len, grown.values()))} sentences of {len(grown)} "
                f"classes; {self.budget.requests:,} requests, {self.budget.tokens:,} tokens"
            )
        return settings


def _confused(
    task: Task,
    embedded: EmbeddedTask,
    settings: FitConfig,
    progress: Progress,
    say: Callable[[str], None],
) -> tuple[list[Pair], dict[str, int]]:
    """Return the confused pairs of classes, and the number of a typical image of each class."""
    learned, labels = np.unique(task.learn.labels, return_inverse=True)
    names = [task.class_names[k] for k in learned]
    scores, where = _text_scores(task, embedded, settings, progress)
    judged = np.flatnonzero(np.isfinite(scores).all(axis=1))
    ids = [task.learn.ids[i] for i in judged]
    mixed = confusions(names, labels[judged], scores[judged].argmax(axis=1), ids)
    pairs = confused_pairs(msgspec.to_builtins(mixed), PAIRS)
    shown = ", ".join(f"{p.first} and {p.second} ({p.count})" for p in pairs[:_PAIRS_SHOWN])
    more = f" and {len(pairs) - _PAIRS_SHOWN} more pairs" if len(pairs) > _PAIRS_SHOWN else ""
    say(f"confused on {where}: {shown or 'no classes'}{more}")
    others = scores.copy()
    others[np.arange(len(labels)), labels] = -np.inf
    margins = scores[np.arange(len(labels)), labels] - others.max(axis=1)
    typical: dict[str, int] = {}
    for i in np.argsort(-margins, kind="stable").tolist():  # NaN last
        typical.setdefault(names[labels[i]], i)
    return pairs, typical


def _text_scores(
    task: Task, embedded: EmbeddedTask, settings: FitConfig, progress: Progress
) -> tuple[NDArray[Any], str]:
    """Return scores of training images (n, K) by texts composed without them, and what they are.

    They are the scores of the classes with images. Without cross-validation, such as with one image per
    class, the text has seen the images.
    """
    # Folds are composed for the residual, one round each.
    settings = replace(settings, residual=True, rounds=1)
    examples = embedded.examples(task)
    fitted = Trainer(settings, progress=progress).fit(
        examples, embedded.pool_rows, embedded.members
    )
    if (folds := fitted.folds) is None:
        rows = embedded.split(examples.rows)[0]
        matrix = fitted.head.without_residual().matrix[np.unique(task.learn.labels)]
        return rows @ matrix.T, "the training images"
    scores = np.full((len(examples.rows), folds.rows.shape[1]), np.nan)
    for number, text in enumerate(folds.rows):
        out = folds.fold == number
        scores[out] = examples.rows[out] @ text.T
    return scores, "training images, by cross-validation"
