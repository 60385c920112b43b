"""``python -m deploy.schema``: bring ``settings`` of values.schema.json to what KubernetesSettings takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from orchard.sandbox.kubernetes import KubernetesSettings

SCHEMA = Path(__file__).parent / "chart" / "values.schema.json"
_OF_THE_CHART = ("namespace", "kubeconfig", "context", "daemon_image", "profile", "key_secret")
"""Named elsewhere among the values, or not at all in a Pod."""


def updated(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the chart's schema with the settings as they are now."""
    settings = TypeAdapter(KubernetesSettings).json_schema()
    parts = settings.pop("$defs")
    settings["properties"] = {
        name: described for name, described in settings["properties"].items() if name not in _OF_THE_CHART
    }
    return {**schema, "properties": {**schema["properties"], "settings": settings}, "$defs": parts}


if __name__ == "__main__":
    SCHEMA.write_text(json.dumps(updated(json.loads(SCHEMA.read_text())), indent=2) + "\n")
