"""vLLM's server: ids in, ids and log-probabilities out, new weights while it runs.

It must be started with ``--logprobs-mode processed_logprobs``. With ``VLLM_SERVER_DEV_MODE=1`` it takes weights by
path; with ``--enable-lora`` and ``VLLM_ALLOW_RUNTIME_LORA_UPDATING=1`` adapters.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, cast

from orchard.gateway.engines.adapters import Adapters
from orchard.gateway.engines.http import logprob
from orchard.gateway.engines.running import Call
from orchard.gateway.engines.served import Answer, ServedEngine
from orchard.gateway.errors import EngineRefused
from orchard.gateway.tokens import TokenRequest, Tokens
from orchard.trajectories.messages import Message


class VllmEngine(ServedEngine):
    """Asks ``/v1/completions`` of a vLLM server.

    Args:
        base_url: with or without ``/v1``.
        lora: ``update_weights`` is given adapters, not whole weights.
        routed_experts: keep which experts worked on each id (``--enable-return-routed-experts``). vLLM tells them with
            whole answers only: nothing is live then, and new weights wait until the running answers are whole.
        options: see ``ServedEngine``.
    """

    name = "vllm"
    _path = "/v1/completions"
    _raw_logprobs = "with --logprobs-mode processed_logprobs"

    def __init__(self, base_url: str, *, lora: bool = False, routed_experts: bool = False, **options: Any) -> None:
        super().__init__(base_url, **options)
        self._lora, self._whole = lora, routed_experts
        self._adapters = Adapters(self._server)

    async def _take(self, path: Path, version: str) -> None:
        if not self._lora:
            await super()._take(path, version)
            return
        await self._adapters.load(path, version)  # nothing is held: running answers end as they began
        self.policy_version, self._given = version, (path, version)

    async def _holds(self, version: str) -> bool:
        if self._lora:
            models = await self._server.call("/v1/models", method="GET")
            return any(model["id"] == self._adapters.newest for model in models["data"])
        return (await self._server.call("/weight_info", method="GET")).get("weight_version") == version

    async def _hold(self) -> None:
        try:
            await self._server.call("/weight_info", method="GET")
        except EngineRefused as error:
            raise EngineRefused(
                f"{self._server.url} takes no weights by path; it must be vLLM 0.32 or newer",
                http_status=error.http_status, hint="start it with VLLM_SERVER_DEV_MODE=1",
            ) from error  # fmt: skip
        await self._server.call("/pause?mode=" + ("wait" if self._whole else "keep"))

    async def _load(self, path: Path, version: str) -> None:
        load = {"method": "reload_weights", "kwargs": {"weights_path": str(path)}}
        await self._server.call("/collective_rpc", load)
        await self._server.call("/reset_prefix_cache")
        await self._server.call("/update_weight_version", {"new_version": version})

    async def _go_on(self) -> None:
        await self._server.call("/resume")

    async def close(self) -> None:
        """Close the connections; the newest adapter stays on the server."""
        await self._adapters.close()
        await super().close()

    def _using(self) -> AbstractContextManager[None]:
        return self._adapters.used()

    def _version(self, reading: Answer) -> str | None:
        return cast("_Reading", reading).began if self._lora else self.policy_version

    def _reading(self, request: TokenRequest, call: Call) -> Answer:
        return _Reading(request, call, self.policy_version)

    def _body(self, request: TokenRequest, call: Call) -> Message:
        drawn = request.sampling
        body: Message = {
            "model": self._adapters.newest or self._model, "prompt": list(request.ids), "return_token_ids": True,
            "logprobs": 0, "max_tokens": self._room(request), "temperature": drawn.temperature, "top_p": drawn.top_p,
            "top_k": drawn.top_k, "min_p": drawn.min_p, "presence_penalty": drawn.presence_penalty,
            "frequency_penalty": drawn.frequency_penalty, "repetition_penalty": drawn.repetition_penalty,
            "stop_token_ids": list(drawn.stop_ids), "stream": not self._whole,
        }  # fmt: skip
        if not self._whole:
            body["stream_options"] = {"include_usage": True}
        if drawn.seed is not None:
            body["seed"] = drawn.seed
        if drawn.logit_bias:
            body["logit_bias"] = {str(key): value for key, value in drawn.logit_bias.items()}
        if drawn.grammar:
            body["structured_outputs"] = dict(drawn.grammar)
        return body

    def _probe(self, request: TokenRequest, temperature: float) -> Message:
        once: Message = {"max_tokens": 1, "temperature": temperature, "logprobs": 2, "top_p": 1.0, "top_k": 0}
        return {"model": self._model, "prompt": list(request.ids), **once}

    def _second(self, facts: Message) -> float:
        return sorted(facts["choices"][0]["logprobs"]["top_logprobs"][0].values())[-2]  # the sampled one is there too


class _Reading(Answer):
    def __init__(self, request: TokenRequest, call: Call, began: str | None) -> None:
        super().__init__(request, call)
        self.began = began

    def take(self, facts: Message, version: str | None) -> Tokens:
        usage = cast("Message", facts.get("usage") or {})
        details = cast("Message", usage.get("prompt_tokens_details") or {})
        self.cached_tokens = int(details.get("cached_tokens") or self.cached_tokens)
        if not (choices := cast("list[Message]", facts.get("choices") or [])):
            return Tokens([], [])
        choice = choices[0]
        self.reason = choice.get("finish_reason") or self.reason
        self.routed_experts = choice.get("routed_experts") or self.routed_experts
        if choice.get("prompt_token_ids") not in (None, self.prompt):
            raise EngineRefused("the server changed the prompt's ids: the record would not be what the model saw")
        ids, told = choice.get("token_ids"), cast("Message", choice.get("logprobs") or {}).get("token_logprobs")
        if ids is None or told is None or len(ids) != len(told):
            raise EngineRefused(
                "the server gives no token ids with their log-probabilities: vLLM does since 0.10.2; for text alone "
                "there is the engine openai"
            )
        self.call.sampled(len(ids), version)
        return Tokens(list(ids), [logprob(value) for value in told], version, self.cached_tokens)
