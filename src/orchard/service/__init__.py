"""The REST control plane over a backend."""
