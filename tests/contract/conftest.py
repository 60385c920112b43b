"""Properties are held whatever else the machine does, as in the unit tests."""

from tests.unit import conftest as any_load

__all__ = ["any_load"]
