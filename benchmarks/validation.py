"""Why ensemble.json has checks of its own: the same faults, found by msgspec and by promptboost.

Run ``python -m benchmarks.validation`` in the repository. The faults are those of
``tests/model/test_ensemble_file.py``, each put into a good file, and one key that stands twice. The types
below are as strict as msgspec's can be. A place is unnamed where the message shows a key as ``[...]``: who
edits the file by hand would look for it among all prompts. The last lines are the time to read a file.
"""

import json
import timeit
from typing import Annotated, Any, Literal

import msgspec

from promptboost.errors import FileFormatError
from promptboost.model import PromptEnsemble
from tests.model.ensembles import pets
from tests.model.test_ensemble_file import BEYOND_STRUCTURE, STRUCTURE

Text = Annotated[str, msgspec.Meta(pattern=r"\S")]
Copies = Annotated[int, msgspec.Meta(ge=1)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
Bank = Annotated[dict[Text, Copies], msgspec.Meta(min_length=1)]
Scalar = str | int | float | bool | None


class RoundFile(msgspec.Struct, forbid_unknown_fields=True):
    """One round as it is in the file."""

    template: Text
    banks: dict[Text, Bank]
    error: float
    template_error: float
    vote: Annotated[float, msgspec.Meta(ge=1, le=1)] = 1.0
    composer: Text = "greedy"
    objective: float | None = None
    gap: float | None = None


class EnsembleFile(msgspec.Struct, forbid_unknown_fields=True):
    """The whole file."""

    format: Literal["promptboost-ensemble"]
    schema_version: Literal[1]
    class_names: Annotated[list[Text], msgspec.Meta(min_length=1)]
    rounds: Annotated[list[RoundFile], msgspec.Meta(min_length=1)]
    algorithm: Literal["samme.r"] = "samme.r"
    temperature: Positive = 1.0
    logit_scale: Positive | None = None
    encoder_id: str | None = None
    encoder_fingerprint: str | None = None
    encoder_logit_scale: Positive | None = None
    pool_fingerprint: str | None = None
    settings: dict[str, Scalar] = {}
    versions: dict[str, str] = {}
    history: list[str] = []
    sample_weights: dict[str, float] = {}


def faulty_files() -> list[str]:
    """Return the good file with one fault each."""
    files = []
    for change, _ in STRUCTURE + BEYOND_STRUCTURE:
        record = json.loads(pets().to_json(sample_weights=True))
        change(record)
        files.append(json.dumps(record))
    good = pets().to_json()
    key = next(iter(pets().rounds[0].banks["cat"]))
    line = f"{json.dumps(key)}: {pets().rounds[0].banks['cat'][key]}"
    assert line in good
    return [*files, good.replace(line, f"{line}, {line}", 1)]


def refusal(text: str, *, ours: bool) -> str | None:
    """Return what a reader says of a file; None if it takes it."""
    try:
        if ours:
            PromptEnsemble.from_json(text)
        else:
            msgspec.json.decode(text, type=EnsembleFile)
    except (FileFormatError, msgspec.MsgspecError, UnicodeError) as error:
        return str(error)
    return None


def main() -> None:
    """Print what each reader does with the faults, and what a good file costs."""
    files = faulty_files()
    good = pets().to_json()
    print(
        f"| {len(files)} faulty files | accepted | refused, place not named | ms to read a good one |"
    )
    print("|---|--:|--:|--:|")
    readers: dict[str, Any] = {
        "msgspec": lambda: msgspec.json.decode(good, type=EnsembleFile),
        "promptboost": lambda: PromptEnsemble.from_json(good),
    }
    for name, read in readers.items():
        refusals = [refusal(text, ours=name == "promptboost") for text in files]
        accepted = sum(said is None for said in refusals)
        unnamed = sum("[...]" in said for said in refusals if said is not None)
        read()
        ms = 1000 * min(timeit.repeat(read, number=20, repeat=5)) / 20
        print(f"| {name} | {accepted} | {unnamed} | {ms:.2f} |")


if __name__ == "__main__":
    main()
