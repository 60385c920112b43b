"""A trajectory: the closing record of a rollout joined with the calls of its sessions, as a tree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from orchard.core.errors import NotFound
from orchard.trajectories.messages import Message
from orchard.trajectories.records import (
    AnyRecord,
    CallRecord,
    RefusalRecord,
    RetryRecord,
    RolloutRecord,
    SessionRecord,
    Usage,
)


@dataclass(frozen=True)
class Branch:
    """One path through the tree: a conversation that no later call continues."""

    calls: tuple[CallRecord, ...]
    """Root to leaf: the calls whose answers are in the conversation; the last one is the leaf."""
    messages: list[Message]
    """The prompt of the leaf exactly as it was served, then its answer."""

    @property
    def leaf(self) -> CallRecord:
        """The last call."""
        return self.calls[-1]


@dataclass(frozen=True)
class Trajectory:
    """Everything recorded about one rollout, or about one session that has no closing record."""

    rollout: RolloutRecord | None
    session: str
    """The session that counts: the last one of the rollout."""
    calls: Sequence[CallRecord]
    """The calls of that session, in order of arrival."""
    sessions: Sequence[SessionRecord] = ()
    earlier: Sequence[CallRecord] = ()
    """The calls of the tries before."""
    retries: Sequence[RetryRecord] = ()
    refusals: Sequence[RefusalRecord] = ()
    _prompts: dict[str, list[Message]] = field(default_factory=dict[str, list[Message]], repr=False, compare=False)

    @cached_property
    def by_id(self) -> dict[str, CallRecord]:
        """Every call of every try, by its id."""
        return {call.id: call for call in [*self.earlier, *self.calls]}

    def call(self, call_id: str) -> CallRecord:
        """Return a call.

        Raises:
            NotFound: there is none of this id.
        """
        try:
            return self.by_id[call_id]
        except KeyError:
            raise NotFound(f"no call {call_id} in this trajectory") from None

    def prompt(self, call_id: str) -> list[Message]:
        """Return the messages that were served to the engine for this call."""
        chain: list[CallRecord] = []
        current: str | None = call_id
        while current is not None and current not in self._prompts:
            chain.append(self.call(current))
            current = chain[-1].parent
        for call in reversed(chain):
            kept = self.messages(call.parent)[: call.kept_messages] if call.parent else []
            for position, message in call.edits.items():
                kept[position] = message
            self._prompts[call.id] = kept + call.messages
        return list(self._prompts[call_id])

    def messages(self, call_id: str) -> list[Message]:
        """Return the prompt of this call as it was served, then its answer, if there is one."""
        answer = self.call(call_id).answer
        return self.prompt(call_id) + ([answer] if answer is not None else [])

    def prompt_ids(self, call_id: str) -> list[int] | None:
        """Return the token ids of the prompt, those kept of its parent included; None where none were recorded."""
        call = self.call(call_id)
        kept, pieces = call.kept_ids, [call.prompt_ids]
        while kept and call.parent is not None:
            call = self.call(call.parent)
            own = None if call.prompt_ids is None else [*call.prompt_ids, *(call.sampled_ids or [])]
            pieces.append(own and own[: max(0, kept - call.kept_ids)])
            kept = min(kept, call.kept_ids)
        return None if None in pieces else [number for piece in reversed(pieces) for number in piece or ()]

    def tools(self, call_id: str) -> list[Message]:
        """Return the tools that this call could use."""
        call = self.call(call_id)
        if call.tools_hash is None:
            return []
        same = (c.tools for c in self.by_id.values() if c.session == call.session and c.tools_hash == call.tools_hash)
        return next((tools for tools in same if tools is not None), list[Message]())

    def branches(self) -> list[Branch]:
        """Return the path to each leaf: each answered call that no later call continues, in order of arrival."""
        paths = [self._path(call) for call in self.calls if call.status == "ok"]
        continued = {call.id for path in paths for call in path[:-1]}
        return [Branch(path, self.messages(path[-1].id)) for path in paths if path[-1].id not in continued]

    def _path(self, leaf: CallRecord) -> tuple[CallRecord, ...]:
        path, kept = [leaf], leaf.kept_messages
        parent = leaf.parent
        while parent is not None:
            call = self.call(parent)
            if kept > call.kept_messages + len(call.messages):  # its prompt, and so its answer too
                path.append(call)
            kept, parent = min(kept, call.kept_messages), call.parent
        return tuple(reversed(path))

    @property
    def usage(self) -> Usage:
        """Tokens of all calls of the session that counts."""
        return total_usage(self.calls)


def total_usage(calls: Iterable[CallRecord]) -> Usage:
    """Return the sum over ``calls``; estimated where any part is."""
    every = [call.usage for call in calls]
    return Usage(
        prompt_tokens=sum(usage.prompt_tokens for usage in every),
        completion_tokens=sum(usage.completion_tokens for usage in every),
        cached_tokens=sum(usage.cached_tokens for usage in every),
        estimated=any(usage.estimated for usage in every),
    )


def join(records: Iterable[AnyRecord], rollout: RolloutRecord | None, session: str) -> Trajectory:
    """Make a trajectory of its records, which may come in any order and more than once."""
    unique: dict[tuple[str, str], CallRecord] = {}
    sessions: dict[str, SessionRecord] = {}
    retries: list[RetryRecord] = []
    refusals: list[RefusalRecord] = []
    for record in records:
        if isinstance(record, CallRecord):
            unique.setdefault((record.session, record.id), record)
        elif isinstance(record, SessionRecord):
            sessions.setdefault(record.session, record)
        elif isinstance(record, RetryRecord):
            retries.append(record)
        elif isinstance(record, RefusalRecord):
            refusals.append(record)
    calls = sorted(unique.values(), key=lambda call: call.index)
    return Trajectory(
        rollout=rollout,
        session=session,
        calls=[call for call in calls if call.session == session],
        sessions=sorted(sessions.values(), key=lambda one: one.at),
        earlier=[call for call in calls if call.session != session],
        retries=retries,
        refusals=refusals,
    )
