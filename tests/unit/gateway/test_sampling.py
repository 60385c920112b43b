"""What a request asks of sampling."""

from typing import Any

import pytest

from orchard.core.errors import InvalidArgument
from orchard.gateway.sampling import asked, for_training, mask_reason


def test_openais_words_are_read() -> None:
    params: dict[str, Any] = {
        "max_tokens": 9, "temperature": 0, "top_k": -1, "seed": 3, "stop": "END", "logit_bias": {"7": -1.5},
        "tool_choice": {"type": "function", "function": {"name": "bash"}}, "chat_template_kwargs": {"a": 1},
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
    }  # fmt: skip
    found = asked(params, (2,))
    sampling = found.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_k, sampling.seed) == (9, 0.0, 0, 3)
    assert (sampling.logit_bias, sampling.grammar, sampling.stop_ids) == ({7: -1.5}, {"json": {"type": "object"}}, (2,))
    assert (found.stop, found.forced, found.forced_tool, found.options) == (("END",), True, "bash", {"a": 1})
    assert asked({"max_tokens": 5, "max_completion_tokens": 4}, ()).sampling.max_tokens == 4
    assert asked({"tool_choice": "none"}, ()).no_calls
    assert (asked({"tool_choice": "required"}, ()).forced, asked({"tool_choice": "auto"}, ()).forced) == (True, False)


def test_an_answer_is_bounded_by_what_is_asked_and_by_the_context() -> None:
    assert asked({}, ()).within(None, None).max_tokens is None
    assert asked({}, ()).within(8, None).max_tokens == 8
    assert asked({"max_tokens": 20}, ()).within(8, 15).max_tokens == 15
    assert asked({"max_tokens": 3}, ()).within(8, 15).max_tokens == 3


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", -0.1), ("temperature", "hot"), ("temperature", True), ("top_p", 1.5), ("max_tokens", 0),
     ("max_tokens", 1.5), ("seed", "x"), ("logit_bias", {"a": 1}), ("logit_bias", []), ("min_p", float("nan")),
     ("response_format", "json"), ("chat_template_kwargs", 3)],
)  # fmt: skip
def test_what_is_no_value_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidArgument) as refused:
        asked({name: value}, ())
    assert refused.value.field == name


def test_training_leaves_out_what_changes_the_distribution() -> None:
    harmless = {"temperature": 0.7, "top_p": 1.0, "top_k": -1, "min_p": 0, "presence_penalty": 0.0, "logit_bias": {},
                "repetition_penalty": 1, "frequency_penalty": None, "max_tokens": 5}  # fmt: skip
    assert for_training(harmless) == (harmless, {})
    bad = {"top_p": 0.9, "top_k": 20, "min_p": 0.1, "frequency_penalty": 0.1, "presence_penalty": 1,
           "repetition_penalty": 1.1, "logit_bias": {"1": 2}}  # fmt: skip
    assert for_training({**bad, "temperature": 0.5}) == ({"temperature": 0.5}, bad)


def test_answers_under_a_mask_are_known() -> None:
    for params, reason in [
        ({}, None), ({"tool_choice": "auto"}, None), ({"tool_choice": "none"}, None),
        ({"tool_choice": "required"}, "tool_choice"), ({"tool_choice": {"type": "function"}}, "tool_choice"),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, "response_format"),
    ]:  # fmt: skip
        assert mask_reason(params) == reason
