"""How a sandbox must behave, as checks that run unchanged on every backend."""
