"""Wire dialects: one file each, which only translates."""
