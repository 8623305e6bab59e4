import io

import pytest
from PIL import Image

from promptboost.data import decode
from promptboost.data.decode import check_one, cut_off
from tests.data.image_tools import encoded, plain

JPEG, PNG = (encoded(plain(size=(16, 16)), form) for form in ("JPEG", "PNG"))


def _files(folder, contents):
    files = []
    for name, content in contents.items():
        files.append(folder / name)
        files[-1].write_bytes(content)
    return files


def test_whole_images_are_not_decoded(tmp_path, monkeypatch):
    files = _files(tmp_path, {"a.jpg": JPEG, "b.png": PNG})
    monkeypatch.setattr(decode, "check_one", lambda *_: pytest.fail("decoded without need"))
    assert cut_off(files) == []


@pytest.mark.parametrize("content", [JPEG, PNG], ids=["jpeg", "png"])
def test_cuts_are_found_as_if_all_were_decoded(tmp_path, content):
    cuts = {f"{kept:05}": content[:kept] for kept in range(0, len(content), 7)}
    files = _files(tmp_path, cuts)
    decoded = [bad for file in files if (bad := check_one(file, str(file)))]
    assert cut_off(files) == decoded
    assert len(decoded) > len(files) - 5  # the last bytes may go without harm to the pixels


def test_good_images_that_end_otherwise_are_kept(tmp_path):
    gif = io.BytesIO()
    Image.new("P", (4, 4)).save(gif, "GIF")
    padded = {"padded.jpg": JPEG + b"\0" * 40, "a.gif": gif.getvalue()}
    assert cut_off(_files(tmp_path, padded)) == []


def test_what_is_no_image(tmp_path):
    files = _files(tmp_path, {"page.jpg": b"<html>Not found</html>"})
    found = cut_off([*files, tmp_path / "gone.jpg", tmp_path])
    assert [bad.reason for bad in found] == [
        "not an image of a known kind",
        "no such file",
        "a folder, not an image",
    ]


def test_order_and_number_do_not_hang_on_threads(tmp_path, monkeypatch):
    monkeypatch.setattr(decode, "_AT_ONCE", 3)
    files = _files(tmp_path, {f"{i:02}": JPEG if i % 2 else JPEG[:30] for i in range(20)})
    found = cut_off(files, workers=4)
    assert [bad.path for bad in found] == [str(file) for file in files[::2]]
    assert cut_off([]) == []
