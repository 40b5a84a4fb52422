"""The parts of ``scripts/gpu_check.py``, and what runs them.

``command`` reads the command line; ``supervisor`` runs the parts of ``catalogue`` in processes of
their own (``worker``), which keep what they find in one ``record``; ``summary`` prints it.
"""
