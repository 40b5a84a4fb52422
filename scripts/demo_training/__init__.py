"""How the demo models are trained and judged; ``scripts/train_demo.py`` is the command line."""
