import io
import os
import pickle

import numpy as np
import pytest

from promptboost.encoders.conse.graphs import read_checkpoint
from promptboost.encoders.runtime import check_published, hash_file
from promptboost.errors import EncoderError


@pytest.fixture
def read(tmp_path):
    """Write bytes to a file, and read it."""

    def read(data):
        file = tmp_path / "weights.pth"
        file.write_bytes(data)
        return read_checkpoint(file)

    return read


def saved(state):
    """Return what torch writes for a state in its old format."""
    torch = pytest.importorskip("torch")
    file = io.BytesIO()
    torch.save(state, file, _use_new_zipfile_serialization=False)
    return file.getvalue()


def test_tensors_are_those_that_torch_saved(read):
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
    tensors = read(saved(state))
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


def test_a_file_that_would_run_something_is_not_read(tmp_path, read):
    folder = tmp_path / "made"
    parts = [0x1950A86A20F9469CFC6C, 1001, {}, {"weight": Runs(str(folder))}, []]
    data = b"".join(pickle.dumps(part, protocol=2) for part in parts)
    with pytest.raises(EncoderError, match=r"may not name .*\.mkdir"):
        read(data)
    assert not folder.exists()


def test_nothing_is_imported_to_read_a_file(read):
    # `c` is the instruction that names something; the module need not exist to be refused.
    with pytest.raises(EncoderError, match=r"may not name antigravity\.fly"):
        read(b"cantigravity\nfly\n.")


def test_a_file_that_is_not_the_published_one_is_refused(tmp_path):
    file = tmp_path / "lite" / "models" / "weights.pth"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"weights")
    check_published(file, hash_file(file))
    with pytest.raises(EncoderError, match=r"not the file that was published.*--no-deps lite"):
        check_published(file, "0" * 32)
