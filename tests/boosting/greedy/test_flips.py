"""Bounds of the search hold, to the last step of the grid."""

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from promptboost.boosting.greedy import flips

COSINE = st.integers(-(2**30), 2**30)
SIZE = st.integers(1, 2**15)


@given(
    COSINE, SIZE, SIZE, st.integers(1, 2**15), st.booleans(), st.booleans(), st.integers(0, 2**61)
)
@example(0, 1, 1, 1, True, True, 1)
@example(5, 3, 2, 2, True, False, 6)
def test_the_least_cosine_that_flips_a_row(rival, size, own, copies, tie, up, gap):
    """Beside the threshold, one number decides as counting copies does."""
    gap %= 2**31 * size * own
    tie = tie and gap > 0
    sign = 1 if up else -1
    scale, offset = sign * size, sign * rival * size
    terms = np.array([[gap, scale, offset, tie]], dtype=np.int64)
    kept = flips.Kept(np.zeros((1, 1), np.int32), terms, np.ones(1, np.int64))
    least = flips.fewest_needed(kept, 0, copies)
    for turned in range(max(least - 2, -(2**30)), min(least + 3, 2**30)):
        cosine = turned if up else ~turned
        d = flips.fewest_copies(gap, scale * cosine - offset, tie, copies)
        assert (turned >= least) == (d > 0)


def candidates(seed):
    """Kept rows with random roles and products, many of them at a threshold."""
    rng = np.random.default_rng(seed)
    slots, P = int(rng.integers(1, 40)), 30
    size = int(rng.integers(1, 5))
    sign = rng.choice([-1, 1], slots)
    rival = rng.integers(-50, 50, slots)
    gap = rng.integers(0, 60, slots)
    tie = (rng.random(slots) < 0.5) & (gap > 0)
    terms = np.stack([gap, sign * size, sign * rival * size, tie], axis=1).astype(np.int64)
    roles = rng.choice([-7, -1, 0, 1, 3, 2**36 // 3], slots).astype(np.int64)
    wide = rng.integers(-60, 60, (P, slots + int(rng.integers(0, 20)))).astype(np.int32)
    return flips.Kept(wide, terms, roles)


@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 3, 4, 5, 8, 9, 2**15]), st.booleans())
def test_no_candidate_is_worth_more_than_its_bound(seed, limit, penalty):
    kept = candidates(seed)
    bounds = np.empty(len(kept.products))
    flips.bound_candidates(kept, limit, penalty, bounds)
    for p, bound in enumerate(bounds):
        copies = [flips.copies_in_slot(kept, p, j, limit) for j in range(len(kept.roles))]
        flipped = [(d, role) for d, role in zip(copies, kept.roles, strict=True) if d > 0]
        for d in {d for d, _ in flipped}:
            gain = sum(int(role) for other, role in flipped if other <= d)
            if gain > 0:
                assert bound * (1 + 1e-9) >= (gain / d if penalty else gain)


@given(st.integers(0, 2**32 - 1), st.integers(1, 3))
def test_a_bound_of_one_or_two_copies_of_equal_rows_is_exact(seed, limit):
    kept = candidates(seed)
    kept = kept._replace(roles=29_020_049 * np.sign(kept.roles))
    limit = min(limit, 2)
    bounds = np.empty(len(kept.products))
    flips.bound_candidates(kept, limit, True, bounds)
    for p, bound in enumerate(bounds):
        copies = [flips.copies_in_slot(kept, p, j, limit) for j in range(len(kept.roles))]
        worth = max(
            sum(int(r) for c, r in zip(copies, kept.roles, strict=True) if 0 < c <= d) / d
            for d in range(1, limit + 1)
        )
        if worth > 0:
            assert bound == worth
