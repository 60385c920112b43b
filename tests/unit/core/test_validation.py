"""What is told of the first thing that a validation found wrong."""

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError, field_validator

from orchard.core.errors import InvalidArgument
from orchard.core.validation import first_fault
from orchard.tasks.release_pair.pairs import read


class Inner(BaseModel):
    size: int = 1
    path: str = "a"

    @field_validator("path")
    @classmethod
    def _relative(cls, path: str) -> str:
        if path.startswith("/"):
            raise ValueError(f"{path} is not relative")
        return path


class Outer(BaseModel):
    parts: list[Inner]


@pytest.mark.parametrize(
    ("value", "where", "words"),
    [
        ({"parts": [{}, {"size": "x"}]}, "parts.1.size", "Input should be a valid integer"),
        ({"parts": [{"path": "/b"}]}, "parts.0.path", "/b is not relative"),
        ({}, "parts", "Field required"),
    ],
)
def test_first_fault_has_its_place_and_the_words_of_who_refused(value: Any, where: str, words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate(value)
    found = first_fault(caught.value.errors())
    assert found[0] == where
    assert found[1].startswith(words)


def test_a_pair_is_refused_in_our_words_alone() -> None:
    with pytest.raises(InvalidArgument, match=r"^left-pad@1\.0\.\.x-y: 'x-y' is no version$"):
        read("left-pad@1.0..x-y")
