"""How far served prompts are from what a stock server would have made of the same requests, in tokens.

In ``template`` mode there is no difference. In ``splice`` mode there may be: reasoning that a template leaves out of
earlier turns, sampled ids that tokenise otherwise, forms of a message that a harness changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import chain

from orchard.gateway.rendering.base import Renderer
from orchard.trajectories import CallRecord, Trajectory


@dataclass(frozen=True)
class CallParity:
    """One call's prompt, beside the stock one; all figures in tokens."""

    call: CallRecord
    served: int
    stock: int
    differing: int
    """Those in the one that have no like in the other, the larger number of both sides, place by place."""
    template: bool
    """Whether the same template and tokenizer rendered it as render the stock one here."""


def parity(trajectory: Trajectory, renderer: Renderer) -> list[CallParity]:
    """Compare every call of the session that counts, if it has ids.

    Raises:
        EngineRefused: a recorded prompt cannot be rendered by this template.
    """
    return [
        _of(call, served, stock_prompt(trajectory, call, renderer), renderer)
        for call in trajectory.calls
        if (served := trajectory.prompt_ids(call.id)) is not None
    ]


def stock_prompt(trajectory: Trajectory, call: CallRecord, renderer: Renderer) -> list[int]:
    """Return the ids that the template makes of a recorded request, whole and anew."""
    options = call.sampling.get("chat_template_kwargs")
    return renderer.render(trajectory.prompt(call.id), trajectory.tools(call.id), options=options)


def _of(call: CallRecord, served: list[int], stock: list[int], renderer: Renderer) -> CallParity:
    differing = differing_tokens(served, stock, renderer.stop_ids[0])
    return CallParity(call, len(served), len(stock), differing, call.template_hash == renderer.template_hash)


def differing_tokens(one: Sequence[int], two: Sequence[int], turn_end: int) -> int:
    """Return in how many tokens two prompts differ; turns are put side by side first, then tokens within them."""
    turns, others = _turns(one, turn_end), _turns(two, turn_end)
    total = 0
    for kind, start, end, from_, to in SequenceMatcher(None, turns, others, autojunk=False).get_opcodes():
        if kind != "equal":
            total += _apart(list(chain(*turns[start:end])), list(chain(*others[from_:to])))
    return total


def _turns(ids: Sequence[int], turn_end: int) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    start = 0
    for at, number in enumerate(ids):
        if number == turn_end:
            found.append(tuple(ids[start : at + 1]))
            start = at + 1
    return [*found, tuple(ids[start:])]


def _apart(one: list[int], two: list[int]) -> int:
    codes = SequenceMatcher(None, one, two, autojunk=False).get_opcodes()
    return sum(max(end - start, to - from_) for kind, start, end, from_, to in codes if kind != "equal")
