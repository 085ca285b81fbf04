"""Exchange by index lists: the plan, the discovery of neighbors, and migration."""
