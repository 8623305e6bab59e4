"""Methods of other packages: registered, installed, named by where they are, and checked."""

import dataclasses
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from promptboost.errors import FileFormatError, SettingError
from promptboost.methods import Method, make_method, register_method
from promptboost.methods.archive import load_fitted, save_fitted
from promptboost.methods.base import Transfer, spelled
from promptboost.methods.fitted import LinearClassifier
from promptboost.methods.registry import METHODS, names_method
from promptboost.plugins import PluginWarning, load_plugins
from promptboost.testing import check_method
from tests.cli.cli_tools import call
from tests.methods.small_task import ENCODER, IMAGES, POOL, SHOTS
from tests.methods.third_party import Constant, Majority, NearestMean

HERE = "tests.methods.third_party"


@pytest.fixture(autouse=True)
def _leave_no_names(monkeypatch):
    monkeypatch.setattr(METHODS, "_records", dict(METHODS._records))
    yield
    load_plugins.cache_clear()


def install(
    folder: Path, monkeypatch: pytest.MonkeyPatch, points: str, name: str = "other"
) -> None:
    """Do what an installer does: put the record of a package on the path."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[promptboost.methods]\n{points}\n")
    monkeypatch.syspath_prepend(str(folder))
    load_plugins.cache_clear()


class TestRegistered:
    def test_a_class_is_known_by_its_name(self) -> None:
        register_method("nearest-mean", NearestMean)
        assert "nearest-mean" in list(METHODS)
        assert METHODS["nearest-mean"].label.startswith("The mean row of each class's images")
        method = make_method("nearest-mean?scale=5")
        assert method == NearestMean(scale=5.0)
        assert spelled(method) == f"{HERE}:NearestMean?scale=5.0"
        assert make_method(spelled(method)) == method

    def test_a_place_is_imported_when_it_is_asked_for(self) -> None:
        register_method("nearest-mean", f"{HERE}:NearestMean", label="means")
        register_method("nobodys", "package.of.nobody:Method")
        assert METHODS["nearest-mean"].label == "means"
        assert isinstance(make_method("nearest-mean"), NearestMean)
        with pytest.raises(SettingError, match=r"cannot import 'package\.of\.nobody'"):
            make_method("nobodys")

    @pytest.mark.parametrize("name", ["tpb", "all", "", "a b", "a?b", "a,b", "a:b"])
    def test_names_that_cannot_be_given_are_refused(self, name: str) -> None:
        with pytest.raises(SettingError, match=r"already|cannot be called"):
            register_method(name, NearestMean)

    def test_the_same_again_is_no_mistake(self) -> None:
        register_method("nearest-mean", NearestMean)
        register_method("nearest-mean", NearestMean)

    def test_what_is_no_method_is_refused(self) -> None:
        register_method("number", "math:pi")
        register_method("path", "pathlib:Path")
        for name in ("number", "path"):
            with pytest.raises(SettingError, match="is not a method; it must be a dataclass"):
                make_method(name)


class TestPlace:
    def test_a_class_is_made_with_settings(self) -> None:
        method = make_method(f"{HERE}:NearestMean?scale=2")
        assert method == NearestMean(scale=2.0)
        assert spelled(method) == f"{HERE}:NearestMean?scale=2.0"
        assert method.fit(SHOTS, POOL, ENCODER).predict(IMAGES).tolist() == [0, 0, 1, 1]

    @pytest.mark.parametrize(
        ("spelling", "message"),
        [
            ("nobody.there:Method", "cannot import 'nobody.there'"),
            (f"{HERE}:Nothing", "has no Nothing"),
            (f"{HERE}:np", "is not a method"),
            (":x", "write package.module:Name"),
            (f"{HERE}:NearestMean?size=2", "has no setting 'size'; it has scale"),
        ],
    )
    def test_mistakes_say_what_to_write(self, spelling: str, message: str) -> None:
        with pytest.raises(SettingError, match=message):
            make_method(spelling)

    def test_names_are_told_from_parts_of_settings(self) -> None:
        assert names_method("tpb?rounds=5")
        assert names_method(f"{HERE}:NearestMean?scale=2")
        assert not names_method("proapo:CuPL_full")  # a source of sentences
        assert not names_method("a photo: {}.")

    def test_compare_takes_it(self, tmp_path: Path, capsys: Any) -> None:
        from PIL import Image

        for name, colors in (("fire", ["red", "darkred"]), ("ice", ["blue", "lightblue"])):
            (tmp_path / "images" / name).mkdir(parents=True)
            for i, color in enumerate([*colors, *colors]):
                Image.new("RGB", (12 + i, 12), color).save(tmp_path / "images" / name / f"{i}.png")
        methods = f"{HERE}:NearestMean?scale=3,{HERE}:Majority,zero-shot"
        options = (
            "--encoder",
            "fake:32-0",
            "--shots",
            "1",
            "--seeds",
            "1",
            "--views",
            "1",
            "--json",
        )
        for transfer in (
            (),
            ("--transfer", "fake:32-1"),
        ):  # the second reads what the first has kept
            answer = call(
                capsys,
                *("compare", tmp_path / "images", "-o", tmp_path / "out"),
                *("--methods", methods, *options, *transfer),
            )
            assert answer.code == 0, answer.err
            results = json.loads(answer.out)["results"]
            assert {line["method"] for line in results} == set(methods.split(","))


class TestInstalled:
    def test_an_entry_point_is_a_method(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
    ) -> None:
        install(tmp_path, monkeypatch, f"nearest-mean = {HERE}:NearestMean")
        assert make_method("nearest-mean?scale=7") == NearestMean(scale=7.0)
        assert list(METHODS)[-1] == "nearest-mean"
        assert "nearest-mean" in call(capsys, "compare", "--list").out

    def test_broken_ones_are_named_and_left_out(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        points = (
            "gone = package.of.nobody:Method\nnumber = math:pi\n"
            f"tpb = {HERE}:Majority\nmajority = {HERE}:Majority"
        )
        install(tmp_path, monkeypatch, points)
        with pytest.warns(PluginWarning) as warned:
            names = list(METHODS)
        texts = [str(warning.message) for warning in warned]
        assert len(texts) == 3
        for words in ("gone = package.of.nobody", "number of the group", "'tpb' already"):
            assert any(words in text for text in texts)
        assert "majority" in names
        assert "gone" not in names
        assert "number" not in names
        assert make_method("tpb").name == "promptboost"
        list(METHODS)  # warned of once

    def test_built_in_names_look_at_no_package(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        install(tmp_path, monkeypatch, "gone = package.of.nobody:Method")
        assert spelled(make_method("cupl")) == "cupl"  # a warning would be an error


class TestFiles:
    def test_a_registered_classifier_comes_back(self, tmp_path: Path) -> None:
        save_fitted(Majority().fit(SHOTS, POOL, ENCODER), tmp_path)
        again = load_fitted(tmp_path, ENCODER)
        assert isinstance(again, Constant)
        assert again.predict(IMAGES).tolist() == [0, 0, 0, 0]

    def test_a_file_names_kinds_and_no_code(self, tmp_path: Path) -> None:
        save_fitted(Majority().fit(SHOTS, POOL, ENCODER), tmp_path)
        path = tmp_path / "method.json"
        for kind in (f"{HERE}:Constant", "os:system", "antigravity:fly"):
            path.write_text(json.dumps({**json.loads(path.read_text()), "kind": kind}))
            with pytest.raises(FileFormatError, match="when that package is imported"):
                load_fitted(tmp_path, ENCODER)
        assert "antigravity" not in sys.modules

    def test_an_installed_package_is_found_in_a_new_process(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        install(tmp_path, monkeypatch, f"majority = {HERE}:Majority")
        save_fitted(Majority().fit(SHOTS, POOL, ENCODER), tmp_path / "fitted")
        code = (
            "import sys; from promptboost.methods.archive import load_fitted; "
            "from promptboost.encoders.fake import FakeEncoder; "
            f"assert {HERE!r} not in sys.modules; "
            f"print(load_fitted({str(tmp_path / 'fitted')!r}, FakeEncoder(dim=16)).kind)"
        )
        path = [*sys.path, str(Path.cwd())]
        done = subprocess.run(
            [sys.executable, "-c", f"import sys; sys.path[:] = {path!r}; {code}"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout.strip() == Constant.kind, done.stderr

    def test_a_class_without_a_kind_is_not_saved(self, tmp_path: Path) -> None:
        class Other(Constant):
            pass

        fitted = Other(Majority().fit(SHOTS, POOL, ENCODER).origin, 0)
        with pytest.raises(SettingError, match="Other cannot be saved: give it a kind of its own"):
            save_fitted(fitted, tmp_path)
        assert not list(tmp_path.iterdir())

    def test_a_kind_belongs_to_one_class(self) -> None:
        with pytest.raises(SettingError, match="belongs to another classifier"):

            class Other(LinearClassifier):
                kind = Constant.kind


class TestCheckMethod:
    @pytest.mark.parametrize(
        "spelling",
        [
            *("zero-shot", "template-mean", "zero-shot-dataset", "dclip", "cupl", "cupl+templates"),
            *("pool-mean", "proapo?epochs=2&group_epochs=1", "pez?steps=2&tokens=2"),
            *("coop?epochs=2", "logistic", "tip-adapter", "tip-adapter-f", "promptboost"),
            *("waffle", "lp++", "clap", "cross-modal", "gda", "timo", "proker"),
            *("tpb?rounds=2&views_per_round=1", f"{HERE}:NearestMean", f"{HERE}:Majority"),
        ],
    )
    def test_what_is_right_has_no_problems(self, spelling: str) -> None:
        assert check_method(make_method(spelling)) == []

    def test_what_is_no_method(self) -> None:
        assert check_method("tpb") == ["str does not derive from promptboost.methods.Method"]

    def test_declarations_that_are_missing(self) -> None:
        class Bare(Method):
            def fit(self, shots, pool, encoder):
                raise AssertionError("declarations come first")

        problems = " ".join(check_method(Bare()))
        for words in ("not a frozen dataclass", "name is missing", "carries_over"):
            assert words in problems

    @pytest.mark.parametrize("mistake", ["shape", "seed", "looks", "raises", "words", "nan"])
    def test_mistakes_are_named(self, mistake: str) -> None:
        problems = check_method(Mistaken(mistake=mistake))
        assert any(WORDS[mistake] in problem for problem in problems), problems

    def test_a_transfer_that_is_not_as_declared(self) -> None:
        @dataclass(frozen=True)
        class Moving(NearestMean):
            carries_over: ClassVar[Transfer] = Transfer.TEXT

        problems = check_method(Moving())
        assert any("carries_over is Transfer.TEXT: moving it raises" in p for p in problems)

    def test_a_setting_that_cannot_be_typed(self) -> None:
        problems = check_method(Listed(numbers=(1, 2)))
        assert problems == [
            f"'{__name__}:Listed?numbers=(1, 2)' makes another method: settings are texts, numbers, "
            "true and false, or None"
        ]


WORDS = {
    "shape": "of shape (2, 4) for 4 images and 2 classes",
    "seed": "two fits with the same settings differ",
    "looks": "check() reads the images",
    "raises": "without images it raises IndexError",
    "words": "words() has not one bank for each class",
    "nan": "logits() are not finite",
}


@dataclass(frozen=True)
class Mistaken(NearestMean):
    """Nearest mean with one mistake."""

    mistake: str = "none"

    def check(self, shots, pool, encoder):
        if self.mistake == "looks":
            shots.images.rows(encoder)
        if self.mistake == "raises":
            shots.labels[0] + 1
        elif len(shots.labels):
            super().check(shots, pool, encoder)

    def fit(self, shots, pool, encoder):
        if len(shots.labels) == 0:
            NearestMean().check(shots, pool, encoder)
        fitted = NearestMean().fit(shots, pool, encoder)
        if self.mistake == "seed":
            noise = np.random.default_rng().normal(size=2).astype(np.float32)
            return dataclasses.replace(fitted, origin=self.origin(shots, encoder), intercepts=noise)
        return MistakenClassifier(**{**vars(fitted), "mistake": self.mistake})


@dataclass(frozen=True)
class MistakenClassifier(LinearClassifier):
    """Its classifier."""

    mistake: str = "none"

    def logits(self, images):
        logits = super().logits(images)
        if self.mistake == "nan":
            logits[0] = np.nan
        return logits.T if self.mistake == "shape" else logits

    def words(self):
        return [{"a": 1.0}] if self.mistake == "words" else None


@dataclass(frozen=True)
class Listed(NearestMean):
    """A setting of a type that cannot be typed."""

    numbers: tuple[int, ...] = ()
