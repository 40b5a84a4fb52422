"""Two results in, one verdict out: comparisons of stored runs, gates and baselines."""
