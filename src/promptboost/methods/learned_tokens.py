"""CoOp and PEZ: learned tokens before the class names, the same for all classes."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import numpy as np

from promptboost.encoders.base import DifferentiableText, Encoder, open_tower
from promptboost.errors import LabelError, SettingError
from promptboost.methods.base import Bank, FewShotSet, Group, Method, Transfer, check_numbers
from promptboost.methods.fitted import LinearClassifier, TextClassifier
from promptboost.pool import PromptPool, fill

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_SPREAD = 0.02
_FIRST_RATE = 1e-5
_MOMENTUM = 0.9
_DECAY = 5e-4


@dataclass(frozen=True)
class TrainingRows:
    """The rows of the images and their crops, (n, 1 + V, D), as tensors, and the encoder's scale."""

    views: "Tensor"
    labels: "Tensor"
    scale: float

    @classmethod
    def of(cls, shots: FewShotSet, encoder: Encoder, device: "torch.device") -> Self:
        """Take the rows of a few-shot set."""
        import torch

        if len(shots.labels) == 0:
            raise LabelError("there are no images to learn from")
        views = torch.from_numpy(np.array(shots.images.views(encoder), dtype=np.float32))
        labels = torch.from_numpy(np.array(shots.labels, dtype=np.int64))
        return cls(views.to(device), labels.to(device), encoder.logit_scale)

    def batches(self, size: int, rng: np.random.Generator) -> Iterator[tuple["Tensor", "Tensor"]]:
        """Return rows and labels of one epoch: each image once, as one of its views at random.

        An incomplete last batch is left out, unless it is the only one: its images would count more.
        """
        import torch

        count = len(self.labels)
        order = rng.permutation(count)
        views = rng.integers(self.views.shape[1], size=count)
        for begin in self._begins(size):
            one = torch.from_numpy(order[begin : begin + size]).to(self.labels.device)
            view = torch.from_numpy(views[begin : begin + size]).to(self.labels.device)
            yield self.views[one, view], self.labels[one]

    def steps(self, size: int) -> int:
        """Return how many batches an epoch has."""
        return len(self._begins(size))

    def _begins(self, size: int) -> range:
        return range(0, max(len(self.labels) - size, 0) + 1, size)

    def loss(self, class_rows: "Tensor", rows: "Tensor", labels: "Tensor") -> "Tensor":
        """Return the cross-entropy of the encoder's own softmax."""
        import torch

        return torch.nn.functional.cross_entropy(self.scale * rows @ class_rows.T, labels)

    def whole_loss(self, class_rows: "Tensor") -> float:
        """Return the mean loss over all images and all their views."""
        import torch

        with torch.no_grad():
            flat = self.views.flatten(0, 1)
            labels = self.labels.repeat_interleave(self.views.shape[1])
            return float(self.loss(class_rows.detach(), flat, labels))


def cosine_rate(epoch: int, epochs: int, rate: float, first: float) -> float:
    """Return the learning rate of an epoch: `first` in the first one, then half a cosine down to 0."""
    return first if epoch == 0 else rate * (1 + float(np.cos(np.pi * (epoch - 1) / epochs))) / 2


class Descended(Protocol):
    """A method that learns by :func:`descend`."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def learning_rate(self) -> float:
        """The rate of the second epoch."""


def descend(
    method: Descended,
    learned: Sequence["Tensor"],
    loss: Callable[["Tensor", "Tensor"], "Tensor"],
    batches: Callable[[int], Iterable[tuple["Tensor", "Tensor"]]],
    epochs: int,
) -> Iterator[float]:
    """Run SGD with the settings of CoOp's and PromptSRC's authors; yield the mean loss of each epoch."""
    import torch

    optimizer = torch.optim.SGD(learned, momentum=_MOMENTUM, weight_decay=_DECAY)
    for epoch in range(epochs):
        rate = cosine_rate(epoch, epochs, method.learning_rate, _FIRST_RATE)
        optimizer.param_groups[0]["lr"] = rate
        losses = []
        for batch in batches(epoch):
            value = loss(*batch)
            for tensor, slope in zip(learned, torch.autograd.grad(value, learned), strict=True):
                tensor.grad = slope
            optimizer.step()
            losses.append(value.item())
        mean = float(np.mean(losses))
        if not (np.isfinite(mean) and all(bool(tensor.isfinite().all()) for tensor in learned)):
            raise SettingError(
                f"the loss of {method.name} is no longer a number in epoch {epoch + 1} of {epochs}: try "
                f"a lower rate, such as {method.name}?learning_rate={method.learning_rate / 10:g}"
            )
        yield mean


def ending(name: str) -> str:
    """Return what follows the learned tokens of a class: its name and a full stop."""
    return fill("{}.", name)


@dataclass(frozen=True)
class PromptedClasses:
    """The prompts ``[start] [learned tokens] [class name] [.] [end]`` of all classes.

    `endings` are the token embeddings of each distinct class name and what follows, (U, S, d), padded
    to the longest; `lengths` says how many count, and `which` which one a class has.
    """

    tower: DifferentiableText
    start: "Tensor"
    endings: "Tensor"
    lengths: "Tensor"
    which: "Tensor"

    @classmethod
    def of(cls, tower: DifferentiableText, class_names: Sequence[str], tokens: int) -> Self:
        """Tokenize the class names; raise a SettingError if the tower does not read so many tokens."""
        import torch

        texts = list(dict.fromkeys(map(ending, class_names)))
        tokenized = ([*tower.tokenize(text), *tower.end] for text in texts)
        tokens_of = [torch.tensor(ids, dtype=torch.long) for ids in tokenized]
        lengths = torch.tensor([len(ids) for ids in tokens_of])
        room = tower.context_length - len(tower.start) - int(lengths.max())
        if tokens > room:
            longest = texts[int(lengths.argmax())]
            raise SettingError(
                f"{tokens} learned tokens and {longest!r} are more than the {tower.context_length} "
                f"tokens this encoder reads; at most {room} can be learned"
            )
        vocabulary = tower.vocabulary.float()
        ids = torch.nn.utils.rnn.pad_sequence(tokens_of, batch_first=True).to(vocabulary.device)
        which = torch.tensor([texts.index(ending(name)) for name in class_names])
        return cls(
            tower,
            vocabulary[list(tower.start)],
            vocabulary[ids],
            lengths.to(vocabulary.device),
            which.to(vocabulary.device),
        )

    def rows(self, learned: "Tensor") -> "Tensor":
        """Return one row of length one a class, (K, D), differentiable in the learned tokens (M, d)."""
        import torch

        beginning = torch.cat([self.start, learned])
        return self.tower.encode(beginning, self.endings, self.lengths)[self.which]


def nearest(vectors: "Tensor", vocabulary: "Tensor") -> tuple["Tensor", "Tensor"]:
    """Return for each vector the row of a vocabulary, of length one, with the highest cosine, and that."""
    import torch

    with torch.no_grad():
        units = torch.nn.functional.normalize(vectors, dim=-1)
        best: Any = (units @ vocabulary.T).max(dim=1)
    return best.indices, best.values


@dataclass(frozen=True)
class CoOp(Method):
    """Context vectors shared by all classes, with the class name at the end; re-implemented.

    Plain stochastic gradient descent with the authors' settings, in single precision. They crop
    each image at random whenever it is seen; here a view is drawn among the cached ones (the
    image itself and its crops). The model of the last step is kept. As theirs does, an epoch leaves
    an incomplete last batch out.

    Parameters
    ----------
    context_tokens, batch : int
        How many vectors, and images in a step.
    epochs : int or None
        None for the authors' choice: 50 with one image a class, 100 below eight, then 200; the
        class with the most images counts. (They train 50 epochs on ImageNet whatever the shots.)
    learning_rate : float
        Of the second epoch; the first has 0.00001, and from the second on it falls to zero.
    seed : int
        Decides the first vectors, the order of the images and their views.
    """

    name: ClassVar[str] = "coop"
    group: ClassVar[Group] = Group.GRADIENT
    carries_over: ClassVar[Transfer] = Transfer.EMULATED

    context_tokens: int = 16
    epochs: int | None = None
    batch: int = 32
    learning_rate: float = 0.002
    seed: int = 0

    def __post_init__(self) -> None:
        counts = ("context_tokens", "batch", "epochs")
        check_numbers(self, counts=counts, positive=("learning_rate",))

    def check(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> None:
        """Check that gradients go through the encoder, and that it reads so many tokens."""
        PromptedClasses.of(open_tower(encoder), shots.class_names, self.context_tokens)

    def fit(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> LinearClassifier:
        """Learn the context vectors."""
        import torch

        tower = open_tower(encoder)
        classes = PromptedClasses.of(tower, shots.class_names, self.context_tokens)
        data = TrainingRows.of(shots, encoder, classes.start.device)
        draw = torch.Generator().manual_seed(self.seed)
        start = _SPREAD * torch.randn(self.context_tokens, classes.start.shape[1], generator=draw)
        context = start.to(classes.start.device).requires_grad_()
        rng = np.random.default_rng(self.seed)
        losses = list(
            descend(
                self,
                [context],
                lambda rows, labels: data.loss(classes.rows(context), rows, labels),
                lambda _: data.batches(self.batch, rng),
                self._epochs(shots),
            )
        )
        context = context.detach()
        with torch.no_grad():
            rows = encoder.logit_scale * classes.rows(context)
        return LinearClassifier(
            self.origin(shots, encoder),
            rows.cpu().numpy(),
            np.zeros(len(rows), dtype=np.float32),
            details={"loss_by_epoch": losses, "nearest_words": _nearest_words(context, tower)},
            arrays={"context": context.cpu().numpy()},
        )

    def _epochs(self, shots: FewShotSet) -> int:
        if self.epochs is not None:
            return self.epochs
        # Not the mean: a class with an image too few would halve the training of all.
        a_class = int(np.bincount(shots.labels).max())
        return 50 if a_class < 2 else 100 if a_class < 8 else 200


def _nearest_words(context: "Tensor", tower: DifferentiableText) -> list[dict[str, Any]]:
    """Name the token nearest to each vector, and its cosine."""
    import torch

    vocabulary = tower.vocabulary[tower.allowed].float()
    positions, cosines = nearest(context, torch.nn.functional.normalize(vocabulary, dim=-1))
    ids = tower.allowed[positions].tolist()
    return [
        {"word": tower.decode([token]), "cosine": round(cosine, 4)}
        for token, cosine in zip(ids, cosines.tolist(), strict=True)
    ]


@dataclass(frozen=True)
class PEZ(Method):
    """Real tokens before the class names, the same for all classes; re-implemented.

    The released code inverts images to prompts. For classification the loss is, as in the paper
    on boosting, the cross-entropy of the few-shot set, and the tokens stand before the class name. A
    step projects each vector to the nearest token by its cosine, takes the gradient there, and
    applies it to the vector. The tokens with the least loss over all images and their views are
    decoded, and the classifier is what the encoder reads when it tokenizes that text again.

    That paper trains 200 epochs; the default here is the 3000 steps of the released code. Only tokens
    that can be written are taken: neither special ones nor parts of a character. An image is seen as
    one of its cached views.

    Parameters
    ----------
    tokens, steps, batch : int
        How many tokens, gradient steps, and images in a step.
    epochs : int or None
        How often to go through the images, instead of a number of steps.
    learning_rate, weight_decay : float
        Of AdamW.
    seed : int
        Decides the first tokens, the order of the images and their views.
    """

    name: ClassVar[str] = "pez"
    group: ClassVar[Group] = Group.TEXT
    carries_over: ClassVar[Transfer] = Transfer.TEXT

    tokens: int = 16
    steps: int = 3000
    batch: int = 32
    epochs: int | None = None
    learning_rate: float = 0.1
    weight_decay: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        counts = ("tokens", "steps", "batch", "epochs")
        check_numbers(self, counts=counts, positive=("learning_rate",), from_zero=("weight_decay",))

    def check(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> None:
        """Check that gradients go through the encoder, and that it reads so many tokens."""
        PromptedClasses.of(open_tower(encoder), shots.class_names, self.tokens)

    def fit(self, shots: FewShotSet, pool: PromptPool, encoder: Encoder) -> TextClassifier:
        """Search the tokens, then let the encoder read their text."""
        import torch

        tower = open_tower(encoder)
        classes = PromptedClasses.of(tower, shots.class_names, self.tokens)
        data = TrainingRows.of(shots, encoder, classes.start.device)
        tokens, best = self._search(classes, data)
        text = tower.decode(tokens)
        prompts = [f"{text} {ending(name)}" for name in shots.class_names]
        rows = torch.from_numpy(np.array(encoder.encode_texts(prompts))).to(classes.start.device)
        again = {tuple(tower.tokenize(prompt)) for prompt in prompts}
        meant = {(*tokens, *tower.tokenize(ending(name))) for name in shots.class_names}
        details = {
            "prompt": text,
            "tokens": tokens,
            "same_tokens": again == meant,
            "loss_of_tokens": best["loss"],
            "loss_of_text": data.whole_loss(rows),
            "best_step": best["step"],
        }
        banks: tuple[Bank, ...] = tuple({prompt: 1.0} for prompt in prompts)
        return TextClassifier(self.origin(shots, encoder), banks, details=details)

    def _search(
        self, classes: PromptedClasses, data: TrainingRows
    ) -> tuple[list[int], dict[str, Any]]:
        """Return the tokens with the least loss over the whole few-shot set, and that loss."""
        rates = self.learning_rate, self.weight_decay
        hard = HardTokens(classes.tower, self.tokens, *rates, self.seed)
        rng = np.random.default_rng(self.seed)
        tokens: list[int] = []
        best: dict[str, Any] = {"loss": np.inf, "step": 0}
        batches = data.batches(self.batch, rng)
        steps = self.steps
        if self.epochs is not None:
            steps = self.epochs * data.steps(self.batch)
        for step in range(steps):
            batch = next(batches, None)
            if batch is None:
                batches = data.batches(self.batch, rng)
                batch = next(batches)
            projected = hard.project()
            class_rows = classes.rows(projected)
            # All rows are cached: the loss over everything costs far less than the text tower.
            loss = data.whole_loss(class_rows)
            if loss < best["loss"]:
                tokens, best = hard.tokens, {"loss": loss, "step": step}
            hard.step(data.loss(class_rows, *batch), projected)
        if not tokens:
            raise SettingError(
                "the loss of pez is not a number with any tokens; are the images' rows finite?"
            )
        return tokens, best


class HardTokens:
    """Vectors that stand for the tokens nearest to them, and learn from gradients taken there.

    They begin at random tokens. `tokens` are those of the last projection.
    """

    def __init__(
        self,
        tower: DifferentiableText,
        count: int,
        learning_rate: float,
        weight_decay: float,
        seed: int,
    ) -> None:
        import torch

        self._allowed = tower.allowed
        self._vocabulary = tower.vocabulary[self._allowed].float()
        self._units = torch.nn.functional.normalize(self._vocabulary, dim=-1)
        draw = torch.Generator().manual_seed(seed)
        first = torch.randint(len(self._allowed), (count,), generator=draw)
        self.vectors = self._vocabulary[first.to(self._vocabulary.device)].clone()
        self.vectors.requires_grad_()
        self.tokens: list[int] = []
        self._optimizer = torch.optim.AdamW(
            [self.vectors], lr=learning_rate, weight_decay=weight_decay
        )

    def project(self) -> "Tensor":
        """Return the embeddings of the nearest tokens, as what a gradient can be taken of."""
        positions, _ = nearest(self.vectors, self._units)
        self.tokens = self._allowed[positions].tolist()
        return self._vocabulary[positions].requires_grad_()

    def step(self, loss: "Tensor", projected: "Tensor") -> None:
        """Apply the gradient at the projected embeddings to the vectors."""
        import torch

        (self.vectors.grad,) = torch.autograd.grad(loss, projected)
        self._optimizer.step()
