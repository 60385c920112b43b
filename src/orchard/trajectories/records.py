"""The record, version 1: call records appended by the gateway, one closing rollout record by the rollout engine.

A trajectory is the join of a rollout record with the calls of its sessions. Sessions without a closing record are
*aborted*: kept, never trained. Within a session the calls form a tree: each stores only what it adds to its parent.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

SCHEMA = 1
WORK = ("agent", "subagent")
"""Purposes of the calls by which a task is worked on; all others are beside it."""


class Record(BaseModel):
    """Base: frozen, unknown keys refused (a newer schema is read by a newer Orchard)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1] = SCHEMA


class Usage(BaseModel):
    """Token counts as the engine reported them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    estimated: bool = False
    """True where words were counted because the engine reported nothing."""


class CallTimes(BaseModel):
    """When the parts of a call happened; aware, UTC."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    received: datetime
    engine_start: datetime | None = None
    first_token: datetime | None = None
    engine_end: datetime | None = None


class PolicySpan(BaseModel):
    """Which version of the weights sampled the ids ``start`` up to ``end`` of an answer."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: str
    start: int
    end: int


class MaskedSpan(BaseModel):
    """Sampled ids ``start`` up to ``end`` that were not drawn freely: they have weight 0."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    reason: str
    """The parameter that constrained them (``tool_choice``, ``response_format`` …); ``stop``: the id says more than the
    string that ended the answer, which no harness saw."""
    start: int
    end: int


class CallRecord(Record):
    """One model request and its answer."""

    type: Literal["call"] = "call"
    id: str
    session: str
    index: int
    """Order of arrival within the session, from 0; failed and cut calls count."""
    parent: str | None = None
    """The call whose conversation this one extends; None starts a root."""
    matched: str = "root"
    """``root``; ``extends`` (keeps the parent's whole conversation, same tools); ``forked`` (keeps a part)."""
    normalised: list[str] = Field(default_factory=list[str])
    """What had to be left aside for the kept messages to be equal: ``arguments``, ``arguments_rewritten``,
    ``content_form``, ``ids``, ``empty``, ``cache_marks``, ``result_order``, ``reasoning_dropped``."""
    purpose: str = "agent"
    """``agent``, ``subagent``, ``title``, ``summary``, ``compaction``, or ``side``: any other beside the work."""
    origin: dict[str, str] = Field(default_factory=dict[str, str])
    """What the harness said of itself beside the messages: ``agent``, ``parent``, ``kind``."""
    dropped: list[str] = Field(default_factory=list[str])
    """Fields and tools of the request that no engine could use, by name."""
    dialect: str
    streamed: bool = False
    model: str
    engine: str
    """What answered; of a call that was handed over, the one that it was handed to."""
    replayed: str | None = None
    """The recorded call (of another session) whose answer this is: its ids are context, and not trained again."""
    replayed_but_for: list[str] = Field(default_factory=list[str])
    """What wrote other words into this request than into the recorded one, whose ids the model saw: ``clock``,
    ``chance``."""
    policy_version: str | None = None
    kept_messages: int = 0
    """How many messages of the parent's conversation (its prompt and its answer) this prompt keeps."""
    edits: dict[int, dict[str, Any]] = Field(default_factory=dict[int, dict[str, Any]])
    """Kept messages (by position) that came back equal in meaning but in another form, as they were served."""
    messages: list[dict[str, Any]] = Field(default_factory=list[dict[str, Any]])
    """The prompt's messages after the kept ones, in OpenAI chat form."""
    tools_hash: str | None = None
    tools: list[dict[str, Any]] | None = None
    """Given in full at the session's first call that uses them; later ones name the hash."""
    sampling: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Parameters as sent to the engine."""
    overridden: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Parameters that the harness asked for and that were left out, since they change the distribution."""
    answer: dict[str, Any] | None = None
    """The assistant message in OpenAI chat form; what had arrived, where it was cut."""
    finish_reason: str | None = None
    stop_string: str | None = None
    """The string to stop at that ended the answer, where the engine told."""
    usage: Usage = Usage()
    mode: Literal["splice", "template"] | None = None
    """How the gateway made the prompt's ids: of recorded ids and what is new, or as the template renders it; None where
    the engine rendered it."""
    template_hash: str | None = None
    """Of the chat template and tokenizer that rendered it."""
    spliced_ids: int = 0
    """How many ids at the prompt's head are recorded ones; 0: all of it was rendered anew."""
    kept_ids: int = 0
    """How many token ids of the parent's prompt and answer this prompt keeps."""
    prompt_ids: list[int] | None = None
    """The prompt's ids after the kept ones; None where the engine gives no ids."""
    sampled_ids: list[int] | None = None
    logprobs: list[float] | None = None
    """Natural logarithms, one for each sampled id."""
    spans: list[PolicySpan] = Field(default_factory=list[PolicySpan])
    """Where the weights changed in mid-answer: which sampled which ids."""
    masked: list[MaskedSpan] = Field(default_factory=list[MaskedSpan])
    """Sampled ids that have weight 0."""
    routed_experts: str | None = None
    """Which experts worked on each id of prompt and answer: base64 of a NumPy file, as the engine gave it."""
    status: Literal["ok", "aborted", "error"] = "ok"
    error: str | None = None
    error_code: str | None = None
    """Code of the typed error, where ``status`` is not ``ok``."""
    times: CallTimes
    response_id: str
    """Id under which the answer went to the harness."""


class RetryRecord(Record):
    """A retry that was answered from the record."""

    type: Literal["retry"] = "retry"
    session: str
    call: str
    at: datetime


class RefusalRecord(Record):
    """A request that was answered with a final error before any engine saw it."""

    type: Literal["refusal"] = "refusal"
    session: str
    at: datetime
    code: str
    """``budget_exceeded``, ``invalid_request`` …."""
    detail: str = ""


class SessionRecord(Record):
    """A session was opened: one try of one rollout."""

    type: Literal["session"] = "session"
    session: str
    at: datetime
    labels: dict[str, str] = Field(default_factory=dict[str, str])
    """Run, rollout, task, attempt, try …."""
    budget: dict[str, float] = Field(default_factory=dict[str, float])
    engine: str = ""
    model: str = ""
    training: bool = False
    """Whether its calls were to be trained on: drawn from the model's own distribution, with ids, or refused."""


class ToolRecord(BaseModel):
    """One tool call of the harness in the sandbox."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    call_id: str | None = None
    name: str
    arguments: dict[str, Any] = Field(default_factory=dict[str, Any])
    output: str = ""
    exit_code: int | None = None
    seconds: float = 0.0
    error: str | None = None
    tool_call_id: str | None = None
    """Id of the tool call in that answer, where the harness tells it."""


class RewardRecord(BaseModel):
    """One grader's word; ``score`` None is *missing*."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    grader: str
    score: float | None
    weight: float = 1.0
    missing: str | None = None
    evidence: dict[str, Any] = Field(default_factory=dict[str, Any])


class Failure(BaseModel):
    """Infrastructure trouble: at which seam, which reason, in whose words."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seam: Literal["prepare", "sandbox", "harness", "gateway", "engine", "grade", "store"]
    reason: str
    text: str


class RolloutRecord(Record):
    """The closing record of one rollout: there is exactly one for each (run, task, harness, policy, attempt)."""

    type: Literal["rollout"] = "rollout"
    id: str
    """Deterministic: a hash of run, task, harness, policy and attempt."""
    run: str
    task: str
    attempt: int
    tries: int
    """How many tries it took; each had a session of its own."""
    sessions: list[str]
    """Session ids of all tries; the last one is the one that counts."""
    harness: str
    harness_version: str
    harness_config_hash: str = ""
    policy: str
    """What answered: a model's name, or ``gold``, ``noop``, ``script:NAME``."""
    model: str
    policy_version: str | None = None
    instruction: str = ""
    stop: str | None = None
    stop_detail: str = ""
    turns: int = 0
    tools: list[ToolRecord] = Field(default_factory=list[ToolRecord])
    patch: str = ""
    """Git-style patch; text with surrogate escapes encoded as base85 lines by git where binary."""
    submission: str | None = None
    rewards: list[RewardRecord] = Field(default_factory=list[RewardRecord])
    reward: float | None = None
    """Weighted mean of the graders; None when any is missing."""
    failure: Failure | None = None
    environment: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Image digest, backend, sandbox statistics, Orchard's version."""
    started_at: datetime
    seconds: dict[str, float] = Field(default_factory=dict[str, float])
    """Per stage: ``prepare``, ``sandbox``, ``harness``, ``patch``, ``grade``."""
    labels: dict[str, str] = Field(default_factory=dict[str, str])


AnyRecord = Annotated[
    CallRecord | RetryRecord | RefusalRecord | SessionRecord | RolloutRecord, Field(discriminator="type")
]
"""Any line of the store."""

RECORD: TypeAdapter[AnyRecord] = TypeAdapter(AnyRecord)


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a record: one line of the store."""
    return {"$id": f"orchard.trajectories/{SCHEMA}", **RECORD.json_schema()}
