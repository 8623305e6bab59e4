"""Small random open_clip models, saved and registered as real ones are."""

import json

TINY = "tiny-causal"
TINY_QUICK = "tiny-causal-quickgelu"
TINY_CUSTOM = "tiny-custom-text"
TINY_BOTH_WAYS = "tiny-both-ways"

_VISION = {"image_size": 32, "layers": 1, "width": 64, "head_width": 32, "patch_size": 16}
TEXT_TOWER = {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 2}
_MODEL = {"embed_dim": 32, "vision_cfg": _VISION, "text_cfg": TEXT_TOWER}

CONFIGS = {
    TINY: _MODEL,
    TINY_QUICK: {**_MODEL, "quick_gelu": True},
    TINY_CUSTOM: {**_MODEL, "custom_text": True},
    TINY_BOTH_WAYS: {
        **_MODEL,
        "custom_text": True,
        "init_logit_bias": -10,
        "text_cfg": {
            **TEXT_TOWER,
            "context_length": 16,
            "no_causal_mask": True,
            "pool_type": "last",
        },
    },
}


def save_tiny_models(folder):
    """Register the configurations and save one checkpoint of each; return where."""
    import open_clip
    import torch
    from safetensors.torch import save_file

    files = {}
    for name, config in CONFIGS.items():
        path = folder / f"{name}.json"
        path.write_text(json.dumps(config))
        open_clip.add_model_config(path)
        torch.manual_seed(0)
        model = open_clip.create_model(name)
        with torch.no_grad():  # larger than trained ones, so that positions and masks matter
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    parameter.normal_(std=0.2)
        files[name] = folder / f"{name}.safetensors"
        save_file(model.state_dict(), files[name])
    return files
