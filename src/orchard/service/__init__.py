"""The REST control plane over a backend, and the data path to its sandboxes.

``Service(backend, options).app`` is an ASGI application; ``Server(configure(app, ...), service.stopping)`` serves it.
"""
