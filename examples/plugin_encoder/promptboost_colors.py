"""A third-party encoder: the mean color of an image, and the colors that a text names."""

import numpy as np
from PIL import ImageColor

from promptboost.encoders import unit_rows


class Colors:
    context_length, causal_text, logit_scale, dim = 77, False, 20.0, 4

    def __init__(self, size="16"):
        self.size = int(size)  # images are shrunk to so many pixels a side
        self.id = f"colors:{self.size}"
        self.fingerprint = f"colors 1 {self.size}"  # change it when embeddings change

    def encode_texts(self, texts):
        return self._rows([self._named(text) for text in texts])

    def encode_images(self, images):
        small = (image.convert("RGB").resize((self.size, self.size)) for image in images)
        return self._rows([np.asarray(image).reshape(-1, 3).mean(axis=0) for image in small])

    def count_tokens(self, texts):
        return np.array([len(text.split()) for text in texts], dtype=np.int64)

    def _named(self, text):
        words = [word.strip(".,").lower() for word in text.split()]
        known = [ImageColor.getrgb(word) for word in words if word in ImageColor.colormap]
        return np.mean(known, axis=0) if known else np.full(3, float(len(text) % 100))

    def _rows(self, colors):
        rgb = np.reshape(colors, (-1, 3)) / 255
        return unit_rows(np.hstack([rgb, np.full((len(rgb), 1), 0.1)]))  # black is no zero row


def load(rest, device=None):
    return Colors(rest)
