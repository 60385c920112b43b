"""SGLang's server: ids in, ids and log-probabilities out, new weights while it runs.

Written after its wire and tested against recorded answers; it was never run against a real server here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from orchard.gateway.engines.http import logprob
from orchard.gateway.engines.running import Call
from orchard.gateway.engines.served import Answer, ServedEngine
from orchard.gateway.errors import EngineRefused, EngineUnavailable
from orchard.gateway.tokens import TokenRequest, Tokens
from orchard.trajectories.messages import Message

_UNNAMED = (None, "default")
"""What the server calls the weights that it was started with."""


class SglangEngine(ServedEngine):
    """Asks ``/generate`` of an SGLang server.

    Args:
        base_url: with or without ``/v1``.
        options: see ``ServedEngine``.
    """

    name = "sglang"
    _path = "/generate"
    _raw_logprobs = "without SGLANG_RETURN_ORIGINAL_LOGPROB"

    def __init__(self, base_url: str, **options: Any) -> None:
        super().__init__(base_url, **options)
        self._first = self.policy_version

    async def abort(self, session: str) -> None:
        """End what is being sampled for a session; what was sampled until then still comes."""
        for call in self._calls.of(session):
            await self._server.call("/abort_request", {"rid": call.id, "abort_all": False})

    async def _hold(self) -> None:
        await self._server.call("/pause_generation", {"mode": "retract"})

    async def _load(self, path: Path, version: str) -> None:
        load = {"model_path": str(path), "weight_version": version, "flush_cache": True, "abort_all_requests": False}
        said = await self._server.call("/update_weights_from_disk", load)
        if not said.get("success"):
            raise EngineRefused(f"the server did not take the weights in {path}: {said.get('message')}")

    async def _holds(self, version: str) -> bool:
        return (await self._server.call("/get_model_info", method="GET")).get("weight_version") == version

    async def _go_on(self) -> None:
        await self._server.call("/continue_generation", {})

    def _reading(self, request: TokenRequest, call: Call) -> Answer:
        return _Reading(request, call, self._first)

    def _body(self, request: TokenRequest, call: Call) -> Message:
        drawn = request.sampling
        sampling: Message = {
            "max_new_tokens": self._room(request), "temperature": drawn.temperature, "top_p": drawn.top_p,
            "top_k": drawn.top_k or -1, "min_p": drawn.min_p, "presence_penalty": drawn.presence_penalty,
            "frequency_penalty": drawn.frequency_penalty, "repetition_penalty": drawn.repetition_penalty,
            "stop_token_ids": list(drawn.stop_ids),
        }  # fmt: skip
        if drawn.seed is not None:
            sampling["sampling_seed"] = drawn.seed
        if drawn.logit_bias:
            sampling["logit_bias"] = {str(key): value for key, value in drawn.logit_bias.items()}
        if drawn.grammar:
            sampling["json_schema"] = json.dumps(drawn.grammar.get("json") or {"type": "object"})
        return {
            "rid": call.id, "input_ids": list(request.ids), "sampling_params": sampling, "return_logprob": True,
            "stream": True,
        }  # fmt: skip

    def _probe(self, request: TokenRequest, temperature: float) -> Message:
        sampling = {"max_new_tokens": 1, "temperature": temperature}
        return {
            "input_ids": list(request.ids), "sampling_params": sampling, "return_logprob": True, "top_logprobs_num": 2,
        }  # fmt: skip

    def _second(self, facts: Message) -> float:
        return facts["meta_info"]["output_top_logprobs"][0][1][0]


class _Reading(Answer):
    def __init__(self, request: TokenRequest, call: Call, first: str | None) -> None:
        super().__init__(request, call)
        self._first = first

    def take(self, facts: Message, version: str | None) -> Tokens:
        """An event repeats everything, or tells what is new, as the server was started; the count says which."""
        meta = cast("Message", facts["meta_info"])
        finished = cast("Message", meta.get("finish_reason") or {})
        self.reason = finished.get("type") or self.reason
        self.cached_tokens = int(meta.get("cached_tokens") or self.cached_tokens)
        told, total = cast("list[Any] | None", meta.get("output_token_logprobs")), int(meta["completion_tokens"])
        if told is None:
            raise EngineRefused("the server gives no token ids with their log-probabilities: it is no SGLang of 0.5")
        new = told[self.call.ids :] if len(told) == total else told
        if self.call.ids + len(new) != total:
            raise EngineUnavailable(f"the server tells of {total} ids and gave {self.call.ids + len(new)}")
        named = meta.get("weight_version")
        sampled_by = self._first if named in _UNNAMED else str(named)
        self.call.sampled(len(new), sampled_by)
        ids, logprobs = [int(entry[1]) for entry in new], [logprob(entry[0]) for entry in new]
        return Tokens(ids, logprobs, sampled_by, self.cached_tokens)
