"""Benchmark runner, metrics and reports."""
