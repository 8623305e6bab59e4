"""Encoders of sentence-transformers that embed images and texts."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from promptboost.encoders.base import UnitRows, batches, report_truncated, unit_rows
from promptboost.encoders.hub_files import model_folder
from promptboost.encoders.huggingface import FILES, logit_scale_of
from promptboost.encoders.runtime import fingerprint, hash_files, loading, pick_device
from promptboost.errors import EncoderError

if TYPE_CHECKING:
    from PIL.Image import Image

# The factor of cosines in the losses of sentence-transformers, for models that contain none.
_USUAL_SCALE = 20.0


class SentenceTransformerEncoder:
    """A model of sentence-transformers, loaded without code from its repository.

    Created by :func:`~promptboost.load_encoder` as ``st:organization/model`` or ``st:FOLDER``.
    """

    causal_text = False
    batch_size = 64

    def __init__(self, name: str, source: str, device: str | None = None) -> None:
        folder = model_folder(name, source, FILES)
        from sentence_transformers import SentenceTransformer

        self.id = name
        with loading(name):
            model: Any = SentenceTransformer(
                str(folder),
                device=str(pick_device(device)),
                trust_remote_code=False,
                local_files_only=True,
                model_kwargs={"use_safetensors": True},
            )
        self.model = model.eval()
        if not (model.supports("image") and model.supports("text")):
            raise EncoderError(f"{name} does not embed both images and texts")
        network = model.transformers_model
        if str(getattr(getattr(network, "config", None), "model_type", "")).startswith("siglip"):
            raise EncoderError(
                f"{name} is a SigLIP model, whose texts sentence-transformers does not pad as in its "
                f"training. Use hf:{source}"
            )
        self.context_length = int(model.max_seq_length or 512)
        self.logit_scale = logit_scale_of(network, _USUAL_SCALE)
        self.fingerprint = fingerprint(
            {"kind": "sentence-transformers", "files": hash_files(folder, FILES)}
        )
        self.dim = self._encode(["a cat"]).shape[1]

    def encode_texts(self, texts: Sequence[str]) -> UnitRows:
        """Embed texts as unit rows, in the order given."""
        if len(texts) == 0:
            return np.zeros((0, self.dim), dtype=np.float32)
        report_truncated(texts, self.count_tokens(texts), self.context_length, self.id)
        return self._encode(list(texts))

    def encode_images(self, images: Iterable["Image"]) -> UnitRows:
        """Embed images as unit rows, in the order given."""
        blocks = [np.zeros((0, self.dim), dtype=np.float32)]
        for batch in batches(images, self.batch_size):
            blocks.append(self._encode([image.convert("RGB") for image in batch]))
        return np.concatenate(blocks)

    def count_tokens(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """Count the tokens of each text, with start and end tokens, before any truncation."""
        if len(texts) == 0:
            return np.zeros(0, dtype=np.int64)
        ids = self.model.tokenizer(list(texts), verbose=False).input_ids
        return np.array([len(row) for row in ids], dtype=np.int64)

    def _encode(self, inputs: "list[str] | list[Image]") -> UnitRows:
        rows = self.model.encode(inputs, batch_size=self.batch_size, show_progress_bar=False)
        return unit_rows(rows)
