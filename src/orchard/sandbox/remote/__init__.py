"""The HTTP client of the service, as a backend."""
