"""The gate that looks one loop ahead: recorded, fitted and judged; ``runtime`` runs it."""
