"""Graders: a score with evidence, or missing."""
