"""Token-exact engines: what samples takes ids and gives ids; rendering and parsing are done here, once for all of them.

``TokenEngine`` is the seam to a server or model of tokens (vLLM, SGLang, transformers, a script). ``TokenExact`` makes
an ``Engine`` of one and a ``Renderer``: the gateway's recorded ids are the prefix of what comes next.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from orchard.trajectories import PolicySpan


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn. An engine sends every field explicitly: a server's own defaults would truncate silently."""

    max_tokens: int | None = None
    """Most ids to sample; None: as many as the context holds."""
    temperature: float = 1.0
    """0: the likeliest id each time."""
    top_p: float = 1.0
    top_k: int = 0
    """0: all ids."""
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict[int, float])
    seed: int | None = None
    stop_ids: tuple[int, ...] = ()
    """Ids that end the answer; the one that did is the last of the sampled ids. Strings to stop at are not the engine's
    matter."""
    grammar: Mapping[str, Any] | None = None
    """``{"json": SCHEMA}`` or ``{"json_object": True}``: the answer must be such JSON. An engine without grammars
    refuses it (``EngineRefused``)."""

    @property
    def plain(self) -> bool:
        """Whether ids are drawn from the model's own distribution; at temperature 0 nothing is drawn."""
        temperature = self.temperature or 1.0
        return (
            replace(self, max_tokens=None, seed=None, stop_ids=(), grammar=None, temperature=temperature) == Sampling()
        )

    def facts(self) -> dict[str, Any]:
        """Return what is recorded of it: everything but the ids at which any answer ends, and what is not set."""
        return {key: value for key, value in vars(self).items() if key != "stop_ids" and value not in (None, {})}


@dataclass(frozen=True)
class TokenRequest:
    """One prompt, in ids."""

    session: str
    """Calls of a session share their prefixes: one replica serves them."""
    ids: Sequence[int]
    sampling: Sampling
    stream: bool = False
    """Whether somebody wants the tokens live. An engine may give them in any portions anyway."""


@dataclass(frozen=True)
class Tokens:
    """The next sampled ids, the stop id included."""

    ids: list[int]
    logprobs: list[float]
    """Natural logarithms, one for each id, of the distribution that was sampled from (temperature applied)."""
    policy_version: str | None = None
    """Version of the weights that sampled them; None: the one that the engine names when they come."""
    cached_tokens: int = 0
    """Ids of the prompt that were not computed anew, where that is known before the end."""


@dataclass(frozen=True)
class Ended:
    """The last thing an engine yields."""

    finish_reason: Literal["stop", "length", "abort"]
    """``abort``: the engine gave it up (its weights are being replaced …); the call may be tried again."""
    policy_version: str | None = None
    """Version of the weights that sampled the last id."""
    spans: tuple[PolicySpan, ...] = ()
    """Which weights sampled which ids, where they changed in mid-answer."""
    cached_tokens: int = 0
    """Ids of the prompt that were not computed anew."""
    routed_experts: str | None = None
    """Which experts worked on each id: base64 of a NumPy file, as the engine gave it."""


class TokenEngine(Protocol):
    """What samples ids. One object serves many sessions at once."""

    @property
    def name(self) -> str:
        """Short word for the record: ``vllm``, ``sglang``, ``transformers`` …."""
        ...

    @property
    def policy_version(self) -> str | None:
        """Version of the weights that sample now, where known."""
        ...

    @property
    def context(self) -> int | None:
        """Most ids of prompt and answer together, where known."""
        ...

    def generate(self, request: TokenRequest) -> AsyncGenerator[Tokens | Ended]:
        """Yield the sampled ids in any portions, then exactly one end. Closing the generator ends the sampling.

        Raises:
            EngineUnavailable: may be tried again.
            EngineRefused: never will be otherwise.
        """
        ...

    async def abort(self, session: str) -> None:
        """End whatever is being sampled for a session."""
        ...

    async def update_weights(self, path: Path, version: str) -> None:
        """Sample with the weights in the folder ``path`` from now on, under this version.

        Raises:
            EngineUnavailable: it did not take them.
            EngineRefused: they are not weights of this model.
        """
        ...

    async def close(self) -> None:
        """Release what it holds."""
        ...
