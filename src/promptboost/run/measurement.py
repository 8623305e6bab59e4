"""Embed the task of a fit, and measure the fitted ensemble and its baselines."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from promptboost.baselines.baselines import TEXT_BASELINES, guess_baselines, pool_heads
from promptboost.baselines.measures import (
    OURS,
    TEXT,
    Guesses,
    Indices,
    accuracy,
    confusions,
    per_class,
    text_shares,
)
from promptboost.config import FitConfig
from promptboost.data.shots import Task
from promptboost.encoders.base import UnitRows, members_of
from promptboost.encoders.embedder import Embedder
from promptboost.encoders.group import EncoderGroup
from promptboost.model import Head, PromptEnsemble
from promptboost.model.head import mean_index, mean_proba, staged_heads
from promptboost.pool import PromptPool
from promptboost.progress import Progress, no_progress
from promptboost.run.overlap import Inspection
from promptboost.run.results import (
    Composed,
    EncoderFacts,
    HardImage,
    LeftOut,
    PoolFacts,
    ResidualResult,
    Results,
    StageResult,
    TaskFacts,
    TransferResult,
)
from promptboost.training import Fitted, PoolRows, PoolTexts
from promptboost.training.examples import Examples
from promptboost.training.pool_rows import Executor

_HARDEST = 24

#: The name of the mean of several encoders' probabilities among the methods.
AVERAGED = f"{OURS}-averaged"


@dataclass(frozen=True)
class EmbeddedTask:
    """The embeddings of a few-shot task.

    Attributes
    ----------
    encoder : Embedder or EncoderGroup
        The encoder.
    train : array of shape (n, 1 + V, D)
        The training images and their crops.
    test : array of shape (m, D)
        The test images.
    pool : PromptPool
        The prompts.
    pool_rows : PoolRows
        The prompts, embedded.
    """

    encoder: Embedder | EncoderGroup
    train: UnitRows
    test: UnitRows
    pool: PromptPool
    pool_rows: PoolRows

    @classmethod
    def embed(
        cls,
        task: Task,
        pool: PromptPool,
        settings: FitConfig,
        encoder: Embedder | EncoderGroup,
        *,
        executor: Executor | None = None,
        folder: Path | None = None,
        progress: Progress = no_progress,
    ) -> "EmbeddedTask":
        """Embed the images and the pool of a fit; a large pool by an `executor`, into a `folder`."""
        train = encoder.images(task.learn, views=settings.views, view_scale=settings.view_scale)
        test = encoder.originals(task.held_out)
        texts = PoolTexts.of(pool)
        rows = PoolRows.embed(texts, encoder, executor=executor, folder=folder, progress=progress)
        return cls(encoder, train, test, pool, rows)

    @property
    def members(self) -> tuple[Embedder, ...]:
        """The encoders."""
        return members_of(self.encoder)

    def split(self, rows: UnitRows) -> list[UnitRows]:
        """Return the embeddings of each encoder."""
        return self.encoder.split(rows) if isinstance(self.encoder, EncoderGroup) else [rows]

    def examples(self, task: Task) -> Examples:
        """Return the training images for the trainer."""
        views = self.train[:, 1:]
        return Examples(
            self.train[:, 0],
            task.learn.labels,
            task.learn.ids,
            views=views if views.size else None,
            encoders=len(self.members),
        )

    def measured(self, task: Task) -> UnitRows:
        """Return the embeddings of the images that the results are about, with the first encoder."""
        return self.split(self.train[:, 0] if task.kind is None else self.test)[0]


def measure(
    task: Task,
    embedded: EmbeddedTask,
    fitted: Fitted,
    settings: FitConfig,
    inspection: Inspection,
    progress: Progress = no_progress,
) -> Results:
    """Evaluate a fit and its baselines; the results lack only the times."""
    encoder, ensemble, pool = embedded.members[0], fitted.ensemble, embedded.pool
    head, labels, learn_labels = fitted.head, task.held_out.labels, task.learn.labels
    train, test = (embedded.split(x)[0] for x in (embedded.train, embedded.test))
    text_heads = [
        pool_heads(pool, member, embedded.pool_rows.of(number, member.dim))
        for number, member in enumerate(embedded.members)
    ]
    guesses = guess_baselines(
        train, learn_labels, test, text_heads[0], pool, seed=settings.seed, progress=progress
    )
    guesses += _own_guesses(embedded, fitted)
    ours = guesses[-1]
    staged = tuple(_stages(task, train, test, ensemble, encoder, progress))
    shown = {
        guess.name: guess.held_out if task.kind is not None else guess.learn
        for guess in guesses
        if guess.name in ("zero-shot", OURS)
    }
    names, measured = task.class_names, task.measured
    words = text_shares(head, embedded.measured(task))
    statistics = pool.statistics()
    return Results(
        task=_task_facts(task, settings),
        overlap=inspection.overlap,
        ensemble_fingerprint=ensemble.fingerprint,
        composed=Composed.of(ensemble),
        encoder=EncoderFacts(encoder.id, encoder.fingerprint, encoder.dim),
        pool=PoolFacts(
            fingerprint=pool.fingerprint,
            templates=statistics["templates"],
            prompts=statistics["prompts"],
            statistics=statistics,
            missing=tuple(pool.missing),
            unused=tuple(pool.unused),
            chosen=chosen_sources(pool, ensemble),
        ),
        residual=_residual_result(fitted, task, words),
        methods=tuple(guess.result(labels, learn_labels, inspection.leaked) for guess in guesses),
        staged=staged,
        per_class=per_class(names, measured.labels, shown),
        confusions=confusions(names, measured.labels, shown[OURS], measured.ids, words),
        hardest=_hardest(task, ensemble, ours.learn, text_shares(head, train[:, 0])),
        transfers=_on_other_encoders(task, embedded, fitted, text_heads),
    )


def _own_guesses(embedded: EmbeddedTask, fitted: Fitted) -> list[Guesses]:
    """Return the predictions of the text alone, of the average over encoders, and of the fit."""
    head, label = fitted.head, Composed.of(fitted.ensemble).label
    train, test = (embedded.split(x) for x in (embedded.train[:, 0], embedded.test))
    averaged, heads = [], {OURS: (label, head)}
    if head.residual is not None:
        text_head = head.without_residual()
        heads = {TEXT: (f"text alone: {label}", text_head), OURS: ("text + residual", head)}
    if len(fitted.heads) > 1:
        averaged = [
            Guesses(
                AVERAGED,
                f"{heads[OURS][0]}, average of {len(fitted.heads)} encoders",
                mean_index(fitted.heads, test),
                mean_index(fitted.heads, train),
                mean_proba(fitted.heads, test) if len(embedded.test) else None,
            )
        ]
    *text, ours = (
        Guesses(
            name,
            title,
            each.predict_index(test[0]),
            each.predict_index(train[0]),
            each.predict_proba(test[0]) if len(test[0]) else None,
        )
        for name, (title, each) in heads.items()
    )
    return [*text, *averaged, ours]


def _on_other_encoders(
    task: Task,
    embedded: EmbeddedTask,
    fitted: Fitted,
    text_heads: list[dict[str, Head]],
) -> tuple[TransferResult, ...]:
    """Evaluate the text on the other encoders of the fit, with the baselines that use text alone."""
    results = []
    tests = embedded.split(embedded.test)
    for number, member in enumerate(embedded.members[1:], start=1):
        heads = {name: text_heads[number][name] for name in TEXT_BASELINES}
        heads[OURS] = fitted.heads[number]
        figures = {
            name: accuracy(head.predict_index(tests[number]), task.held_out.labels)
            for name, head in heads.items()
        }
        results.append(TransferResult(member.id, figures, learned_on=True))
    return tuple(results)


def _residual_result(
    fitted: Fitted, task: Task, words: NDArray[np.float64] | None
) -> ResidualResult | None:
    """Return the shares of the text in the predictions."""
    residual, labels = fitted.residuals[0], task.measured.labels
    if residual is None:
        return None
    shares = np.ones(len(labels)) if words is None else words
    text_loss, loss = residual.losses or (None, None)
    return ResidualResult(
        penalty=residual.penalty if np.isfinite(residual.penalty) else None,
        text_scale=residual.text_scale,
        text_loss=text_loss,
        loss=loss,
        text_share=float(shares.mean()) if len(shares) else 1.0,
        class_text_shares={
            name: float(shares[labels == k].mean())
            for k, name in enumerate(task.class_names)
            if (labels == k).any()
        },
    )


def _stages(
    task: Task,
    train: UnitRows,
    test: UnitRows,
    ensemble: PromptEnsemble,
    encoder: Embedder,
    progress: Progress,
) -> Iterator[StageResult]:
    """Evaluate the classifier after each round."""
    heads = staged_heads(ensemble, encoder, ensemble.embed(encoder))
    progress("evaluating rounds", 0, len(ensemble))
    for number, (head, round_) in enumerate(zip(heads, ensemble.rounds, strict=True), start=1):
        yield StageResult(
            number,
            accuracy(head.predict_index(test), task.held_out.labels),
            float(np.mean(head.predict_index(train[:, 0]) == task.learn.labels)),
            round_.error,
            round_.template_error,
        )
        progress("evaluating rounds", number, len(ensemble))


def _hardest(
    task: Task,
    ensemble: PromptEnsemble,
    guesses: Indices,
    words: NDArray[np.float64] | None,
) -> tuple[HardImage, ...]:
    """Return the training images with the largest weights at the end of the fit."""
    ids = task.learn.ids
    weights = np.array([ensemble.sample_weights.get(name, 0.0) for name in ids])
    order = np.argsort(-weights, kind="stable")[:_HARDEST]
    return tuple(
        HardImage(
            ids[i],
            task.learn.images[i].label,
            task.class_names[int(guesses[i])],
            float(weights[i]),
            None if words is None else float(words[i]),
        )
        for i in map(int, order)
    )


def _task_facts(task: Task, settings: FitConfig) -> TaskFacts:
    return TaskFacts(
        data=task.source,
        classes=len(task.class_names),
        learn_images=len(task.learn),
        held_out_images=len(task.held_out),
        held_out=task.kind,
        shots=settings.shots,
        seed=settings.seed,
        learn_digests=tuple(sorted({image.digest().hex() for image in task.learn.images})),
        bad_images=tuple(LeftOut(_text(b.path), _text(b.reason)) for b in task.learn.bad),
    ).public


def _text(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def chosen_sources(pool: PromptPool, ensemble: PromptEnsemble) -> dict[str, dict[str, str]]:
    """Return the source of each chosen prompt of each class; of a concatenation, that of its sentence."""
    sources: dict[str, dict[str, str]] = {}
    for name in ensemble.class_names:
        wanted = ensemble.prompts(name)
        # The template that all banks begin with need not be among the prompts of a pool.
        sources[name] = dict.fromkeys(wanted, "template")
        for i, text in enumerate(pool.texts(name)):
            if text in wanted:
                prompt = pool.prompts(name)[i]
                origin = f"concat:{prompt.origin}" if prompt.origin else prompt.source
                sources[name][text] = origin
    return sources
