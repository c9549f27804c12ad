"""The parts of disagg_vs_mixed.py: engines to compare, loads to put on them, what comes of it."""
