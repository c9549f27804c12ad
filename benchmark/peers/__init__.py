"""The contenders of engine_vs_peers.py: their environments, their models, their processes."""
