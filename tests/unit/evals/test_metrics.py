"""Numbers against closed forms and against brute force."""

import itertools
import random
from collections.abc import Callable
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchard.evals.intervals import interval, t_quantile, wilson
from orchard.evals.metrics import pass_at_k, pass_hat_k, summarize
from orchard.trajectories import Failure, RolloutRecord

Make = Callable[..., RolloutRecord]


@pytest.mark.parametrize(
    ("freedom", "value"), [(1, 12.7062), (2, 4.30265), (3, 3.18245), (10, 2.22814), (29, 2.04523), (120, 1.97993)]
)
def test_quantiles_of_t_are_those_of_the_tables(freedom: int, value: float) -> None:
    assert t_quantile(0.975, freedom) == pytest.approx(value, abs=1e-5)


def test_wilson_is_that_of_the_textbook() -> None:
    assert wilson(0.9, 10) == pytest.approx((0.59585, 0.98212), abs=1e-5)
    assert wilson(1.0, 4) == pytest.approx((0.51011, 1.0), abs=1e-5)


@given(st.integers(1, 7).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_and_pass_hat_k_are_what_drawing_k_attempts_gives(case: tuple[int, int, int]) -> None:
    n, c, k = case
    draws = list(itertools.combinations([1] * c + [0] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(fmean(any(draw) for draw in draws))
    assert pass_hat_k(n, c, k) == pytest.approx(fmean(all(draw) for draw in draws))


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    dice = random.Random(7)
    hits = 0
    for _ in range(400):
        truths = [dice.betavariate(2, 2) for _ in range(30)]
        found = interval([[float(dice.random() < p) for _ in range(4)] for p in truths])
        assert found is not None
        hits += found.low <= 0.5 <= found.high
    assert 0.91 <= hits / 400 <= 0.99


def test_no_interval_has_zero_width() -> None:
    for scores in ([[1.0]], [[0.0], [0.0]], [[1.0, 1.0], [1.0, 1.0]], [[0.5], [0.5]]):
        found = interval(scores)
        assert found is not None
        assert found.high - found.low > 0.1


def test_what_could_not_be_judged_is_counted_apart(make_record: Make) -> None:
    broken = Failure(seam="sandbox", reason="oom", text="gone")
    ungraded = Failure(seam="grade", reason="missing", text="full")
    rows = [
        make_record(1.0, task="a", attempt=0), make_record(0.0, task="a", attempt=1),
        make_record(1.0, task="b", attempt=0), make_record(None, task="b", attempt=1, failure=broken),
        make_record(None, task="c", attempt=0, failure=ungraded),
        make_record(None, task="c", attempt=1, failure=broken),
    ]  # fmt: skip
    found = summarize(rows)
    assert (found.tasks, found.attempts, found.judged, found.passed) == (3, 6, 3, 2)
    assert (found.failures, found.missing, found.unjudged_tasks) == ({"sandbox": 2}, 1, 1)
    assert found.mean is not None
    assert found.mean.mean == pytest.approx(0.75)
    assert found.bounds == pytest.approx(((0.5 + 0.5 + 0) / 3, (0.5 + 1 + 1) / 3))
    at_two = found.pass_at[-1]
    assert (at_two.k, at_two.value, at_two.tasks, at_two.short) == (2, 1.0, 1, 2)


def test_nothing_judged_has_no_mean(make_record: Make) -> None:
    found = summarize([make_record(None, failure=Failure(seam="engine", reason="away", text=""))])
    assert found.mean is None
    assert found.pass_at[0].value is None
    assert found.bounds == (0.0, 1.0)
