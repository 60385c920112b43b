"""What a request asks of sampling: read once, bounded, and kept free of what changes the distribution in training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from orchard.core.errors import InvalidArgument
from orchard.gateway.tokens import Sampling

_DISTORTING: Mapping[str, Any] = {
    "top_p": 1, "top_k": (0, -1), "min_p": 0, "typical_p": 1, "presence_penalty": 0, "frequency_penalty": 0,
    "repetition_penalty": 1,
}  # fmt: skip
_CONSTRAINING: Mapping[str, Any] = {
    "logit_bias": {}, "min_tokens": 0, "ignore_eos": False, "bad_words": [], "allowed_token_ids": [],
    "guided_json": None, "guided_regex": None, "guided_grammar": None, "guided_choice": [],
    "structured_outputs": None,
}  # fmt: skip
"""Parameters that forbid some ids: what they let through was not drawn freely. And the values that forbid none."""
_BENDING: Mapping[str, Any] = {**_DISTORTING, **_CONSTRAINING}
"""Parameters by which the sampled distribution is no longer the model's, and the values that leave it alone."""
_READ = frozenset(_DISTORTING) - {"typical_p"} | {
    "max_tokens", "max_completion_tokens", "temperature", "logit_bias", "seed", "stop", "response_format",
    "tool_choice", "chat_template_kwargs",
}  # fmt: skip
"""Parameters that ``asked`` reads."""
_PROMISING = frozenset(
    ("guided_json", "guided_regex", "guided_grammar", "guided_choice", "structured_outputs", "allowed_token_ids",
     "bad_words")
)  # fmt: skip
"""Parameters on whose effect whoever reads the answer counts: they are never left aside in silence."""


def for_training(params: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the parameters without those that change the distribution, and those left out."""
    left_out = {key: value for key, value in params.items() if key in _BENDING and not _harmless(key, value)}
    return {key: value for key, value in params.items() if key not in left_out}, left_out


def _harmless(name: str, value: Any) -> bool:
    neutral = _BENDING[name]
    return value is None or (value in neutral if isinstance(neutral, tuple) else value == neutral)


def mask_reason(params: Mapping[str, Any]) -> str | None:
    """Return the parameter for which an answer is not drawn freely: ``tool_choice``, ``guided_json`` …, or None."""
    if params.get("tool_choice") not in (None, "auto", "none"):
        return "tool_choice"
    form: Any = params.get("response_format")
    kind = cast("dict[str, Any]", form).get("type") if isinstance(form, dict) else None
    if kind not in (None, "text"):
        return "response_format"
    return next((name for name in _CONSTRAINING if not _harmless(name, params.get(name))), None)


def check_tool_choice(choice: Any, tools: Sequence[Mapping[str, Any]]) -> None:
    """See that a request in the common form chooses among the tools that it has.

    Raises:
        InvalidArgument: it forces one that is not there, or is of a form that chat completions do not have.
    """
    if choice in (None, "auto", "none"):
        return
    function: Any = cast("dict[str, Any]", choice).get("function") if isinstance(choice, dict) else None
    name: Any = cast("dict[str, Any]", function).get("name") if isinstance(function, dict) else None
    if choice != "required" and not isinstance(name, str):
        raise InvalidArgument(
            "tool_choice must be auto, none, required, or name a function of tools", field="tool_choice"
        )
    names = [cast("Mapping[str, Any]", tool.get("function") or tool).get("name") for tool in tools]
    if not names or (choice != "required" and name not in names):
        raise InvalidArgument(
            f"tool_choice forces {name or 'a tool'!r}, and tools has no such one", field="tool_choice"
        )


@dataclass(frozen=True)
class Asked:
    """A request's parameters, as a token-exact engine uses them."""

    sampling: Sampling
    stop: tuple[str, ...] = ()
    forced: bool = False
    """Whether a tool must be called."""
    forced_tool: str | None = None
    """Which one, if it must be that."""
    no_calls: bool = False
    """Whether none may be called."""
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    """For the chat template."""
    dropped: tuple[str, ...] = ()
    """Parameters that no engine of tokens has a use for, by name."""

    def within(self, most: int | None, room: int | None) -> Sampling:
        """Return the sampling with an answer's length bounded.

        Args:
            most: bound where the request gives none.
            room: what the context leaves.
        """
        wanted = self.sampling.max_tokens or most
        bounds = [bound for bound in (wanted, room) if bound is not None]
        return replace(self.sampling, max_tokens=min(bounds, default=None))

    def facts(self, sampling: Sampling) -> dict[str, Any]:
        """Return what is recorded of it all, in OpenAI's words."""
        beside: dict[str, Any] = {
            "stop": list(self.stop), "chat_template_kwargs": self.options,
            "tool_choice": self.forced_tool or "required" if self.forced else None,
        }  # fmt: skip
        return {**sampling.facts(), **{key: value for key, value in beside.items() if value}}


def asked(params: Mapping[str, Any], stop_ids: tuple[int, ...]) -> Asked:
    """Read the parameters of a request in OpenAI's words.

    Raises:
        InvalidArgument: a value is none; ``field`` names it.
    """
    choice: Any = params.get("tool_choice")
    named = cast("dict[str, Any]", choice) if isinstance(choice, dict) else {}
    tool = cast("dict[str, Any]", named.get("function") or named).get("name")
    sampling = Sampling(
        max_tokens=_whole(params, "max_completion_tokens", low=1) or _whole(params, "max_tokens", low=1),
        temperature=_number(params, "temperature", 1.0, low=0.0),
        top_p=_number(params, "top_p", 1.0, low=0.0, high=1.0),
        top_k=max(0, _whole(params, "top_k", low=-1) or 0),
        min_p=_number(params, "min_p", 0.0, low=0.0, high=1.0),
        presence_penalty=_number(params, "presence_penalty", 0.0, low=-2.0, high=2.0),
        frequency_penalty=_number(params, "frequency_penalty", 0.0, low=-2.0, high=2.0),
        repetition_penalty=_number(params, "repetition_penalty", 1.0, low=0.01),
        logit_bias=_biases(params.get("logit_bias")),
        seed=_whole(params, "seed"),
        stop_ids=stop_ids,
        grammar=_grammar(params.get("response_format")),
    )
    return Asked(
        sampling, stop=_stops(params.get("stop")),
        forced=choice == "required" or bool(named), forced_tool=tool if isinstance(tool, str) else None,
        no_calls=choice == "none", options=_object(params.get("chat_template_kwargs"), "chat_template_kwargs"),
        dropped=_unread(params),
    )  # fmt: skip


def _unread(params: Mapping[str, Any]) -> tuple[str, ...]:
    unread = [name for name in params if name not in _READ]
    for name in unread:
        if name in _PROMISING and not _harmless(name, params[name]):
            raise InvalidArgument(
                f"an engine of tokens does not know {name}: use response_format, or leave it out", field=name
            )
    return tuple(name for name in unread if params[name] not in (None, False, "", [], {}) and name not in _PROMISING)


def _number(params: Mapping[str, Any], name: str, default: float, *, low: float, high: float = math.inf) -> float:
    value = params.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise InvalidArgument(f"{name} must be a number of {low:g} to {high:g}, not {value!r}", field=name)
    return float(value)


def _whole(params: Mapping[str, Any], name: str, low: int | None = None) -> int | None:
    value = params.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or (low is not None and value < low):
        bound = "" if low is None else f" of {low} or more"
        raise InvalidArgument(f"{name} must be a whole number{bound}, not {value!r}", field=name)
    return value


def _stops(value: Any) -> tuple[str, ...]:
    given = [value] if isinstance(value, str) else value or []
    if not isinstance(given, list) or not all(isinstance(one, str) for one in cast("list[Any]", given)):
        raise InvalidArgument("stop must be a text, or a list of texts", field="stop")
    return tuple(filter(None, cast("list[str]", given)))


def _object(value: Any, name: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidArgument(f"{name} must be an object", field=name)
    return cast("dict[str, Any]", value)


def _biases(value: Any) -> dict[int, float]:
    try:
        return {int(key): float(bias) for key, bias in _object(value, "logit_bias").items()}
    except (TypeError, ValueError):
        raise InvalidArgument("logit_bias must give a number for each token id", field="logit_bias") from None


def _grammar(value: Any) -> dict[str, Any] | None:
    form = _object(value, "response_format")
    if form.get("type") == "json_schema":
        return {"json": _object(form.get("json_schema"), "response_format.json_schema").get("schema") or {}}
    return {"json_object": True} if form.get("type") == "json_object" else None
