"""Properties are held whatever else the machine does: how long an example takes is no verdict. To be imported."""

from hypothesis import HealthCheck, settings

settings.register_profile("any-load", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any-load")
