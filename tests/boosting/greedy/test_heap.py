import heapq

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from promptboost.boosting.greedy.flips import make_heap, second_bound, sift_down


@given(st.lists(st.integers(-2, 4), max_size=30))
def test_candidates_come_from_the_largest_bound_down_and_the_lowest_index_first(values):
    bounds = np.array(values, dtype=np.float64)
    expected = [(-bound, p) for p, bound in enumerate(values) if bound > 0]
    heapq.heapify(expected)
    heap = np.zeros(max(1, len(values)), dtype=np.int64)
    size = make_heap(bounds, heap)
    assert size == len(expected)
    while size:
        rest = heapq.nsmallest(2, expected)
        assert second_bound(heap, size, bounds) == (-rest[1][0] if size > 1 else 0)
        assert heap[0] == heapq.heappop(expected)[1]
        size -= 1
        heap[0] = heap[size]
        sift_down(heap, size, bounds, 0)
