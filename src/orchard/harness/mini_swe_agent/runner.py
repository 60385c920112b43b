"""The part of mini-swe-agent's driver that runs in its own environment, loaded by ``beside/child.py``.

Asked of the parent for each command: ``{"command": "..."}`` -> ``{"output", "returncode", "exception_info"}``.
"""
# pyright: reportMissingImports=false, reportMissingModuleSource=false

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

MARKER = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


class BridgeEnvironment:
    """mini-swe-agent's environment protocol over the bridge: commands run in one sandbox and nowhere else."""

    def __init__(self, bridge: Any, facts: dict[str, Any]) -> None:
        self._bridge, self.config = bridge, facts

    def execute(self, action: dict[str, Any], cwd: str = "") -> dict[str, Any]:
        """Run one command in the sandbox."""
        answer = self._bridge.ask(command=action.get("command", ""))
        first, _, rest = answer["output"].lstrip().partition("\n")
        if first.strip() == MARKER and answer["returncode"] == 0:
            from minisweagent.exceptions import Submitted

            extra = {"exit_status": "Submitted", "submission": rest}
            raise Submitted({"role": "exit", "content": rest, "extra": extra})
        return answer

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        """Return what the prompt may tell of the machine."""
        return self.config | kwargs

    def serialize(self) -> dict[str, Any]:
        """Return this environment's part of the trajectory file."""
        return {"info": {"config": {"environment": self.config, "environment_type": "orchard"}}}


def make_runner() -> Callable[[Any], None]:
    """Import mini-swe-agent; return what runs one job by its own agent and model classes, with its ``mini.yaml``."""
    import yaml
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.config import builtin_config_dir
    from minisweagent.exceptions import InterruptAgentFlow, LimitsExceeded
    from minisweagent.models.litellm_model import LitellmModel

    class Model(LitellmModel):
        """Ends the run at once on the endpoint's final codes, which litellm gives types that are tried again."""

        abort_exceptions = [*LitellmModel.abort_exceptions, InterruptAgentFlow]  # noqa: RUF012 - as in its base
        final: dict[str, str] = {}  # noqa: RUF012 - set once, before the only run of this process

        def _query(self, messages: list[dict[str, str]], **kwargs: Any) -> Any:
            try:
                return super()._query(messages, **kwargs)
            except Exception as error:  # the seam to litellm: whatever it raises is looked at, and raised again
                status = next((self.final[code] for code in codes(error) if code in self.final), None)
                if status is None:
                    raise
                extra = {"exit_status": status, "submission": ""}
                raise LimitsExceeded({"role": "exit", "content": str(error), "extra": extra}) from error

    config = yaml.safe_load((Path(builtin_config_dir) / "mini.yaml").read_text())
    templates = {key: config["agent"][key] for key in ("system_template", "instance_template")}

    def run(bridge: Any) -> None:
        job = bridge.receive()
        Model.final = job["final"]
        model = Model(**{**config["model"], **job["model"]})
        DefaultAgent(model, BridgeEnvironment(bridge, job["facts"]), **{**templates, **job["agent"]}).run(job["task"])

    return run


def codes(error: BaseException | None) -> Iterator[str]:
    """Yield the ``code`` of an error and of those it came from."""
    while error is not None:
        yield str(getattr(error, "code", None))
        error = error.__cause__ or error.__context__
