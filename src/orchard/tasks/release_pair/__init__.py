"""Bug-fix tasks made out of two neighbouring releases of a library on a package index."""
