"""The tables and figures of the paper as data.

Each number is a :class:`Slot`: its row and column, method, shots, encoder and data sets.
"""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from itertools import chain
from typing import Any, NamedTuple

from promptboost.config import MOST_CROPS, FitConfig
from promptboost.encoders.registry import MODELS
from promptboost.errors import SettingError
from promptboost.methods import make_method
from promptboost.paper.published import AVERAGE, Entry, entries, find_entry, listed

#: The paper's numbers of shots, and its draws.
SHOTS = (1, 2, 4, 8, 16)
SEEDS = (1, 2, 3)
#: Cached crops per image from which a round draws, unless it uses more.
VIEWS = 32

#: The encoder of the fits where the paper names none.
VIT_B = "ViT-B-32/openai"
#: The paper's names of our methods; ``+eft`` is for emulated transfer.
TITLES = listed().methods
ZERO_SHOT = ("zero-shot", "dclip", "cupl")
_SETTINGS = tomllib.loads((resources.files(__package__) / "settings.toml").read_text("utf-8"))
# The smallest share of an image that a crop keeps; the paper states none for its own.
_CROPS = {"coop": 0.08, "pez": 0.08}
#: What remains different from the authors' programs, by method.
DIFFERENCES: dict[str, str] = _SETTINGS.pop("differences")


def crop_scale(spelling: str) -> float:
    """Return the smallest share of an image that the crops of a method keep."""
    return _CROPS.get(spelling.partition("?")[0], float(FitConfig().view_scale))


def _published(method: str, dataset: str, source: str) -> dict[str, str]:
    """Return the published settings of a method."""
    kind = f"{method}-{source.partition('/')[0]}"
    table = _SETTINGS.get(kind, _SETTINGS.get(method, {}))
    return _parsed(table.get(dataset, table.get("all", "")))


def _parsed(query: str) -> dict[str, str]:
    return dict(setting.partition("=")[::2] for setting in query.split("&") if setting)


@dataclass(frozen=True)
class Slot:
    """One number: its position in the table, and the results it is the mean of."""

    row: tuple[str, ...]
    column: str
    method: str  # a key of TITLES
    shots: int  # 0 for zero-shot methods
    target: str  # the encoder to measure with, or a group
    encoders: tuple[str, ...]  # the target, or the members of the group
    datasets: tuple[str, ...]
    dataset: str = AVERAGE  # the data set, if there is only one
    query: str = ""  # settings of the method
    setting: str = ""  # the same, in the format of the published numbers
    rounds: int | None = None  # measure after this many rounds of the same fit
    on_shots: bool = False  # measure on the training images
    changed: tuple[str, ...] = ()  # differences from the paper's experiment

    def spelling(self, dataset: str, source: str) -> str:
        """Return the spelling of the method with the published settings for a data set and encoder."""
        base = self.method.removesuffix("+eft")
        published, given = _published(base, dataset, source), _parsed(self.query)
        if "steps" in given:
            published.pop("epochs", None)
        query = "&".join(f"{name}={value}" for name, value in (published | given).items())
        return f"{base}?{query}" if query else base

    @property
    def rounds_of_fit(self) -> int:
        """Number of rounds of its fit, except on ImageNet."""
        return int(self._settings.get("rounds", 50))

    @property
    def views_per_round(self) -> int:
        """Number of crops per image in a round of boosting."""
        return int(self._settings.get("views_per_round", 4)) if self.method == "tpb" else 0

    @property
    def _settings(self) -> dict[str, str]:
        return _parsed(self.query)


class CellSpec(NamedTuple):
    """One fit, measured on one encoder."""

    dataset: str
    method: str  # with its settings
    shots: int
    seed: int
    on: str  # encoder of the measurement
    source: str  # encoder of the fit
    pair: tuple[str, str] | None = None  # the two classes, if not all

    @property
    def home(self) -> "CellSpec":
        """The cell of the fit; itself for zero-shot methods."""
        return self._replace(on=self.source) if make_method(self.method).learns else self


@dataclass(frozen=True)
class PaperPlan:
    """A table or figure with its numbers."""

    entry: Entry
    source: str  # encoder of the fits
    slots: tuple[Slot, ...]
    seeds: tuple[int, ...]
    at_hand: str = ""  # which encoders replace the paper's

    @property
    def name(self) -> str:
        """Name on the command line."""
        return self.entry.name

    @property
    def datasets(self) -> tuple[str, ...]:
        """The required data sets, in order."""
        return tuple(dict.fromkeys(name for slot in self.slots for name in slot.datasets))

    @property
    def encoders(self) -> tuple[str, ...]:
        """The required encoders, that of the fits first."""
        on = (name for slot in self.slots for name in slot.encoders)
        return tuple(dict.fromkeys((self.source, *on)))

    @property
    def methods(self) -> tuple[str, ...]:
        """The required methods, by the paper's names."""
        return tuple(dict.fromkeys(TITLES[slot.method] for slot in self.slots))

    @property
    def shots(self) -> tuple[int, ...]:
        """The required numbers of shots."""
        return tuple(sorted({slot.shots for slot in self.slots} - {0}))

    def cells_of(self, slot: Slot) -> list[list[CellSpec]]:
        """Return the cells of a number: those of all seeds, by data set and encoder."""
        return [
            [
                CellSpec(dataset, spelling, slot.shots, seed, on, self.source, self.entry.pair)
                for seed in (self.seeds if slot.shots else (0,))
            ]
            for dataset in slot.datasets
            for spelling in [slot.spelling(dataset, self.source)]
            for on in slot.encoders
        ]

    def cells(self) -> list[CellSpec]:
        """Return the required cells, each once."""
        by_seed = chain.from_iterable(self.cells_of(slot) for slot in self.slots)
        return list(dict.fromkeys(chain.from_iterable(by_seed)))


#: Titles and fields of slots, for the rows and the columns of a table.
Fields = dict[str, Any]
Rows = list[tuple[tuple[str, ...], Fields]]
Columns = list[tuple[str, Fields]]

_FAMILIES = {record.name: record.family for record in MODELS}
_TARGETS = {
    **listed().encoders,
    **{
        name: f"{group}: {_FAMILIES[name]}"
        for group, names in listed().groups.items()
        for name in names
    },
}
_BY_DATASET: Columns = [
    *((title, {"datasets": (name,), "dataset": name}) for name, title in listed().datasets.items()),
    ("Avg.", {}),
]
_BY_SHOTS: Columns = [(str(k), {"shots": k}) for k in SHOTS]


def _layout(entry: Entry, source: str) -> tuple[Rows, Columns]:
    """Return the rows and the columns of an entry."""
    variants = [
        (
            variant.title,
            {"query": variant.query, "setting": variant.setting, "rounds": variant.rounds},
        )
        for variant in entry.variants
    ]
    if entry.name.startswith("main"):
        places = [("ZS", name, 0) for name in ZERO_SHOT]
        places += [
            (f"{k} shot", m, k) for k in entry.shots for m in entry.methods if m not in ZERO_SHOT
        ]
        return [
            ((where, TITLES[name]), {"method": name, "shots": k}) for where, name, k in places
        ], _BY_DATASET
    if entry.name == "view-rounds":
        return [
            ((views, images), {**fields, "on_shots": images == "Train"})
            for views, fields in variants
            for images in ("Train", "Test")
        ], [(str(n), {"rounds": n}) for n in range(1, entry.rounds[0] + 1)]
    if entry.pair is not None:
        return [(("TPB",), {"query": f"rounds={entry.rounds[0]}"})], [("accuracy", {})]
    if entry.shots == SHOTS and variants:
        return [((title,), fields) for title, fields in variants], _BY_SHOTS

    def title(target: str) -> str:
        name = _TARGETS.get(target, target)  # groups have their own
        if source not in entry.targets or ":" in name:
            return name
        return f"{name} ({'source' if target == source else 'target'})"

    if entry.shots == SHOTS:
        methods = entry.methods if entry.kind == "table" else entry.methods[::-1]
        return [
            ((title(target), TITLES[method]), {"target": target, "method": method})
            for target in entry.targets
            for method in methods
            if not (method == "coop" and target != source)  # it does not fit another encoder
        ], _BY_SHOTS
    columns: Columns = [(TITLES[name], {"method": name}) for name in entry.methods]
    if variants:  # of the last method, TPB
        columns = [*columns[:-1], *variants]
    if len(entry.shots) > 1:
        return [((str(k),), {"shots": k}) for k in entry.shots], columns
    return [((title(target),), {"target": target}) for target in entry.targets], columns


def _plan(entry: Entry) -> PaperPlan:
    """Return the plan of an entry: a slot for each row and column, by default of boosting."""
    source = (*entry.sources, VIT_B)[0]
    rows, columns = _layout(entry, source)
    usual: Fields = {
        "method": "tpb",
        "shots": entry.shots[-1],
        "target": source,
        "datasets": entry.datasets,
        "dataset": AVERAGE if len(entry.datasets) > 1 else entry.datasets[0],
    }
    slots = []
    for row, row_fields in rows:
        for column, column_fields in columns:
            fields = {**usual, **row_fields, **column_fields}
            if fields["method"] in ZERO_SHOT:  # the same for any number
                fields["shots"] = 0
            encoders = listed().groups.get(fields["target"], (fields["target"],))
            slots.append(Slot(row, column, encoders=encoders, **fields))
    return PaperPlan(entry, source, tuple(slots), SEEDS if entry.pair is None else SEEDS[:1])


#: Every table and figure by its name, in the paper's order.
PLANS = {entry.name: _plan(entry) for entry in entries()}


def find_plan(name: str) -> PaperPlan:
    """Return the plan of a name; raise a SettingError if there is none."""
    return PLANS[find_entry(name).name]


@dataclass(frozen=True)
class PaperChoice:
    """Changes of the paper's experiments; empty for none."""

    datasets: tuple[str, ...] = ()
    shots: tuple[int, ...] = ()
    seeds: tuple[int, ...] = ()
    methods: tuple[str, ...] = ()  # perhaps with settings
    encoder: str = ""
    transfers: tuple[str, ...] = ()
    views: int | None = None  # crops of an image that are kept
    queries: dict[str, str] = field(init=False)  # method → settings

    def __post_init__(self) -> None:
        queries: dict[str, str] = {}
        titles = {title.casefold(): name for name, title in TITLES.items()}
        for text in self.methods:
            typed, _, query = text.partition("?")
            name = titles.get(typed.casefold(), typed.casefold())
            if name not in TITLES and f"{name}+eft" not in TITLES:
                raise SettingError(
                    f"the paper has no method {typed!r}; it has {', '.join(TITLES.values())}"
                )
            queries[name.removesuffix("+eft")] = query
        object.__setattr__(self, "queries", queries)

    def views_kept(self, views_per_round: int) -> int:
        """Return the number of cached crops per image for rounds of so many views."""
        if self.views is not None:
            return self.views
        return MOST_CROPS if self.encoder else max(VIEWS, views_per_round)


def chosen(plan: PaperPlan, choice: PaperChoice) -> PaperPlan:
    """Return a plan with changes; the changed slots have the reasons.

    Data sets, methods and seeds are restricted or replaced. So are shots; if a plan has none of the
    chosen ones, its smallest and largest are replaced by the smallest and largest of them. The encoder
    replaces that of the fits, and the transfers replace all targets.
    """
    shots = _shots_by_plan(plan, choice.shots)
    slots: dict[tuple[tuple[str, ...], str], Slot] = {}
    for slot in plan.slots:
        base = slot.method.removesuffix("+eft")
        if choice.queries and base not in choice.queries:
            continue
        # Zero-shot methods have a slot in the column of each number of shots.
        named = int(slot.column) if slot.column.isdigit() and slot.rounds is None else slot.shots
        if slot.shots not in shots or named not in shots:
            continue
        datasets = _with_datasets(slot, plan, choice.datasets)
        for new in (new for other in datasets for new in _with_encoders(other, plan, choice)):
            new = _with_query(new, choice.queries.get(base, ""))
            new = _with_views(_with_shots(new, named, shots[named]), choice)
            if new.rounds is None or new.rounds <= new.rounds_of_fit:
                slots.setdefault((new.row, new.column), new)
    source = choice.encoder or plan.source
    seen = {name for slot in slots.values() for name in slot.encoders}
    others = ", ".join(name for name in choice.transfers if name in seen)
    if others or source != plan.source:
        at_hand = f"With {source}{others and f' → {others}'} instead of the paper's encoders."
    else:
        at_hand = ""
    return replace(
        plan,
        source=source,
        slots=tuple(slots.values()),
        seeds=(choice.seeds or plan.seeds) if plan.entry.pair is None else plan.seeds,
        at_hand=at_hand,
    )


def _shots_by_plan(plan: PaperPlan, wanted: Sequence[int]) -> dict[int, int]:
    """Return the new number of shots for each of a plan; 0 is unchanged."""
    shots = plan.shots
    if not wanted or plan.entry.pair is not None:
        return {k: k for k in (0, *shots)}
    if set(wanted) <= set(shots):
        return {k: k for k in (0, *shots) if k in (0, *wanted)}
    least, most = min(wanted), max(wanted)
    ends = {shots[0]: least if shots[0] == 1 else most, shots[-1]: most if shots[-1] > 1 else least}
    common = {k: k for k in wanted if k in shots}
    return {0: 0, **common, **ends}


def _with_shots(slot: Slot, old: int, shots: int) -> Slot:
    if shots == old:
        return slot
    words = {f"{old} shot": f"{shots} shot", str(old): str(shots)}
    return replace(
        slot,
        shots=shots if slot.shots else 0,
        row=tuple(words.get(word, word) for word in slot.row),
        # Columns of rounds are unchanged.
        column=words.get(slot.column, slot.column) if slot.rounds is None else slot.column,
        changed=(*slot.changed, f"{shots} shots instead of {old}"),
    )


def _with_views(slot: Slot, choice: PaperChoice) -> Slot:
    """Change the number of crops in a round if fewer are cached."""
    wanted = slot.views_per_round
    available = choice.views_kept(wanted)
    if wanted <= available:
        return slot
    column = (
        f"{slot.column.removesuffix(f'/{wanted}')}/{available}"
        if "/" in slot.column
        else slot.column
    )
    row = tuple(word.replace(f"a={wanted}", f"a={available}") for word in slot.row)
    why = f"{available} crops of an image in a round instead of {wanted}"
    return replace(slot, row=row, column=column, changed=(*slot.changed, why))


def _with_datasets(slot: Slot, plan: PaperPlan, wanted: Sequence[str]) -> list[Slot]:
    """Return the slot for the chosen data sets: one for each if columns are data sets."""
    if not wanted or tuple(wanted) == plan.datasets:
        return [slot]
    if slot.dataset == AVERAGE:
        return [replace(slot, datasets=tuple(wanted), changed=(*slot.changed, "other data sets"))]
    same = [slot] if slot.dataset in wanted else []
    in_column = slot.column == listed().datasets[slot.dataset]
    others = [name for name in wanted if name not in plan.datasets]
    if slot.dataset != plan.datasets[0]:
        others = []  # others replace the first one
    elif not in_column:
        others = [] if same else others[:1]
    return same + [
        replace(
            slot,
            column=name if in_column else slot.column,
            datasets=(name,),
            dataset=name,
            changed=(*slot.changed, "other data sets"),
        )
        for name in others
    ]


def _with_encoders(slot: Slot, plan: PaperPlan, choice: PaperChoice) -> list[Slot]:
    """Return the slot on the chosen encoders: one for each, unless it is a group's mean."""
    other = choice.encoder not in ("", plan.source)
    if slot.target == plan.source:
        if not other:
            return [slot]
        groups: list[tuple[str, ...]] = [(choice.encoder,)]
        words = {word: f"{choice.encoder} (source)" for word in slot.row if "(source)" in word}
    elif choice.transfers and choice.transfers != slot.encoders:
        alone = len(slot.encoders) == 1
        groups = [(name,) for name in choice.transfers] if alone else [choice.transfers]
        words = {slot.row[0]: "{} (target)"}
    elif other:
        return [replace(slot, changed=(*slot.changed, "other encoders"))]
    else:
        return [slot]
    words[TITLES["zero-shot"]] = "Zero-shot"  # they need not be CLIP
    return [
        replace(
            slot,
            target=(name := "+".join(group)),
            encoders=group,
            row=tuple(words.get(word, word).replace("{}", name) for word in slot.row),
            column=words.get(slot.column, slot.column),
            changed=(*slot.changed, "other encoders"),
        )
        for group in groups
    ]


def _with_query(slot: Slot, query: str) -> Slot:
    if not query:
        return slot
    names = {setting.partition("=")[0] for setting in slot.query.split("&")}
    others = [setting for setting in query.split("&") if setting.partition("=")[0] not in names]
    joined = "&".join(setting for setting in (*others, slot.query) if setting)
    # The paper's language model is no longer available.
    changed = slot.changed if slot.method == "llmbo" else (*slot.changed, f"settings {query}")
    return replace(slot, query=joined, changed=changed)
