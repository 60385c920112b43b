import pytest
from slug import slug


def test_words() -> None:
    assert slug("Two Words!") == "two-words"


def test_digits_stay() -> None:
    assert slug("Top 10 books") == "top-10-books"


@pytest.mark.parametrize(("title", "expected"), [("Route 66", "route-66")])
def test_words_and_digits(title: str, expected: str) -> None:
    assert slug(title) == expected
