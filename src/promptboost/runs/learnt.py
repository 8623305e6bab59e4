"""Which pictures a run learnt from: known by their content, wherever they lie now."""

from promptboost.data import Dataset
from promptboost.runs.folder import RunFolder
from promptboost.runs.metrics import read_metrics

__all__ = ["learnt_positions"]


def learnt_positions(run: RunFolder, data: Dataset) -> list[int] | None:
    """Give the positions of the pictures that a run learnt from, byte for byte the same.

    A picture that was saved anew, smaller for instance, is not recognised.

    Returns
    -------
    list of int, or None
        None if the run does not say: its figures are gone, or an older promptboost wrote them.
    """
    if not run.metrics_path.exists():
        return None
    learnt = read_metrics(run.metrics_path)["task"].get("learn_digests")
    if learnt is None:
        return None
    known = set(learnt)
    return [i for i, picture in enumerate(data.pictures) if picture.digest().hex() in known]
