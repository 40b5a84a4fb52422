"""One run of `cdbench run`, from its configuration to its run directory.

`plan` says what runs; `live` asks every mode the same questions; `equal` times all modes on the
same recorded work; `summary` turns what they left into the result; `directory` keeps it.
"""
