import base64
import io
import json

import msgspec
from PIL import Image

from promptboost.baselines import Confusion
from promptboost.data import Dataset, LabeledImage
from promptboost.report.page import CONFUSIONS_SHOWN
from promptboost.run.fit import images_shown, thumbnail, write_thumbnails
from promptboost.run.run_folder import RunFolder


def test_thumbnails_are_small_whatever_the_image(tmp_path):
    for size in ((400, 100), (30, 20), (1, 500)):
        address = thumbnail(LabeledImage("0", "x", Image.new("RGB", size, "red")))
        image = Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2])))
        assert max(image.size) == min(96, max(size))


def test_only_named_images_and_none_that_is_gone(tmp_path):
    red = Image.new("RGB", (8, 8), "red")
    here, gone = LabeledImage("a", "x", red), LabeledImage("b", "y", tmp_path / "gone.png")
    data = Dataset.of([here, gone, LabeledImage("c", "y", red)])
    write_thumbnails(RunFolder(tmp_path), ["a", "b"], [data])
    assert list(json.loads((tmp_path / "thumbnails.json").read_text())) == ["a"]


def test_not_every_confusion_is_shown(fitted):
    pairs = tuple(Confusion("a", "b", 1, (f"{i}",)) for i in range(50))
    results = msgspec.structs.replace(
        RunFolder(fitted / "run").results, confusions=pairs, hardest=()
    )
    assert len(images_shown(results)) == CONFUSIONS_SHOWN
