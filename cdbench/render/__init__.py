"""One table, many ways to print it."""
