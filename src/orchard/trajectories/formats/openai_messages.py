"""OpenAI messages: one JSON object a line, ``{"messages": [...], "tools": [...]}``, as fine-tuning takes them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from orchard.trajectories.formats.conversations import conversations
from orchard.trajectories.messages import Message
from orchard.trajectories.trajectory import Trajectory


def write(trajectories: Iterable[Trajectory], *, side_calls: bool = False) -> Iterator[str]:
    """Yield one line for each branch.

    Args:
        trajectories: what to write.
        side_calls: also branches that end in a call that is not the agent's (titles, summaries).
    """
    for found, branch in conversations(trajectories, side_calls=side_calls):
        line: Message = {"messages": branch.messages}
        tools = found.tools(branch.leaf.id)
        if tools:
            line["tools"] = tools
        if found.rollout is not None:
            line["metadata"] = {"rollout": found.rollout.id, "reward": found.rollout.reward}
        yield json.dumps(line)
