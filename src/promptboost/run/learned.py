"""A fit in memory: its embeddings, what was learnt from them, and what is measured of it."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from promptboost.baselines.base import FewShotSet, RowImages
from promptboost.baselines.baselines import TEXT_BASELINES, guess_baselines, pool_heads
from promptboost.baselines.logistic import rows_of_probe
from promptboost.baselines.measures import (
    OURS,
    TEXT,
    Guesses,
    Indices,
    accuracy,
    confusions,
    per_class,
    word_shares,
)
from promptboost.boosting import BoostRound, BoostSettings, GridPool, Shots
from promptboost.boosting.balance import in_balance, of_all_classes
from promptboost.boosting.gradient.scale import FoldTexts
from promptboost.boosting.grid import GridRows, side_by_side
from promptboost.boosting.quota import OnRows, Quota
from promptboost.boosting.residual import Residual
from promptboost.config import FitConfig
from promptboost.data.shots import Task, image_ids
from promptboost.distributed.engine import Engine
from promptboost.encoders.base import UnitRows
from promptboost.encoders.embedder import Embedder
from promptboost.model import LearntOn, LinearHead, PromptEnsemble
from promptboost.model.average import AveragedHead
from promptboost.model.head_files import AnyHead, embed_ensemble, keep_residual
from promptboost.model.provenance import Composed
from promptboost.model.vectors import EmbeddedRounds
from promptboost.pool import PromptPool
from promptboost.progress import learning, progress_bar
from promptboost.run.overlap import Inspection
from promptboost.run.results import (
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
from promptboost.training import PoolTexts, boost_settings, fit_ensemble
from promptboost.training.learner import head_with_residual, rows_of_fit, rows_of_residual
from promptboost.training.pool_rows import PoolRows

_HARDEST = 24


#: The name of the mean of several encoders' probabilities among the methods.
AVERAGED = f"{OURS}-averaged"


@dataclass(frozen=True)
class FurtherEmbeddings:
    """What another of several encoders made of the same images and texts."""

    embedder: Embedder
    learn: UnitRows
    held_out: UnitRows
    text_heads: dict[str, LinearHead]


@dataclass(frozen=True)
class TaskEmbeddings:
    """The embeddings a fit works on; where it learns on several encoders, those of the first one."""

    learn: UnitRows  # (n, 1 + V, D): each image to learn from, and its crops
    held_out: UnitRows  # (m, D): the images to measure on
    pool: PromptPool
    pool_rows: PoolRows  # those of a big pool are on disk until learn() is done
    text_heads: dict[str, LinearHead]  # what the texts alone make of the classes, by method
    further: tuple[FurtherEmbeddings, ...] = ()

    def side_by_side(self, views: slice | int) -> GridRows | UnitRows:
        """Return the images to learn from, or their crops, as all encoders see them."""
        every = [self.learn[:, views], *(one.learn[:, views] for one in self.further)]
        return every[0] if len(every) == 1 else side_by_side(every, name="images")


@dataclass(frozen=True)
class Learned:
    """A finished fit in memory."""

    ensemble: PromptEnsemble
    head: (
        AnyHead  # that text embedded again, with its residual: what is measured is what is shipped
    )
    boost_seconds: float
    residual: Residual | None = None  # as it was fitted; None if none was asked for
    further_heads: tuple[AnyHead, ...] = ()  # on the other encoders it was learnt on


def embed_task(
    task: Task,
    pool: PromptPool,
    settings: FitConfig,
    embedder: Embedder,
    folder: Path | None = None,
    further: Sequence[Embedder] = (),
    engine: Engine | None = None,
) -> TaskEmbeddings:
    """Embed the images and texts of a fit; `folder` may keep the rows of a big pool meanwhile.

    The texts of a big pool are embedded and read by an `engine`, if there is one.

    `further` embedders see the same crops of the same images.
    """
    every = (embedder, *further)
    images = [
        (
            one.images(task.learn, views=settings.views, view_scale=settings.view_scale),
            one.originals(task.held_out),
        )
        for one in every
    ]
    rows = PoolRows.embed(PoolTexts.of(pool), embedder, folder, further, engine)
    heads = [pool_heads(pool, one, rows.of(number, one.dim)) for number, one in enumerate(every)]
    others = [
        FurtherEmbeddings(one, *images[number], heads[number])
        for number, one in enumerate(further, start=1)
    ]
    return TaskEmbeddings(*images[0], pool, rows, heads[0], tuple(others))


def learn(
    task: Task,
    embeddings: TaskEmbeddings,
    settings: FitConfig,
    embedder: Embedder,
    *,
    resume: PromptEnsemble | None = None,
    on_round: Callable[[PromptEnsemble], None] | None = None,
    text: PromptEnsemble | None = None,
) -> Learned:
    """Boost on the embeddings of a task; of a `text` that is there already, learn the rest.

    A text may have classes without images. What the pool has on disk is deleted at the end, and kept if
    the work is interrupted. It is one job with one bar, shown if the embedder's are.
    """
    start = time.perf_counter()
    views = embeddings.side_by_side(slice(1, None))
    encoder, further = embedder.encoder, [one.embedder for one in embeddings.further]
    seen, labels = np.unique(task.learn.labels, return_inverse=True)
    shots = Shots.from_rows(embeddings.side_by_side(0), labels, views if views.size else None)
    grid, asked = embeddings.pool_rows.grid, boost_settings(settings, settings.views)
    folds: list[FoldTexts] = []
    encoders = 1 + len(further)
    taught = encoders if settings.residual else 0
    rows = (
        rows_of_fit(shots, asked, encoders, resume, taught)
        if text is None
        else taught * rows_of_residual(shots, asked, encoders, folds=False)
    )
    what = "composing" if text is None else "learning the residual"
    with learning(rows, what, shown=embedder.progress) as bar:
        quota = Quota(rows, bar.update)

        def round_done(so_far: PromptEnsemble, _: BoostRound) -> None:
            if on_round is not None:
                on_round(so_far)
            if len(so_far) < asked.rounds:
                bar.set_description_str(f"composing round {len(so_far) + 1} of {asked.rounds}")

        ensemble = text or fit_ensemble(
            shots,
            grid,
            embeddings.pool_rows.texts,
            asked,
            image_ids=image_ids(task.learn),
            encoder_id=encoder.id,
            encoder_fingerprint=encoder.fingerprint,
            encoder_scale=encoder.logit_scale,
            further_encoders=[LearntOn.of(one) for one in further],
            notes={"view_scale": settings.view_scale, "shots": settings.shots},
            resume=resume,
            on_round=round_done,
            on_folds=folds.append,
            on_rows=quota.use,
        )
        texts = folds[0] if folds else None
        heads: list[AnyHead] = []
        residuals: list[Residual | None] = []
        images: list[TaskEmbeddings | FurtherEmbeddings] = [embeddings, *embeddings.further]
        for number, one in enumerate((embedder, *further)):
            quiet = replace(one, progress=False)  # one job, one bar
            head, residual = embed_ensemble(ensemble, quiet), None
            if settings.residual and isinstance(head, LinearHead):
                head, residual = _with_residual(
                    head, ensemble, shots, grid, asked, seen, number, texts, quota.use
                )
                unseen = images[number].text_heads["zero-shot-80"].weights
                head = in_balance(head, images[number].learn[:, 0], task.learn.labels, unseen)
                keep_residual(head, one)
            heads.append(head)
            residuals.append(residual)
        quota.end()
    seconds = time.perf_counter() - start
    embeddings.pool_rows.release()
    return Learned(ensemble, heads[0], seconds, residuals[0], tuple(heads[1:]))


def _with_residual(
    head: LinearHead,
    ensemble: PromptEnsemble,
    shots: Shots,
    grid: GridPool,
    asked: BoostSettings,
    seen: Indices,
    encoder: int,
    folds: FoldTexts | None,
    on_rows: OnRows,
) -> tuple[LinearHead, Residual]:
    """Learn the residual of a text; `seen` are its classes that have images, and the shots' labels."""
    if len(seen) == len(head.class_names):
        return head_with_residual(
            head, ensemble, shots, grid, asked, encoder=encoder, folds=folds, on_rows=on_rows
        )
    names = tuple(head.class_names[k] for k in seen.tolist())
    part = replace(head, class_names=names, weights=head.weights[seen])
    prompts = tuple(grid.prompts[k] for k in seen.tolist())
    grid = replace(grid, templates=grid.templates[seen], prompts=prompts, keeper=None)
    _, residual = head_with_residual(
        part, ensemble, shots, grid, asked, encoder=encoder, on_rows=on_rows
    )
    residual = of_all_classes(residual, seen, len(head.weights))
    return head.with_residual(residual), residual


def measure(
    task: Task,
    embeddings: TaskEmbeddings,
    learned: Learned,
    settings: FitConfig,
    embedder: Embedder,
    inspection: Inspection,
) -> Results:
    """Compare what was learnt with the baselines, and gather all figures but the times.

    It is one job with one bar, shown if the embedder's are.
    """
    encoder, ensemble, pool = embedder.encoder, learned.ensemble, embeddings.pool
    head, held_out = learned.head, embeddings.held_out
    *text, ours = _own_guesses(embeddings, learned)
    images = RowImages({encoder.id: embeddings.learn})
    shots = FewShotSet(images, task.learn.labels, task.class_names)
    # What takes long: logistic regression, and answers after each of many rounds.
    views = rows_of_probe(shots.labels, embeddings.learn.shape[1])
    views += len(ensemble) * (len(task.learn) + len(task.held_out))
    with progress_bar(views, "measuring", "views", shown=embedder.progress) as bar:
        baselines = guess_baselines(
            *(shots, held_out, embeddings.text_heads, pool, encoder),
            seed=settings.seed,
            on_rows=bar.update,
        )
        staged = tuple(_stages(task, embeddings, ensemble, embedder, bar.update))
    guesses = [*baselines, *text, *_averaged(embeddings, learned, ours), ours]
    labels, learn_labels = task.held_out.labels, task.learn.labels
    shown = {
        guess.name: guess.held_out if task.kind is not None else guess.learn
        for guess in guesses
        if guess.name in ("zero-shot", OURS)
    }
    names, measured = task.class_names, task.measured
    words = shares_of_words(head, measured_rows(task, embeddings))
    return Results(
        task=_task_facts(task, settings),
        overlap=inspection.overlap,
        ensemble_fingerprint=ensemble.fingerprint,
        composed=Composed.of(ensemble),
        encoder=EncoderFacts(encoder.id, encoder.fingerprint, encoder.dim),
        pool=_pool_facts(pool, ensemble),
        residual=_residual_result(learned, task, words),
        methods=tuple(guess.result(labels, learn_labels, inspection.leaked) for guess in guesses),
        staged=staged,
        per_class=per_class(names, measured.labels, shown),
        confusions=confusions(names, measured.labels, shown[OURS], image_ids(measured), words),
        hardest=_hardest(task, ensemble, ours.learn, shares_of_words(head, embeddings.learn[:, 0])),
        transfers=_on_further(task, embeddings, learned),
    )


def _own_guesses(embeddings: TaskEmbeddings, learned: Learned) -> list[Guesses]:
    """Return what the text alone takes images for, if there is a residual; and what was learnt does."""
    head, held_out = learned.head, embeddings.held_out
    label = Composed.of(learned.ensemble).label
    heads = {OURS: (label, head)}
    if isinstance(head, LinearHead) and head.residual is not None:
        heads = {
            TEXT: (f"text alone: {label}", head.without_residual()),
            OURS: ("text + residual", head),
        }
    return [
        Guesses(
            name,
            label,
            one.predict_index(held_out),
            one.predict_index(embeddings.learn[:, 0]),
            one.predict_proba(held_out) if len(held_out) else None,
        )
        for name, (label, one) in heads.items()
    ]


def _pool_facts(pool: PromptPool, ensemble: PromptEnsemble) -> PoolFacts:
    """Sum up the sentences that there were, and which were chosen."""
    statistics = pool.statistics()
    return PoolFacts(
        fingerprint=pool.fingerprint,
        templates=statistics["templates"],
        prompts=statistics["prompts"],
        statistics=statistics,
        missing=tuple(pool.missing),
        unused=tuple(pool.unused),
        chosen=chosen_sources(pool, ensemble),
    )


def _averaged(embeddings: TaskEmbeddings, learned: Learned, ours: Guesses) -> list[Guesses]:
    """Return what all encoders say together, if there are several: the mean of their probabilities."""
    if not learned.further_heads:
        return []
    head = AveragedHead((learned.head, *learned.further_heads))
    every: list[TaskEmbeddings | FurtherEmbeddings] = [embeddings, *embeddings.further]
    held_out, learn = [one.held_out for one in every], [one.learn[:, 0] for one in every]
    return [
        Guesses(
            AVERAGED,
            f"{ours.label}, average of {len(every)} encoders",
            head.predict_index(held_out),
            head.predict_index(learn),
            head.predict_proba(held_out) if len(held_out[0]) else None,
        )
    ]


def _on_further(
    task: Task, embeddings: TaskEmbeddings, learned: Learned
) -> tuple[TransferResult, ...]:
    """Measure the text on the other encoders that it was learnt on, beside what reads texts alone."""
    return tuple(
        TransferResult(
            one.embedder.id,
            {
                name: accuracy(head.predict_index(one.held_out), task.held_out.labels)
                for name, head in {
                    **{name: one.text_heads[name] for name in TEXT_BASELINES},
                    OURS: ours,
                }.items()
            },
            learnt_on=True,
        )
        for one, ours in zip(embeddings.further, learned.further_heads, strict=True)
    )


def measured_rows(task: Task, embeddings: TaskEmbeddings) -> UnitRows:
    """Return the embeddings of the images that figures are about."""
    return embeddings.learn[:, 0] if task.kind is None else embeddings.held_out


def shares_of_words(head: AnyHead, rows: UnitRows) -> NDArray[np.float64] | None:
    """Return how much of each answer is words; None where all of it is, as there is no residual."""
    if not isinstance(head, LinearHead) or head.residual is None:
        return None
    return word_shares(head, rows)


def _residual_result(
    learned: Learned, task: Task, words: NDArray[np.float64] | None
) -> ResidualResult | None:
    """Sum up how much of the answers is words."""
    residual, labels = learned.residual, task.measured.labels
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
    embeddings: TaskEmbeddings,
    ensemble: PromptEnsemble,
    embedder: Embedder,
    on_rows: OnRows,
) -> Iterator[StageResult]:
    """Measure the classifier after each round."""
    heads = EmbeddedRounds.of(ensemble, embedder).stages()
    for number, (head, item) in enumerate(zip(heads, ensemble.rounds, strict=True), start=1):
        yield StageResult(
            number,
            accuracy(head.predict_index(embeddings.held_out), task.held_out.labels),
            float(np.mean(head.predict_index(embeddings.learn[:, 0]) == task.learn.labels)),
            item.error,
            item.template_error,
        )
        on_rows(len(task.learn) + len(task.held_out))


def _hardest(
    task: Task,
    ensemble: PromptEnsemble,
    guesses: Indices,
    words: NDArray[np.float64] | None,
) -> tuple[HardImage, ...]:
    """List the learning images by their weight at the end of the fit, heaviest first."""
    ids = image_ids(task.learn)
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
    """Return where each chosen prompt of each class comes from; for a concatenation, its sentence."""
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
