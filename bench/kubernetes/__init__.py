"""Measurements on a cluster, the one that ``KUBECONFIG`` names; by name alone, never in a plain ``make bench``."""
