"""Several engines and a balancer as one thing to start and stop: `python -m sglang.launch_cluster`, and a library."""
