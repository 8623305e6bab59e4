import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptboost.encoders.base import batches
from promptboost.encoders.runtime import encode_by_length


def length_batches(lengths, size):
    """Return the batches that are encoded."""
    batches = []

    def encode(batch, length):
        batches.append(batch)
        return np.zeros((len(batch), 1), dtype=np.float32)

    encode_by_length(lengths, 1, size, encode)
    return batches


lengths_of_texts = st.lists(st.integers(1, 300), max_size=60)


@given(lengths_of_texts, st.integers(1, 9))
def test_every_text_is_in_one_batch_of_similar_texts(lengths, size):
    batches = length_batches(lengths, size)
    assert sorted(position for batch in batches for position in batch) == list(range(len(lengths)))
    for batch in batches:
        inside = [lengths[position] for position in batch]
        assert 1 <= len(batch) <= size
        assert max(inside) - min(inside) < 8


@given(lengths_of_texts, st.integers(1, 9))
def test_rows_come_back_in_the_order_of_the_texts(lengths, size):
    def encode(batch, length):
        assert length == max(lengths[position] for position in batch)
        return np.array([[position, lengths[position]] for position in batch], dtype=np.float32)

    rows = encode_by_length(lengths, 2, size, encode)
    assert rows.dtype == np.float32
    assert rows.tolist() == [[position, length] for position, length in enumerate(lengths)]


def test_batches_read_no_further_than_needed():
    source = iter(range(10))
    assert next(batches(source, 3)) == [0, 1, 2]
    assert next(source) == 3


def test_batches_are_full_where_they_can_be():
    assert [len(batch) for batch in length_batches([10] * 130, 64)] == [64, 64, 2]


def test_one_long_text_is_alone():
    batches = length_batches([8, 77, 7, 6], 64)
    assert [batch.tolist() for batch in batches] == [[3, 2, 0], [1]]


def test_an_error_while_encoding_is_not_swallowed():
    def encode(batch, length):
        raise MemoryError

    with pytest.raises(MemoryError):
        encode_by_length([3], 2, 4, encode)
