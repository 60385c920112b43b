"""Ids that conversations share are held once, and come back whole."""

from hypothesis import given
from hypothesis import strategies as st

from orchard.gateway.shared_ids import SharedIds

IDS = st.lists(st.integers(0, 3), max_size=12)


@given(st.lists(st.tuples(st.integers(0, 5), IDS), min_size=1, max_size=8), IDS)
def test_any_tree_of_them(steps: list[tuple[int, list[int]]], other: list[int]) -> None:
    held: list[tuple[SharedIds, list[int]]] = [(SharedIds(None, 0, []), [])]
    for which, prompt in steps:
        parent, whole = held[which % len(held)]
        kept = parent.common(prompt)
        assert prompt[:kept] == whole[:kept]
        assert kept == min(len(prompt), len(whole)) or prompt[kept] != whole[kept]
        held.append((SharedIds(parent, kept, [*prompt[kept:], 9]), [*prompt, 9]))
    for one, whole in held:
        assert list(one.whole()) == whole
        assert len(one) == len(whole)
    longest, whole = held[-1]
    assert longest.common([*whole, *other]) == len(whole)
