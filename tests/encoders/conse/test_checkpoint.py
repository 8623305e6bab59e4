import io
import os
import pickle

import numpy as np
import pytest

from promptboost.encoders.conse.graphs import read_checkpoint, read_tensors
from promptboost.encoders.runtime import hash_bytes
from promptboost.errors import EncoderError


def saved(state, file=None):
    """Return what torch writes for a state in its old format."""
    torch = pytest.importorskip("torch")
    file = io.BytesIO() if file is None else file
    torch.save(state, file, _use_new_zipfile_serialization=False)
    return file.getvalue()


def test_tensors_are_those_that_torch_saved():
    torch = pytest.importorskip("torch")
    matrix = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    state = {
        "whole": matrix,
        "turned": matrix.T,
        "part": matrix[1:3, 2:5],
        "number": torch.tensor(7),
        "none": torch.zeros(0, 3),
        "repeated": matrix[:1].expand(3, 6),
    }
    tensors = read_tensors(saved(state))
    assert list(tensors) == list(state)
    for name, tensor in state.items():
        np.testing.assert_array_equal(tensors[name], tensor.numpy())
        assert tensors[name].shape == tuple(tensor.shape)


class Runs:
    """Pickled so that reading it makes a folder."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (self.folder,)


def test_a_file_that_would_run_something_is_not_read(tmp_path):
    folder = tmp_path / "made"
    parts = [0x1950A86A20F9469CFC6C, 1001, {}, {"weight": Runs(str(folder))}, []]
    data = b"".join(pickle.dumps(part, protocol=2) for part in parts)
    with pytest.raises(EncoderError, match=r"may not name .*\.mkdir"):
        read_tensors(data)
    assert not folder.exists()


def test_nothing_is_imported_to_read_a_file():
    # `c` is the instruction that names something; the module need not exist to be refused.
    with pytest.raises(EncoderError, match=r"may not name antigravity\.fly"):
        read_tensors(b"cantigravity\nfly\n.")


@pytest.mark.parametrize("end", [0, 1, 20, 200, -1, -9])
def test_a_file_cut_short_is_an_error(end):
    torch = pytest.importorskip("torch")
    with pytest.raises(EncoderError, match="weights"):
        read_tensors(saved({"weight": torch.ones(3)})[:end])


@pytest.mark.parametrize("parts", [[1, 2, 3, {}, []], [0x1950A86A20F9469CFC6C, 1001, {}, [1], []]])
def test_other_pickles_are_no_files_of_weights(parts):
    with pytest.raises(EncoderError, match="torch's old format"):
        read_tensors(b"".join(pickle.dumps(part, protocol=2) for part in parts))


def test_a_tensor_stays_within_its_storage():
    torch = pytest.importorskip("torch")
    data = saved({"weight": torch.arange(300, dtype=torch.float32)})
    # 300 as the pickle writes it: in the storage, the shape, and the list of lengths.
    for longer in (b"M\x2d\x01", b"M\xff\xff"):
        shape = data.rindex(b"M\x2c\x01")
        with pytest.raises(EncoderError, match="beyond its storage"):
            read_tensors(data[:shape] + longer + data[shape + 3 :])


def test_a_file_that_is_not_the_published_one_is_not_read(tmp_path):
    torch = pytest.importorskip("torch")
    file = tmp_path / "lite" / "models" / "weights.pth"
    file.parent.mkdir(parents=True)
    data = saved({"weight": torch.ones(3)})
    file.write_bytes(data)
    assert list(read_checkpoint(file, hash_bytes(data))) == ["weight"]
    with pytest.raises(EncoderError, match=r"not the file that was published.*--no-deps lite"):
        read_checkpoint(file, "0" * 32)
