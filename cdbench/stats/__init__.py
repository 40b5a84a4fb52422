"""How sure a number is: blocks, intervals, paired tests."""
