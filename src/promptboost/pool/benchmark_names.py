"""Other names that classes of the benchmarks go by in released files, which no rule can find.

CLIP's authors renamed some classes, CoOp's kept or wrote others, and EuroSAT is also named after its
folders. A table is used only where the classes are plainly those of its benchmark.
"""

from collections.abc import Iterable, Mapping, Sequence

from promptboost.pool.text import name_key

__all__ = ["names_of_benchmark"]

Names = Mapping[str, Sequence[str]]

_CALTECH: Names = {
    "face": ["off-center face", "centered face"],
    "car side": ["side of a car"],
    "cougar body": ["body of a cougar cat"],
    "cougar face": ["face of a cougar cat"],
    "crocodile head": ["head of a crocodile"],
    "flamingo head": ["head of a flamingo"],
    "snoopy": ["snoopy (cartoon beagle)"],
    "yin yang": ["yin and yang symbol"],
}
_EUROSAT: Names = {
    "annual crop land": ["annual crop", "AnnualCrop"],
    "herbaceous vegetation land": [
        *("herbaceous vegetation", "HerbaceousVegetation", "brushland or shrubland"),
    ],
    "highway or road": ["highway"],
    "industrial buildings": ["industrial", "industrial buildings or commercial buildings"],
    "pasture land": ["pasture"],
    "permanent crop land": ["permanent crop", "PermanentCrop"],
    "residential buildings": ["residential", "residential buildings or homes or apartments"],
    "sea or lake": ["SeaLake", "lake or sea"],
}
_FLOWERS: Names = {"pink-yellow dahlia": ["pink and yellow dahlia"], "ball moss": ["air plant"]}
_IMAGENET: Names = {"eft": ["newt"], "maillot": ["tights"]}


def names_of_benchmark(class_names: Iterable[str]) -> Names:
    """Return the other names of a benchmark's classes; nothing for classes of one's own.

    Examples
    --------
    >>> names_of_benchmark(["rose", "ball moss", "pink-yellow dahlia"])["ball moss"]
    ['air plant']
    >>> names_of_benchmark(["newt", "toad"])
    {}
    """
    there = set(map(name_key, class_names))
    for table in (_CALTECH, _EUROSAT, _FLOWERS, _IMAGENET):
        # One class of a name may be anybody's; all of them together are not.
        if all(there & set(map(name_key, (name, *others))) for name, others in table.items()):
            return table
    return {}
