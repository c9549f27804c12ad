"""Random checkpoints with every feature of a real one, scaled down."""
