"""Trajectories in, policy versions out: batches, advantages, losses, checkpoints, publishing."""
