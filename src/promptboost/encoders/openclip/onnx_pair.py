"""The towers, the tokenizer and the preprocessing of an open_clip model, for ONNX."""

import string
from typing import TYPE_CHECKING, Any

from promptboost.encoders.graph import TowerPair
from promptboost.errors import EncoderError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_RESAMPLING = {"bilinear": 2, "bicubic": 3}
_START, _END = "<start_of_text>", "<end_of_text>"
_CLIP_WORDS = (
    rf"""{_START}|{_END}|'s|'t|'re|'ve|'m|'ll|'d|[\p{{L}}]+|[\p{{N}}]|[^\s\p{{L}}\p{{N}}]+"""
)


def onnx_pair(model: Any, preprocess: Any, tokenizer: Any) -> TowerPair:
    """Describe an open_clip model for :func:`~promptboost.encoders.graph.onnx_files`."""
    import torch
    from PIL import Image

    tokens = tokenizer(["a", ""])
    backend = _backend(tokenizer)
    bias = getattr(model, "logit_bias", None)
    context = {"model_max_length": int(tokenizer.context_length)}
    return TowerPair(
        vision=lambda pixels: model.encode_image(pixels, normalize=True),
        text=lambda tokens: model.encode_text(tokens, normalize=True),
        examples=(torch.stack([preprocess(Image.new("RGB", (64, 64)))] * 2), tokens),
        configs={
            "config": {
                "model_type": "clip" if bias is None else "siglip",
                "logit_scale": float(model.logit_scale.detach().exp().mean()),
                "logit_bias": 0.0 if bias is None else float(bias.detach()),
            },
            "preprocessor_config": _preprocessing(model.visual.preprocess_cfg),
            "tokenizer_config": {**context, "pad_token": backend.id_to_token(int(tokens[1, -1]))},
        },
        tokenizer=backend.to_str(),
    )


def _preprocessing(facts: Any) -> dict[str, Any]:
    size, mode = facts["size"], facts["resize_mode"]
    height, width = size if isinstance(size, tuple | list) else (size, size)
    if mode not in ("shortest", "squash") or (mode == "shortest" and height != width):
        raise EncoderError(f"images scaled by {mode!r} to {height} × {width} cannot be described")
    square = {"height": height, "width": width}
    return {
        "image_processor_type": "CLIPImageProcessor",
        "size": {"shortest_edge": height} if mode == "shortest" else square,
        "do_center_crop": mode == "shortest",
        "crop_size": square,
        "center_crop_rounding": "half_even",
        "resample": _RESAMPLING[facts["interpolation"]],
        "image_mean": list(facts["mean"]),
        "image_std": list(facts["std"]),
    }


def _backend(tokenizer: Any) -> "Tokenizer":
    """Convert a tokenizer with its cleaning of texts, but without the repair of broken Unicode."""
    from tokenizers import Regex, Tokenizer, normalizers

    if hasattr(tokenizer, "encode"):  # open_clip's own
        backend = _clip_backend(tokenizer)
    elif getattr(tokenizer, "tokenizer_mode", "") or getattr(tokenizer, "strip_sep_token", False):
        raise EncoderError("the tokenizer of this model cannot be written as tokenizer.json")
    else:
        backend = Tokenizer.from_str(tokenizer.tokenizer.backend_tokenizer.to_str())
    spaces = [normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
    punctuation = Regex("[" + "".join(f"\\{mark}" for mark in string.punctuation) + "]")
    cleaning = {
        "_clean_whitespace": spaces,
        "_clean_lower": [*spaces, normalizers.Lowercase()],
        "_clean_canonicalize": [
            normalizers.Replace("_", " "),
            normalizers.Replace(punctuation, ""),
            normalizers.Lowercase(),
            *spaces,
        ],
    }[tokenizer.clean_fn.__name__]
    if backend.normalizer is not None:
        cleaning.append(backend.normalizer)
    backend.normalizer = normalizers.Sequence(cleaning)
    return backend


def _clip_backend(tokenizer: Any) -> "Tokenizer":
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors

    backend = Tokenizer(
        models.BPE(
            vocab=tokenizer.encoder,
            merges=list(tokenizer.bpe_ranks),
            end_of_word_suffix="</w>",
            unk_token=_END,
        )
    )
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_CLIP_WORDS), behavior="removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    ends = [(token, tokenizer.encoder[token]) for token in (_START, _END)]
    backend.post_processor = processors.TemplateProcessing(
        single=f"{_START} $A {_END}", special_tokens=ends
    )
    return backend
