"""Drawing: known logits, known chances."""

import math
import random

import pytest

from orchard.gateway.engines.transformers_engine import libraries
from orchard.gateway.engines.transformers_engine.sampling import draw
from orchard.gateway.tokens import Sampling

SHARES = (0.5, 0.25, 0.15, 0.1)


class Dice(random.Random):
    """Gives one number."""

    def __init__(self, number: float) -> None:
        super().__init__()
        self._number = number

    def random(self) -> float:
        return self._number


def drawn(numbers: list[float], *how: Sampling) -> list[tuple[int, float]]:
    rows = libraries.torch().tensor([[math.log(share) for share in SHARES]] * len(numbers))
    every = how if len(how) == len(numbers) else how * len(numbers)
    return [(each, math.exp(logprob)) for each, logprob in draw(rows, every, [Dice(number) for number in numbers])]


def test_each_id_is_drawn_as_often_as_it_is_likely() -> None:
    numbers = [(at + 0.5) / 1000 for at in range(1000)]
    ids = [each for each, _ in drawn(numbers, Sampling())]
    assert [ids.count(each) for each in range(4)] == [500, 250, 150, 100]


def test_the_ends_of_chance_draw_ids_that_are_there() -> None:
    assert [each for each, _ in drawn([0.0, math.nextafter(1, 0)], Sampling())] == [0, 3]


@pytest.mark.parametrize(
    ("how", "shares"),
    [
        (Sampling(top_k=2), (2 / 3, 1 / 3)),
        (Sampling(top_p=0.7), (2 / 3, 1 / 3)),
        (Sampling(top_p=0.5), (1.0,)),
        (Sampling(top_p=0.0), (1.0,)),
        (Sampling(min_p=0.25), (5 / 9, 2.5 / 9, 1.5 / 9)),
        (Sampling(top_k=3, top_p=0.6), (2 / 3, 1 / 3)),
        (Sampling(temperature=0.5, top_k=2), (0.8, 0.2)),
        (Sampling(temperature=0.0, top_k=2), (0.5,)),
    ],
)
def test_what_is_cut_off_is_never_drawn_and_counts_no_more(how: Sampling, shares: tuple[float, ...]) -> None:
    seen = dict(drawn([(at + 0.5) / 1000 for at in range(1000)], how))
    assert seen == pytest.approx(dict(enumerate(shares)), abs=1e-5)


def test_rows_do_not_know_of_each_other() -> None:
    ids, chances = zip(*drawn([0.95] * 3, Sampling(), Sampling(temperature=0.0), Sampling(top_k=1)), strict=True)
    assert ids == (3, 0, 0)
    assert chances == pytest.approx((0.1, 0.5, 1.0), abs=1e-5)
