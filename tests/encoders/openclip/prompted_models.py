"""Small random open_clip models with a few layers, with and without room for deep prompts."""

import json

_VISION = {"image_size": 32, "layers": 3, "width": 32, "head_width": 16, "patch_size": 16}
_TEXT = {"context_length": 24, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 4}
_DEEP = {"embed_dim": 24, "vision_cfg": _VISION, "text_cfg": _TEXT}

DEEP = "tiny-deep"
DEEP_CUSTOM = "tiny-deep-custom"
SUITABLE = {
    DEEP: _DEEP,
    DEEP_CUSTOM: {
        **_DEEP,
        "custom_text": True,
        "quick_gelu": True,
        "vision_cfg": {**_VISION, "no_ln_pre": True},
        "text_cfg": {**_TEXT, "pool_type": "eos", "eos_id": 49407, "proj_bias": True},
    },
}
UNSUITABLE = {
    "tiny-resnet": {**_DEEP, "vision_cfg": {**_VISION, "layers": [1, 1, 1, 1], "width": 8}},
    "tiny-mean-of-patches": {**_DEEP, "vision_cfg": {**_VISION, "pool_type": "avg"}},
    "tiny-attention-pool": {**_DEEP, "vision_cfg": {**_VISION, "attentional_pool": True}},
    "tiny-both-ways-text": {
        **_DEEP,
        "custom_text": True,
        "text_cfg": {**_TEXT, "no_causal_mask": True, "pool_type": "last"},
    },
    "tiny-coca-text": {
        **_DEEP,
        "custom_text": True,
        "text_cfg": {**_TEXT, "embed_cls": True},
    },
}


def make_encoder(name, folder, seed=0):
    """Make an encoder of one of these, as if its weights had been loaded."""
    import open_clip
    import torch

    from promptboost.encoders.openclip.openclip import OpenClipEncoder

    path = folder / f"{name}.json"
    path.write_text(json.dumps((SUITABLE | UNSUITABLE)[name]))
    open_clip.add_model_config(path)
    torch.manual_seed(seed)
    model, _, preprocess = open_clip.create_model_and_transforms(name)
    with torch.no_grad():  # larger than trained ones, so that positions and masks matter
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.2)
    return OpenClipEncoder(
        model.eval().requires_grad_(False),
        preprocess,
        open_clip.get_tokenizer(name),
        id=f"{name}-{seed}",
        fingerprint=f"{name}-{seed}",
    )
