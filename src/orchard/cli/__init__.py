"""The orchard command."""
