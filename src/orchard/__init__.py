"""Orchard: tasks, an agent harness and a model in; trajectories and a better model out."""
