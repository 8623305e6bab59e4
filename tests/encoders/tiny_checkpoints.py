"""Small random models of transformers and sentence-transformers, saved as real ones are."""

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

SIDE = 32
_VISION = {"image_size": SIDE, "patch_size": 16, "hidden_size": 32, "intermediate_size": 48}
_VISION |= {"num_hidden_layers": 2, "num_attention_heads": 2}
_TEXT = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
_TEXT |= {"num_attention_heads": 2}
_ENDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
FAMILIES = ("clip", "siglip", "siglip2", "naflex", "metaclip2")


def save_tiny(family, folder, **settings):
    """Save a model, its tokenizer and its image processor; return the folder."""
    import torch

    from promptboost.encoders.runtime import loading

    torch.manual_seed(0)
    model, tokenizer, image_processor = _MAKERS[family](**settings)
    with torch.no_grad():  # larger than trained ones, so that positions and masks matter
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.2)
            elif name == "logit_scale":
                parameter.fill_(4.0)
            elif name == "logit_bias":
                parameter.fill_(-7.0)
    with loading(family):  # without bars
        for saved in (model.eval(), tokenizer, image_processor):
            saved.save_pretrained(folder)
    return folder


def save_sentence_transformer(folder, family="clip"):
    """Save a model of sentence-transformers for images and texts."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Transformer

    save_tiny(family, folder / "parts")
    SentenceTransformer(modules=[Transformer(str(folder / "parts"))], device="cpu").save(
        str(folder / "whole")
    )
    return folder / "whole"


def _letters():
    """A vocabulary of bytes, inside words and at their ends."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    return [*alphabet, *(f"{letter}</w>" for letter in alphabet)]


def _clip(context=77):
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPTokenizer

    words = [*_letters(), "<|startoftext|>", "<|endoftext|>"]
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = CLIPTokenizer(vocab=vocabulary, merges=[], model_max_length=77)
    ends = {"bos_token_id": len(words) - 2, "eos_token_id": len(words) - 1}
    config = CLIPConfig(
        text_config={**_TEXT, **ends, "vocab_size": len(words), "max_position_embeddings": context},
        vision_config=_VISION,
        projection_dim=24,
    )
    processor = CLIPImageProcessor(size={"shortest_edge": SIDE}, crop_size=SIDE)
    return CLIPModel(config), tokenizer, processor


def _letter_tokenizer(specials, **settings):
    """A case-sensitive tokenizer of letters, which ends texts with </s>."""
    from transformers import PreTrainedTokenizerFast

    letters = {chr(code) for code in range(32, 127)} | {"▁"}
    words = [*specials, *sorted(letters)]
    vocabulary = {word: number for number, word in enumerate(words)}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", vocabulary["</s>"])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=specials[0],
        eos_token="</s>",
        unk_token="<unk>",
        **settings,
    )


def _siglip(model_class=None, config_class=None, vision=None, **settings):
    import transformers

    config_class = config_class or transformers.SiglipConfig
    # As published: without a limit, and (after a second saving) with an attention mask.
    tokenizer = _letter_tokenizer(("<pad>", "<unk>", "</s>"), **settings)
    config = config_class(
        text_config={**_TEXT, **_ENDS, "vocab_size": 128, "max_position_embeddings": 64},
        vision_config=vision or _VISION,
    )
    processor = transformers.SiglipImageProcessor(size={"height": SIDE, "width": SIDE})
    return (model_class or transformers.SiglipModel)(config), tokenizer, processor


def _siglip2():
    """A SigLIP 2 of fixed resolution: SigLIP's model, Gemma's tokenizer, which has no limit."""
    return _siglip()


def _naflex():
    import transformers

    vision = {key: value for key, value in _VISION.items() if key != "image_size"}
    model, tokenizer, _ = _siglip(
        transformers.Siglip2Model, transformers.Siglip2Config, {**vision, "num_patches": 16}
    )
    processor = transformers.Siglip2ImageProcessor(patch_size=16, max_num_patches=16)
    return model, tokenizer, processor


def _metaclip2():
    from transformers import CLIPImageProcessor, MetaClip2Config, MetaClip2Model

    tokenizer = _letter_tokenizer(("<pad>", "<unk>", "</s>"), model_max_length=77)
    config = MetaClip2Config(
        text_config={
            **_TEXT,
            "vocab_size": 128,
            "max_position_embeddings": 77,
            **_ENDS,
        },
        vision_config=_VISION,
        projection_dim=24,
    )
    processor = CLIPImageProcessor(size={"shortest_edge": SIDE}, crop_size=SIDE)
    return MetaClip2Model(config), tokenizer, processor


_MAKERS = {
    "clip": _clip,
    "siglip": lambda: _siglip(model_max_length=64, model_input_names=["input_ids"]),
    "siglip2": _siglip2,
    "naflex": _naflex,
    "metaclip2": _metaclip2,
}
