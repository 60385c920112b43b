"""The recording model gateway: dialects, engines, sessions."""
