"""Where a model runs."""

from typing import TYPE_CHECKING

from promptboost.errors import EncoderError

if TYPE_CHECKING:
    import torch

__all__ = ["pick_device"]


def pick_device(device: str | None) -> "torch.device":
    """Take the device asked for, or the fastest there is: CUDA, then MPS, then the processor.

    Parameters
    ----------
    device : str or None
        As torch spells it: ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ``"mps"``; None picks one.

    Raises
    ------
    EncoderError
        If there is no such device.
    """
    import torch

    there = ["cpu"]
    if torch.backends.mps.is_available():
        there.insert(0, "mps")
    if torch.cuda.is_available():
        there.insert(0, "cuda")
    if device is None:
        return torch.device(there[0])
    there += [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    if device not in there:
        raise EncoderError(
            f"There is no device {device!r} here. Devices to ask for: {', '.join(there)}; "
            "without a device the first of them is used"
        )
    return torch.device(device)
