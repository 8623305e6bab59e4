"""Pools to try things on."""

from hypothesis import strategies as st

from promptboost.pool import build_pool

NAMES = ("owl", "bat", "eel", "Car_or_truck")
SOURCES = ("CuPL", "DCLIP", "AWT")

sentences = st.lists(
    st.sampled_from(
        ["eyes", "Eyes", "a  BEAK", "a beak", "é", "e\u0301", "ß", "SS", "an owl. eyes"]
    ),
    min_size=1,
    max_size=4,
)
templates = st.sets(st.sampled_from(["a {}.", "the {}.", "one {}"]), min_size=1).map(sorted)


@st.composite
def pools(draw, names=None):
    """Draw a pool of some of four classes, with up to three sources."""
    own = draw(st.permutations(NAMES)) if names is None else names
    own = own[: draw(st.integers(1, len(own)))] if names is None else own
    chosen = draw(st.sets(st.sampled_from(SOURCES), min_size=1).map(sorted))
    files = {
        source: {name: draw(sentences) for name in own if draw(st.booleans()) or name == own[0]}
        for source in chosen
    }
    return build_pool(
        own,
        templates=draw(templates),
        descriptions={**files, chosen[0]: {**files[chosen[0]], "cow": ["moo"]}},
        concatenate=draw(st.sampled_from(["none", "one", "all"])),
    )


def content(pool):
    """Everything a pool says, as plain lists."""
    prompts = {name: list(pool.prompts(name)) for name in pool.class_names}
    return (pool.class_names, pool.templates, pool.missing, pool.unused, prompts)
