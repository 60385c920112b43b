"""OpenAI messages: one JSON object a line, ``{"messages": [...], "tools": [...]}``, as fine-tuning takes them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from orchard.trajectories.messages import Message
from orchard.trajectories.trajectory import Trajectory


def write(trajectories: Iterable[Trajectory], *, side_calls: bool = False) -> Iterator[str]:
    """Yield one line for each branch.

    Args:
        trajectories: what to write.
        side_calls: also branches that end in a call that is not the agent's (titles, summaries).
    """
    for trajectory in trajectories:
        for branch in trajectory.branches():
            if branch.leaf.purpose != "agent" and not side_calls:
                continue
            line: Message = {"messages": branch.messages}
            tools = trajectory.tools(branch.leaf.id)
            if tools:
                line["tools"] = tools
            if trajectory.rollout is not None:
                line["metadata"] = {"rollout": trajectory.rollout.id, "reward": trajectory.rollout.reward}
            yield json.dumps(line)
