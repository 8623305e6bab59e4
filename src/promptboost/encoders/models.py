"""The models of the paper by family, and the exact name to type for each."""

from dataclasses import dataclass

__all__ = ["MODELS", "ModelRecord", "models_by_family"]


@dataclass(frozen=True)
class ModelRecord:
    """What to know about a model before loading it.

    Attributes
    ----------
    family : str
        Who trained it, and how.
    name : str
        What to type: architecture and weights as open_clip spells them, or a ConSE encoder.
    title : str
        What papers call it.
    dim : int
        Length of its rows.
    resolution : int
        Side in pixels of the pictures it looks at.
    context_length : int
        How many tokens of a text it reads.
    parameters : int
        Number of weights, in millions.
    quick_gelu : bool
        Trained with QuickGELU; the loader sees to it that the model also runs with it.
    note : str
        What else to know.
    """

    family: str
    name: str
    title: str
    dim: int
    resolution: int
    context_length: int
    parameters: int
    quick_gelu: bool = False
    note: str = ""

    @property
    def size(self) -> int:
        """Megabytes of memory in single precision; half of it on CUDA.

        Examples
        --------
        >>> models_by_family()["OpenAI CLIP"][1].size
        604
        """
        return 4 * self.parameters


_OPENAI, _LAION, _DFN, _CLIPA = "OpenAI CLIP", "OpenCLIP", "DFN", "CLIPA-v2"
_SIGLIP, _META, _EVA, _CONSE = "SigLIP2", "MetaCLIP2", "EVA-02", "ConSE"
_BOTH_WAYS = "text tower attends to padding"
_WORLD = "multilingual"

MODELS = (
    ModelRecord(_OPENAI, "RN50/openai", "RN50", 1024, 224, 77, 102, quick_gelu=True),
    ModelRecord(_OPENAI, "ViT-B-32/openai", "ViT-B/32", 512, 224, 77, 151, quick_gelu=True),
    ModelRecord(_OPENAI, "ViT-L-14/openai", "ViT-L/14", 768, 224, 77, 428, quick_gelu=True),
    ModelRecord(_LAION, "ViT-B-16/laion2b_s34b_b88k", "ViT-B/16", 512, 224, 77, 150),
    ModelRecord(_LAION, "ViT-L-14/laion2b_s32b_b82k", "ViT-L/14", 768, 224, 77, 428),
    ModelRecord(_LAION, "ViT-H-14/laion2b_s32b_b79k", "ViT-H/14", 1024, 224, 77, 986),
    ModelRecord(_LAION, "ViT-g-14/laion2b_s34b_b88k", "ViT-g/14", 1024, 224, 77, 1367),
    ModelRecord(_DFN, "ViT-B-16/dfn2b", "ViT-B/16", 512, 224, 77, 150, quick_gelu=True),
    ModelRecord(_DFN, "ViT-L-14/dfn2b", "ViT-L/14", 768, 224, 77, 428, quick_gelu=True),
    ModelRecord(_DFN, "ViT-H-14/dfn5b", "ViT-H/14", 1024, 224, 77, 986, quick_gelu=True),
    ModelRecord(
        _CLIPA, "ViT-L-14-CLIPA/datacomp1b", "ViT-L/14", 768, 224, 32, 414, note=_BOTH_WAYS
    ),
    ModelRecord(
        _CLIPA, "ViT-H-14-CLIPA/datacomp1b", "ViT-H/14", 1024, 224, 32, 968, note=_BOTH_WAYS
    ),
    ModelRecord(_SIGLIP, "ViT-B-16-SigLIP2/webli", "ViT-B/16", 768, 224, 64, 375, note=_BOTH_WAYS),
    ModelRecord(
        _SIGLIP, "ViT-L-16-SigLIP2-256/webli", "ViT-L/16", 1024, 256, 64, 882, note=_BOTH_WAYS
    ),
    ModelRecord(
        _SIGLIP,
        "ViT-gopt-16-SigLIP2-256/webli",
        "ViT-g-opt/16",
        1536,
        256,
        64,
        1871,
        note=_BOTH_WAYS,
    ),
    ModelRecord(
        _META,
        "ViT-H-14-worldwide/metaclip2_worldwide",
        "ViT-H/14",
        1024,
        224,
        77,
        1859,
        quick_gelu=True,
        note=_WORLD,
    ),
    ModelRecord(
        _META,
        "ViT-bigG-14-worldwide/metaclip2_worldwide",
        "ViT-G/14",
        1280,
        224,
        77,
        3630,
        note=_WORLD,
    ),
    ModelRecord(_EVA, "EVA02-B-16/merged2b_s8b_b131k", "ViT-B/16", 512, 224, 77, 150),
    ModelRecord(_EVA, "EVA02-L-14/merged2b_s4b_b131k", "ViT-L/14", 768, 224, 77, 428),
    ModelRecord(_EVA, "EVA02-E-14/laion2b_s4b_b115k", "ViT-E/14", 1024, 224, 77, 4705),
    ModelRecord(
        _CONSE,
        "conse:lite0",
        "EfficientNet-Lite0 + MiniLM-L6",
        384,
        224,
        256,
        27,
        note="needs no model hub; not trained on pairs of pictures and texts",
    ),
    ModelRecord(
        _CONSE,
        "conse:lite2",
        "EfficientNet-Lite2 + MiniLM-L3",
        384,
        260,
        128,
        23,
        note="needs no model hub; not trained on pairs of pictures and texts",
    ),
    ModelRecord(
        _CONSE,
        "conse:lite2-l6",
        "EfficientNet-Lite2 + MiniLM-L6",
        384,
        260,
        256,
        29,
        note="the image net of lite2, the sentence encoder of lite0; needs no model hub",
    ),
)


def models_by_family() -> dict[str, list[ModelRecord]]:
    """Group the models by family, in the order of the paper.

    Examples
    --------
    >>> for family, records in models_by_family().items():
    ...     print(family, [record.title for record in records])
    ...     break
    OpenAI CLIP ['RN50', 'ViT-B/32', 'ViT-L/14']
    """
    families: dict[str, list[ModelRecord]] = {}
    for record in MODELS:
        families.setdefault(record.family, []).append(record)
    return families
