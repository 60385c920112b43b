"""From a request to its record: what is known when it arrives, what is sampled, what the closing record says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from orchard.core.errors import OrchardError
from orchard.core.ids import new_id
from orchard.gateway.dialects.base import ModelRequest
from orchard.gateway.engine import Answering, Final, Prompted
from orchard.gateway.errors import EngineRefused
from orchard.gateway.purpose import Purposes
from orchard.gateway.sampling import for_training, mask_reason
from orchard.gateway.tokens import Tokens
from orchard.gateway.tree import CallTree, Placement, tools_digest
from orchard.trajectories import CallRecord, CallTimes, MaskedSpan, Usage
from orchard.trajectories.messages import Message

if TYPE_CHECKING:
    from orchard.gateway.session import Session


class Recorder:
    """What a session knows of its durable calls, and how the next one is numbered."""

    def __init__(self) -> None:
        self._tree, self._purposes = CallTree(), Purposes()
        self._calls = 0
        self._tools_on_disk: set[str] = set()

    def draft(self, session: Session, asked: ModelRequest, dialect: str, response_id: str) -> Draft:
        """Return what is known of a call that arrives."""
        tools_hash = tools_digest(asked.tools)
        placed = self._tree.place(asked.messages, tools_hash)
        params, overridden = for_training(asked.params) if session.training else (asked.params, {})
        origin = {"agent": asked.origin.agent, "parent": asked.origin.parent, "kind": asked.origin.kind}
        known: dict[str, Any] = {
            "session": session.id, "index": self._calls, "dialect": dialect, "streamed": asked.stream,
            "response_id": response_id, "tools_hash": tools_hash, "dropped": list(asked.dropped),
            "overridden": overridden, "origin": {key: value for key, value in origin.items() if value is not None},
            "purpose": self._purposes.of(asked, placed, tools_hash), "engine": session.engine.name,
        }  # fmt: skip
        self._calls += 1
        return Draft(new_id("call"), session, asked, placed, params, known, self)

    def kept_ids(self, placed: Placement, prompt: Sequence[int], spliced: int) -> int:
        """See ``CallTree.kept_ids``."""
        return self._tree.kept_ids(placed, prompt, spliced)

    def unwritten(self, asked: ModelRequest, tools_hash: str | None) -> list[Message] | None:
        """Return the tools, if no durable record holds them yet."""
        return None if tools_hash is None or tools_hash in self._tools_on_disk else asked.tools

    def remember(self, draft: Draft, final: Final | None) -> None:
        """Take note of a call that is durable."""
        tools_hash = draft.known["tools_hash"]
        if tools_hash is not None:
            self._tools_on_disk.add(tools_hash)
        answer = final.message if final else None
        self._tree.add(draft.id, draft.placed, answer, tools_hash, draft.recorded_ids)
        self._purposes.note(draft.id, draft.known["purpose"], answer)


@dataclass
class Draft:
    """A call on its way into the record."""

    id: str
    session: Session
    asked: ModelRequest
    placed: Placement
    params: dict[str, Any]
    """Parameters for the engine."""
    known: dict[str, Any]
    """Fields of the record that its arrival settles."""
    recorder: Recorder
    recorded_ids: tuple[int, list[int]] | None = None
    """How many ids the prompt keeps of its parent's, and the rest of it with the answer's; once it is recorded."""
    _times: CallTimes = field(default_factory=lambda: CallTimes(received=datetime.now(UTC)))
    _answering: Answering | None = None
    _prompted: Prompted | None = None
    _ids: list[int] = field(default_factory=list[int])
    _logprobs: list[float] = field(default_factory=list[float])
    _version: str | None = None
    """Of the weights that sampled the last of them."""

    def take(self, part: Answering | Prompted | Tokens) -> None:
        """Take what the engine tells of itself, and of ids as it goes."""
        if isinstance(part, Answering):
            self._answering = part
        elif isinstance(part, Prompted):
            self._prompted = part
        else:
            self.begun()
            self._ids += part.ids
            self._logprobs += part.logprobs
            self._version = part.policy_version or self.session.engine.policy_version

    def begin_again(self) -> None:
        """Forget what an engine sampled that then went away."""
        self._prompted = self._answering = None
        self._ids, self._logprobs, self._version = [], [], None

    def begun(self) -> None:
        """Note when the first of an answer came."""
        if self._times.first_token is None:
            self.time(first_token=datetime.now(UTC))

    def time(self, **times: datetime | None) -> None:
        """Note when something happened; see ``CallTimes``."""
        self._times = self._times.model_copy(update=times)

    def check(self, final: Final) -> None:
        """See that an answer to be trained on can be.

        Raises:
            EngineRefused: it has no ids, or no log-probabilities of them; what is replayed is only context.
        """
        replayed = self._answering is not None and self._answering.replayed is not None
        if self.session.training and not replayed and any(ids is None for ids in self._sampled(final)):
            raise EngineRefused(
                f"the session is for training, and the engine {self.session.engine.name} gave no token ids with their "
                "log-probabilities",
                hint="use an engine of tokens (vllm, sglang, transformers), or do not ask for training",
            )

    def answered(self, final: Final) -> CallRecord:
        """Return the record of a call with a whole answer."""
        prompt, sampled, logprobs = self._sampled(final)
        sampling = {**self.params, **(final.sampling or {})}
        return self._record(
            model=final.model or self.session.model or self.asked.model,
            policy_version=final.policy_version or self.session.engine.policy_version,
            sampling=self.params if final.sampling is None else final.sampling,
            answer=final.message, finish_reason=final.finish_reason, stop_string=final.stop_string, usage=final.usage,
            spans=list(final.spans),
            routed_experts=final.routed_experts, **self._exact(prompt, sampled, logprobs, sampling, final.masked),
        )  # fmt: skip

    def unanswered(self, partial: Message | None, error: OrchardError | None) -> CallRecord:
        """Return the record of a call that failed or was cut, with what had arrived."""
        begun = partial is not None or bool(self._ids) or (error is not None and error.reason == "cut")
        prompt = self._prompted.ids if self._prompted else None
        return self._record(
            model=self.session.model or self.asked.model,
            policy_version=self._version or self.session.engine.policy_version,
            sampling=self.params, answer=partial, status="aborted" if begun else "error",
            error=str(error), error_code=error.code if error else None,
            usage=Usage(prompt_tokens=len(prompt or ()) if self._ids else 0, completion_tokens=len(self._ids)),
            **self._exact(prompt, self._ids or None, self._logprobs or None, self.params),
        )  # fmt: skip

    def _sampled(self, final: Final) -> tuple[Sequence[int] | None, list[int] | None, list[float] | None]:
        """Return the prompt's ids, those that were sampled and their log-probabilities, as far as there are any."""
        prompt = final.prompt_ids if final.prompt_ids is not None else self._prompted and self._prompted.ids
        sampled = final.sampled_ids if final.sampled_ids is not None else self._ids or None
        return prompt, sampled, final.logprobs if final.logprobs is not None else self._logprobs or None

    def _record(self, **facts: Any) -> CallRecord:
        placed, known = self.placed, dict(self.known)
        if self._prompted is not None and self._prompted.dropped:
            known = {**known, "dropped": [*known["dropped"], *self._prompted.dropped]}
        if self._answering is not None:
            told = self._answering
            known |= {"engine": told.engine, "replayed": told.replayed, "replayed_but_for": list(told.but_for)}
        return CallRecord(
            id=self.id, times=self._times, parent=placed.parent, matched=placed.matched, normalised=placed.normalised,
            kept_messages=placed.kept_messages, edits=placed.edits, messages=placed.messages,
            tools=self.recorder.unwritten(self.asked, self.known["tools_hash"]), **known, **facts,
        )  # fmt: skip

    def _exact(
        self,
        prompt: Sequence[int] | None,
        sampled: list[int] | None,
        logprobs: list[float] | None,
        params: Mapping[str, Any],
        masked: Sequence[MaskedSpan] = (),
    ) -> dict[str, Any]:
        """Return the fields about ids; those that the parent's record holds are not stored again."""
        facts: dict[str, Any] = {"sampled_ids": sampled, "logprobs": logprobs, "masked": list(masked)}
        dropped = self._prompted.dropped if self._prompted is not None else ()
        reason = mask_reason({name: value for name, value in params.items() if name not in dropped})
        if sampled and reason is not None and reason not in {span.reason for span in masked}:
            facts["masked"].append(MaskedSpan(reason=reason, start=0, end=len(sampled)))
        if self._prompted is not None:
            made = self._prompted
            facts |= {"mode": made.mode, "template_hash": made.template_hash, "spliced_ids": made.spliced_ids}
        if prompt is not None:
            spliced = self._prompted.spliced_ids if self._prompted and self._prompted.prefix else 0
            kept = self.recorder.kept_ids(self.placed, prompt, spliced)
            rest = list(prompt[kept:])
            self.recorded_ids = kept, rest + (sampled or [])
            facts |= {"kept_ids": kept, "prompt_ids": rest}
        return facts
