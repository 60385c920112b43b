"""Built-in agent loops, and drivers of third-party harnesses."""
