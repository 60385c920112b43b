"""What a request asks of sampling."""

from typing import Any

import pytest

from orchard.core.errors import InvalidArgument
from orchard.gateway.sampling import asked, check_tool_choice, for_training, mask_reason


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


CONSTRAINED: dict[str, Any] = {
    "guided_json": {}, "guided_regex": "a+", "guided_grammar": "g", "guided_choice": ["a"],
    "structured_outputs": {"regex": "a"}, "allowed_token_ids": [1], "bad_words": ["x"], "min_tokens": 5,
    "ignore_eos": True, "logit_bias": {"5": 1},
}  # fmt: skip


@pytest.mark.parametrize("name", CONSTRAINED)
def test_what_constrains_an_answer_masks_it_or_is_left_out_of_training(name: str) -> None:
    params = {name: CONSTRAINED[name]}
    assert mask_reason(params) == name
    assert for_training({**params, "seed": 1}) == ({"seed": 1}, params)
    if name in ("min_tokens", "ignore_eos"):
        assert asked(params, ()).dropped == (name,)
    elif name != "logit_bias":
        with pytest.raises(InvalidArgument, match=name) as refused:
            asked(params, ())
        assert refused.value.field == name


def test_what_an_engine_of_tokens_does_not_know_is_named() -> None:
    params = {"logprobs": True, "top_logprobs": 2, "user": "u", "store": False, "metadata": {}, "top_p": 0.5}
    assert asked(params, ()).dropped == ("logprobs", "top_logprobs", "user")
    assert asked({"guided_json": None, "guided_choice": [], "min_tokens": 0, "bad_words": []}, ()).dropped == ()


TOOLS = [{"type": "function", "function": {"name": "bash"}}]


@pytest.mark.parametrize(
    ("choice", "tools"),
    [({"type": "function", "function": {"name": "other"}}, TOOLS), ("required", []), ("any", TOOLS), (7, TOOLS),
     ({"type": "function", "function": {"name": "bash"}}, []), ({"type": "allowed_tools"}, TOOLS),
     ({"type": "function", "function": "bash"}, TOOLS), ({"name": "bash"}, TOOLS)],
)  # fmt: skip
def test_a_choice_of_no_tool_that_is_there_is_refused(choice: Any, tools: Any) -> None:
    with pytest.raises(InvalidArgument) as refused:
        check_tool_choice(choice, tools)
    assert refused.value.field == "tool_choice"


def test_a_choice_among_the_tools_is_taken() -> None:
    for choice in (None, "auto", "none", "required", {"type": "function", "function": {"name": "bash"}}):
        check_tool_choice(choice, TOOLS)
    check_tool_choice("auto", [])
