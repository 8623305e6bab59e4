from collections import Counter

import pytest

from promptboost.encoders.conse.conse import CONSE_VARIANTS
from promptboost.encoders.registry import MODELS

PUBLISHED = [record for record in MODELS if not record.name.startswith("conse:")]


@pytest.fixture(scope="module")
def open_clip():
    return pytest.importorskip("open_clip", reason="needs the extra clip")


def test_all_families_of_the_paper_are_there():
    assert Counter(record.family for record in MODELS) == {
        "OpenAI CLIP": 3,
        "OpenCLIP": 4,
        "DFN": 3,
        "CLIPA-v2": 3,
        "SigLIP2": 3,
        "MetaCLIP2": 2,
        "EVA-02": 3,
        "ConSE": 5,
    }


def test_names_are_unique():
    assert len({record.name for record in MODELS}) == len(MODELS)


@pytest.mark.parametrize("record", PUBLISHED, ids=lambda record: record.name)
def test_open_clip_knows_the_weights_and_agrees(open_clip, record):
    architecture, tag = record.name.split("/")
    assert (architecture, tag) in open_clip.list_pretrained()
    config = open_clip.get_model_config(architecture)
    published = open_clip.get_pretrained_cfg(architecture, tag)
    assert record.dim == config["embed_dim"]
    assert record.resolution == config["vision_cfg"]["image_size"]
    assert record.context_length == config["text_cfg"]["context_length"]
    assert record.quick_gelu == bool(published.get("quick_gelu"))


@pytest.mark.parametrize("record", PUBLISHED, ids=lambda record: record.name)
def test_the_real_configuration_can_be_built(open_clip, record):
    import torch

    from promptboost.encoders.openclip.tower import TextTower

    architecture = record.name.split("/")[0]
    with torch.device("meta"):  # everything but the memory
        model = open_clip.create_model(
            architecture, device="meta", force_quick_gelu=record.quick_gelu, pretrained_text=False
        )
    millions = sum(weights.numel() for weights in model.parameters()) / 1e6
    assert record.parameters == round(millions)
    size = model.visual.image_size
    assert record.resolution == (size if isinstance(size, int) else size[0])
    attends_to_padding = record.family in ("CLIPA-v2", "SigLIP2")
    assert TextTower(model).is_causal is not attends_to_padding
    assert ("padding" in record.note) is attends_to_padding


def test_the_conse_records_are_those_of_the_encoders():
    records = {record.name.removeprefix("conse:"): record for record in MODELS}
    for name, (image_net, sentence_net, features) in CONSE_VARIANTS.items():
        record = records[name]
        assert record.resolution == image_net.size
        assert record.context_length == sentence_net.context_length
        assert record.dim == (384 + 1280 if features else 384)
        assert "clip" not in (record.name + record.title + record.note).lower()
