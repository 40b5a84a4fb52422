"""Accuracy: the questions of a task, and whether an output answers them."""
