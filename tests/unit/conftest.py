"""What all unit tests stand on."""

from tests.support import any_load

__all__ = ["any_load"]
