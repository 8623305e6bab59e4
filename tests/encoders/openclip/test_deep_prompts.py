import copy
from contextlib import ExitStack
from functools import lru_cache

import numpy as np
import pytest

pytest.importorskip("open_clip", reason="needs the extra clip")
torch = pytest.importorskip("torch", reason="needs the extra clip")

from PIL import Image  # noqa: E402

from promptboost.encoders.embedder import Embedder  # noqa: E402
from promptboost.encoders.fake import FakeEncoder  # noqa: E402
from promptboost.encoders.openclip.deep_prompts import (  # noqa: E402
    PromptedTowers,
    vit_clip,
)
from promptboost.encoders.store import EmbeddingStore  # noqa: E402
from promptboost.errors import EncoderError  # noqa: E402
from promptboost.methods.promptsrc import self_consistency  # noqa: E402
from tests.encoders.openclip.prompted_models import (  # noqa: E402
    DEEP,
    SUITABLE,
    make_encoder,
)

NAMES = ["cat", "great_grey owl", "x-ray"]


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return lru_cache(lambda name: make_encoder(name, folder))


def towers_of(encoder):
    return PromptedTowers(encoder.model, encoder.tokenizer)


def some_images():
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 255, (40, 50, 3), dtype=np.uint8)) for _ in range(3)]


def some_prompts(towers, seed=0, depth=3, text_tokens=4, vision_tokens=2):
    rng = np.random.default_rng(seed)
    drawn = towers.draw_prompts(
        rng, depth=depth, text_tokens=text_tokens, vision_tokens=vision_tokens
    )
    # Larger than they begin, so that a prompt in the wrong place is seen.
    return drawn.text + torch.randn(drawn.text.shape), drawn.vision + torch.randn(
        drawn.vision.shape
    )


@pytest.mark.parametrize("name", SUITABLE)
def test_one_layer_of_the_words_they_begin_with_is_the_plain_text_tower(make, name):
    encoder = make(name)
    towers = towers_of(encoder)
    prompts = towers.draw_prompts(np.random.default_rng(0), depth=1, text_tokens=4, vision_tokens=1)
    rows = towers.text_rows(towers.class_tokens(NAMES, 4), prompts.text)
    plain = encoder.encode_texts([f"a photo of a {n.replace('_', ' ')}." for n in NAMES])
    np.testing.assert_allclose(rows, plain, atol=1e-6)


@pytest.mark.parametrize("name", SUITABLE)
def test_no_prompts_are_the_plain_towers(make, name):
    encoder = make(name)
    towers = towers_of(encoder)
    text_width, vision_width = towers.widths
    pixels = torch.stack([encoder.preprocess(image) for image in some_images()])
    for layers in (1, 3):
        rows = towers.image_rows(pixels, torch.zeros(layers, 0, vision_width))
        np.testing.assert_allclose(rows, encoder.encode_images(some_images()), atol=1e-6)
        rows = towers.text_rows(towers.class_tokens(NAMES, 0), torch.zeros(layers, 0, text_width))
        plain = encoder.encode_texts(["cat.", "great grey owl.", "x-ray."])
        np.testing.assert_allclose(rows, plain, atol=1e-6)
    np.testing.assert_allclose(
        towers.frozen_image_rows(pixels), encoder.encode_images(some_images()), atol=1e-6
    )


def replacing(place, prompts):
    """Make a hook that puts prompts into the input of a layer."""

    def hook(module, inputs):
        x = inputs[0].clone()
        x[:, place] = prompts
        return (x, *inputs[1:])

    return hook


@pytest.mark.parametrize("name", SUITABLE)
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_deep_text_prompts_are_those_that_hooks_put_there(make, name, depth):
    encoder = make(name)
    towers = towers_of(encoder)
    prompts, _ = some_prompts(towers, depth=depth)
    tower = getattr(encoder.model, "text", encoder.model)
    place = slice(1, 5)

    def first(module, inputs, output):
        output = output.clone()
        output[:, place] = prompts[0]
        return output

    with ExitStack() as stack:
        stack.callback(tower.token_embedding.register_forward_hook(first).remove)
        for layer in range(1, depth):
            block = tower.transformer.resblocks[layer]
            hook = replacing(place, prompts[layer])
            stack.callback(block.register_forward_pre_hook(hook).remove)
        # "a a a a" keeps the places; what is said there is replaced.
        tokens = encoder.tokenizer([f"a a a a {n.replace('_', ' ')}." for n in NAMES])
        expected = encoder.model.encode_text(tokens, normalize=True)
    rows = towers.text_rows(towers.class_tokens(NAMES, 4), prompts)
    np.testing.assert_allclose(rows, expected, atol=1e-6)


@pytest.mark.parametrize("name", SUITABLE)
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_deep_vision_prompts_are_those_that_hooks_put_there(make, name, depth):
    encoder = make(name)
    towers = towers_of(encoder)
    _, prompts = some_prompts(towers, depth=depth)
    visual = encoder.model.visual

    def append(module, inputs):
        return (torch.cat([inputs[0], prompts[0].expand(len(inputs[0]), -1, -1)], dim=1),)

    pixels = torch.stack([encoder.preprocess(image) for image in some_images()])
    with ExitStack() as stack:
        stack.callback(visual.ln_pre.register_forward_pre_hook(append).remove)
        for layer in range(1, depth):
            block = visual.transformer.resblocks[layer]
            hook = replacing(slice(-2, None), prompts[layer])
            stack.callback(block.register_forward_pre_hook(hook).remove)
        expected = encoder.model.encode_image(pixels, normalize=True)
    rows = towers.image_rows(pixels, prompts)
    np.testing.assert_allclose(rows, expected, atol=1e-6)
    plain = encoder.encode_images(some_images())
    assert np.abs(rows.numpy() - plain).max() > 0.01


def test_gradients_of_all_prompts_agree_with_finite_differences(make):
    encoder = make(DEEP)
    towers = PromptedTowers(copy.deepcopy(encoder.model).double(), encoder.tokenizer)
    classes = towers.class_tokens(NAMES, 2)
    drawn = towers.draw_prompts(np.random.default_rng(1), depth=3, text_tokens=2, vision_tokens=1)
    assert drawn.text.dtype == drawn.vision.dtype == torch.float64
    pixels = torch.stack([encoder.preprocess(image) for image in some_images()])
    frozen_texts = torch.from_numpy(encoder.encode_texts(NAMES)).double()
    labels = torch.tensor([0, 1, 2])

    frozen, weights = (frozen_texts, towers.frozen_image_rows(pixels)), (10.0, 25.0, 10.0)
    text, vision = drawn.text.requires_grad_(), drawn.vision.requires_grad_()
    assert text.shape == (3, 2, 16)
    assert vision.shape == (3, 1, 32)
    # One tower does not see the prompts of the other: its rows are made once for all differences.
    texts = towers.text_rows(classes, text).detach()
    images = towers.image_rows(pixels, vision).detach()

    def by_text(prompts):
        return self_consistency(
            (towers.text_rows(classes, prompts), images), frozen, labels, *weights
        )

    def by_vision(prompts):
        return self_consistency(
            (texts, towers.image_rows(pixels, prompts)), frozen, labels, *weights
        )

    for total, prompts in ((by_text, text), (by_vision, vision)):
        assert torch.autograd.gradcheck(total, prompts, eps=1e-6, atol=1e-5)
        (gradient,) = torch.autograd.grad(total(prompts), prompts)
        assert (gradient.abs().amax(dim=2) > 0).all()  # every prompt matters


def test_prompts_begin_as_said(make):
    encoder = make(DEEP)
    towers = towers_of(encoder)
    drawn = towers.draw_prompts(np.random.default_rng(0), depth=9, text_tokens=6, vision_tokens=4)
    assert drawn.text.shape == (4, 6, 16)  # as many layers as there are
    assert drawn.vision.shape == (3, 4, 32)
    words = encoder.model.token_embedding(encoder.tokenizer(["a photo of a"])[0, 1:5])
    torch.testing.assert_close(drawn.text[0, :4], words)
    drawn_at_random = torch.cat([drawn.text[0, 4:].flatten(), drawn.text[1:].flatten()])
    assert float(drawn_at_random.std()) == pytest.approx(0.02, rel=0.2)
    assert float(drawn.vision.std()) == pytest.approx(0.02, rel=0.2)


def test_names_beside_each_other_do_not_change_each_other(make):
    towers = towers_of(make(DEEP))
    prompts, _ = some_prompts(towers)
    together = towers.text_rows(towers.class_tokens(NAMES, 4), prompts)
    alone = towers.text_rows(towers.class_tokens(NAMES[:1], 4), prompts)
    torch.testing.assert_close(together[:1], alone, atol=1e-6, rtol=0)


def test_a_name_without_room_is_refused(make):
    towers = towers_of(make(DEEP))
    name = "owl " * 17 + "owl"  # with start, stop and end 21 tokens, of 24
    towers.class_tokens([name], 3)
    with pytest.raises(EncoderError, match=r"21 tokens, and with 4 prompts there is room for 20"):
        towers.class_tokens(["cat", name], 4)


@pytest.mark.parametrize("name", SUITABLE)
def test_suitable_towers_are_found_behind_a_store(make, name, tmp_path):
    encoder = make(name)
    assert vit_clip(encoder) is encoder
    assert vit_clip(Embedder(encoder, EmbeddingStore(tmp_path))) is encoder


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("tiny-resnet", "ModifiedResNet for its image tower"),
        ("tiny-mean-of-patches", "does not read its row at a class token"),
        ("tiny-attention-pool", "does not read its row at a class token"),
        ("tiny-both-ways-text", "text tower that is not causal"),
        ("tiny-coca-text", "text tower that is not causal"),
    ],
)
def test_other_towers_are_refused(make, name, why):
    with pytest.raises(EncoderError, match=f"such as ViT-B-32/openai; {name}-0 has a .*{why}"):
        vit_clip(make(name))


def test_other_encoders_are_refused():
    with pytest.raises(EncoderError, match="fake:32-0 has no such tower"):
        vit_clip(FakeEncoder())
