"""Pictures: where they come from, which to learn from, views of them, and their embeddings."""

from promptboost.data.check import check_pictures
from promptboost.data.dataset import Dataset, Picture
from promptboost.data.embed import embed_pictures
from promptboost.data.folder import find_pictures
from promptboost.data.load import load_data
from promptboost.data.names import display_name
from promptboost.data.reading import MAX_PIXELS, BadPicture, PictureError, read_picture
from promptboost.data.shots import draw_shots, few_shot, rest
from promptboost.data.views import DEFAULT_SCALE, draw_view, view_name

__all__ = [
    "load_data",
    "find_pictures",
    "Dataset",
    "Picture",
    "BadPicture",
    "PictureError",
    "MAX_PIXELS",
    "read_picture",
    "check_pictures",
    "display_name",
    "draw_shots",
    "few_shot",
    "rest",
    "DEFAULT_SCALE",
    "draw_view",
    "view_name",
    "embed_pictures",
]
