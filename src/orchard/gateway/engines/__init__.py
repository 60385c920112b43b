"""Engines: what samples, one file each."""
