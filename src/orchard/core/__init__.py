"""What every room stands on: ids, the error tree, configuration, retry, JSON lines, logging."""
