"""Commands that make what the repository ships: demo models, tasks, the GPU check."""
