"""What all methods share: images, and classifiers of text and of rows."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from promptboost.encoders.fake import FakeEncoder
from promptboost.errors import DataError, EncoderError, LabelError, PoolError
from promptboost.methods import FewShotSet
from promptboost.methods.base import FileImages, Origin, RowImages
from promptboost.methods.fitted import class_rows
from tests.methods.small_task import (
    COLOURS,
    ENCODER,
    IMAGES,
    NAMES,
    OTHER,
    linear_classifier,
    rows_of,
    text_classifier,
)


class TestImages:
    def test_rows_are_views_without_the_crops(self) -> None:
        views = np.stack(
            [rows_of(ENCODER, "red", "blue")[:, 0], rows_of(ENCODER, "a", "b")[:, 0]], 1
        )
        images = RowImages({ENCODER.id: views})
        np.testing.assert_array_equal(images.rows(ENCODER), rows_of(ENCODER, "red", "blue")[:, 0])
        assert images.views(ENCODER).shape == (2, 2, 16)

    def test_an_encoder_that_has_not_seen_them_is_refused(self) -> None:
        with pytest.raises(DataError, match=r"not embedded with fake:8-0, only with fake:16-0"):
            IMAGES.rows(FakeEncoder(dim=8))
        with pytest.raises(DataError, match="give the images themselves"):
            IMAGES.images()

    @pytest.mark.parametrize(
        ("embedded", "message"),
        [
            ({}, r"\(n, 1 \+ V, D\)"),
            ({"a": np.zeros((2, 16), np.float32)}, r"\(n, 1 \+ V, D\), not .*\(2, 16\)"),
            ({"a": np.zeros((2, 0, 16), np.float32)}, r"\(n, 1 \+ V, D\)"),
            (
                {"a": np.zeros((2, 1, 4), np.float32), "b": np.zeros((3, 1, 4), np.float32)},
                "different numbers",
            ),
        ],
    )
    def test_rows_of_the_wrong_shape_are_refused(self, embedded: Any, message: str) -> None:
        with pytest.raises(DataError, match=message):
            RowImages(embedded)

    def test_files_are_embedded_once_for_each_number_of_crops(self, tmp_path: Path) -> None:
        from PIL import Image

        from promptboost.data import load_data

        for name, color in zip(NAMES, COLOURS, strict=True):
            (tmp_path / name).mkdir()
            for i in range(2):
                Image.new("RGB", (12, 12), color).save(tmp_path / name / f"{i}.png")
        images = FileImages(load_data(str(tmp_path)), n_views=2)
        assert len(images) == 4
        assert images.views(ENCODER).shape == (4, 3, 16)
        assert images.views(ENCODER) is images.views(ENCODER)
        np.testing.assert_allclose(images.rows(ENCODER), images.views(ENCODER)[:, 0], atol=1e-6)
        assert next(image.getpixel((0, 0)) for image in images.images()) == (255, 0, 0)
        assert text_classifier().predict(images).tolist() == [0, 0, 1, 1]

    def test_labels_must_fit(self) -> None:
        with pytest.raises(LabelError, match="3 labels for 4 images"):
            FewShotSet(IMAGES, np.array([0, 0, 1]), NAMES)
        for label in (2, -1):
            with pytest.raises(LabelError, match="from 0 to 1"):
                FewShotSet(IMAGES, np.array([0, 0, 1, label]), NAMES)


class TestText:
    def test_a_class_is_the_weighted_mean_of_its_rows(self) -> None:
        (row,) = class_rows([{"red": 2, "blue": 1}], ENCODER, unit=False)
        red, blue = ENCODER.encode_texts(["red", "blue"])
        np.testing.assert_allclose(row, (2 * red + blue) / 3, rtol=1e-5)
        (unit,) = class_rows([{"red": 2, "blue": 1}], ENCODER, unit=True)
        np.testing.assert_allclose(unit, row / np.linalg.norm(row), rtol=1e-5)

    def test_logits_are_on_the_scale_of_the_encoder(self) -> None:
        logits = text_classifier(banks=({"red": 1}, {"blue": 1})).logits(IMAGES)
        assert logits[0, 0] == pytest.approx(ENCODER.logit_scale)
        assert logits.dtype == np.float32

    def test_another_encoder_reads_the_same_text(self) -> None:
        moved = text_classifier().transfer(OTHER)
        assert moved.words() == text_classifier().words()
        assert moved.image_towers == (OTHER.id,)
        own = dataclasses.replace(text_classifier(), origin=Origin("x", NAMES, OTHER))
        np.testing.assert_array_equal(moved.logits(IMAGES), own.logits(IMAGES))

    @pytest.mark.parametrize("bank", [{}, {"a": 0.0}, {"a": -1.0, "b": 2.0}, {"a": float("nan")}])
    def test_a_class_needs_prompts_with_weights(self, bank: dict[str, float]) -> None:
        with pytest.raises(PoolError, match="'ice' has no prompts"):
            text_classifier(banks=({"red": 1.0}, bank))

    def test_there_is_a_bank_for_each_class(self) -> None:
        with pytest.raises(PoolError, match="1 banks for 2 classes"):
            text_classifier(banks=({"red": 1.0},))


class TestLinear:
    def test_logits_are_products_and_intercepts(self) -> None:
        fitted = linear_classifier()
        expected = IMAGES.rows(ENCODER) @ fitted.rows.T + fitted.intercepts
        np.testing.assert_allclose(fitted.logits(IMAGES), expected)
        assert fitted.words() is None

    def test_it_does_not_carry_over_and_says_what_to_do(self) -> None:
        with pytest.raises(
            EncoderError, match=r"linear does not transfer .* Fit it again .*eft.emulate"
        ):
            linear_classifier().transfer(OTHER)
