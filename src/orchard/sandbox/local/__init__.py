"""The embedded backend: overlay, namespaces and cgroups on one Linux machine, without a daemon."""
