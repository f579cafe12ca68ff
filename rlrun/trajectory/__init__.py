"""Trajectories as values: tree, rewards, rows of tensors."""
