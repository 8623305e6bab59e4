"""The k-shot draw of the CoOp protocol, picture for picture."""

import random
from collections.abc import Hashable, Mapping, Sequence

from promptboost.data.benchmarks.split import Item
from promptboost.data.dataset import Dataset
from promptboost.errors import DataError, SettingError

__all__ = ["coop_draw", "coop_few_shot"]

#: The protocol draws no more than this of the validation pictures of a class.
MAX_VAL_SHOTS = 4


def coop_draw(items: Mapping[str, Sequence[Item]], shots: int, seed: int) -> dict[str, list[Item]]:
    """Draw the shots that papers which follow the CoOp protocol learnt from.

    One generator, Python's own, is seeded once. It draws ``shots`` pictures of each class of
    ``train`` without replacement, then up to four of each class of ``val``. Classes come in the
    order in which the split file first names them; a class that has fewer gives all it has. So the
    result depends on the order of the file, and draws of more shots do not contain those of fewer.

    With the protocol's split files this gives the released lists of seeds 1 to 3 and 1, 2, 4, 8 and
    16 shots. There are three exceptions. ImageNet has no split file: the draw depends on the order
    in which a file system lists a folder, so read a list of shots instead. Released lists for
    Food101 and FGVCAircraft by others were drawn from other splits.

    Parameters
    ----------
    items : mapping of str to sequence of Item
        The pictures of ``train`` and perhaps ``val``, in the order of the split file.
    shots : int
        How many of each class.
    seed : int
        1, 2 and 3 in the protocol.

    Returns
    -------
    dict of str to list of Item
        What is drawn of ``train`` and, where there is one, of ``val``.

    Examples
    --------
    >>> items = [Item(f"{number}.jpg", number % 2, "ab"[number % 2]) for number in range(8)]
    >>> [item.path for item in coop_draw({"train": items}, shots=2, seed=1)["train"]]
    ['2.jpg', '4.jpg', '1.jpg', '3.jpg']
    """
    drawn = _drawn({split: [item.label for item in items[split]] for split in items}, shots, seed)
    return {split: [items[split][index] for index in indices] for split, indices in drawn.items()}


def coop_few_shot(dataset: Dataset, shots: int | None, seed: int) -> tuple[Dataset, Dataset]:
    """Divide a benchmark as the protocol does: shots drawn from ``train``, all of ``test`` held out.

    Parameters
    ----------
    dataset : Dataset
        A benchmark, as :func:`promptboost.data.load_data` reads it.
    shots : int or None
        How many of each class to learn from; None for all there are.
    seed : int
        See :func:`coop_draw`.

    Examples
    --------
    >>> from promptboost.data import Picture
    >>> pictures = [Picture(f"{i}.jpg", "ab"[i % 2], b"", "train") for i in range(8)]
    >>> data = Dataset.of([*pictures, Picture("9.jpg", "a", b"", "test")])
    >>> learn, held_out = coop_few_shot(data, 2, seed=1)
    >>> [picture.id for picture in learn.pictures], len(held_out)
    (['2.jpg', '4.jpg', '1.jpg', '3.jpg'], 1)
    """
    train = dataset.of_split("train")
    held_out = dataset.of_split("test")
    if shots is None:
        return train, held_out
    labels = [picture.label for picture in train.pictures]
    return train.subset(_drawn({"train": labels}, shots, seed)["train"]), held_out


def _drawn(labels: Mapping[str, Sequence[Hashable]], shots: int, seed: int) -> dict[str, list[int]]:
    if shots < 1 or seed < 0:
        raise SettingError(f"shots is {shots} and seed {seed}; try shots 1 or more, seed 0 or more")
    if not labels.get("train"):
        raise DataError("there are no pictures in the split train to draw from")
    chance = random.Random(seed)
    drawn = {"train": _of_each_class(labels["train"], shots, chance)}
    # The generator goes on where train left it, so val cannot be drawn alone or first.
    if "val" in labels:
        drawn["val"] = _of_each_class(labels["val"], min(shots, MAX_VAL_SHOTS), chance)
    return drawn


def _of_each_class(labels: Sequence[Hashable], shots: int, chance: random.Random) -> list[int]:
    members: dict[Hashable, list[int]] = {}
    for index, label in enumerate(labels):
        members.setdefault(label, []).append(index)
    return [
        index
        for indices in members.values()
        for index in (chance.sample(indices, shots) if len(indices) >= shots else indices)
    ]
