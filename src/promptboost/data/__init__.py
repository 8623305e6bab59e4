"""Images: where they come from, how they are decoded, which to learn from, and views of them."""

from promptboost.data.dataset import Dataset, LabeledImage, display_name
from promptboost.data.decode import MAX_PIXELS, BadImage, ImageError, read_image
from promptboost.data.folder import find_images
from promptboost.data.shots import draw_shots, few_shot, rest
from promptboost.data.source import DataSource, check_images, load_data
from promptboost.data.views import DEFAULT_SCALE, draw_view, view_name

__all__ = [
    "load_data",
    "DataSource",
    "find_images",
    "Dataset",
    "LabeledImage",
    "BadImage",
    "ImageError",
    "MAX_PIXELS",
    "read_image",
    "check_images",
    "display_name",
    "draw_shots",
    "few_shot",
    "rest",
    "DEFAULT_SCALE",
    "draw_view",
    "view_name",
]
