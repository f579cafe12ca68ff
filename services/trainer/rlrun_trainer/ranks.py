"""Data parallelism: which rows a rank computes, and sums over ranks. Every rank holds all rows and all weights.

Rows are small and advantages cheap, so each rank computes all advantages and groups never have to lie on one rank.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranks:
    rank: int = 0
    world_size: int = 1

    def share(self, lengths: Sequence[int]) -> list[int]:
        """Indices of the rows this rank computes, in ascending order; the split balances tokens and is the same on every rank."""
        return balanced_shares(lengths, self.world_size)[self.rank]

    def sum_(self, tensor: Tensor) -> Tensor:
        """Sums in place over ranks."""
        if self.world_size > 1:
            dist.all_reduce(tensor, op=dist.ReduceOp.SUM)
        return tensor

    def max_(self, tensor: Tensor) -> Tensor:
        """Maximum in place over ranks."""
        if self.world_size > 1:
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return tensor

    def sum_gradients_(self, parameters: Iterable[nn.Parameter]) -> None:
        """Sums gradients over ranks; each rank's are already divided by the global token count."""
        if self.world_size > 1:
            for parameter in parameters:
                assert parameter.grad is not None
                self.sum_(parameter.grad)


def balanced_shares(lengths: Sequence[int], num_shares: int) -> list[list[int]]:
    """Longest row first, each to the share with the fewest tokens so far."""
    shares: list[list[int]] = [[] for _ in range(num_shares)]
    tokens = [0] * num_shares
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        lightest = tokens.index(min(tokens))
        shares[lightest].append(index)
        tokens[lightest] += lengths[index]
    return [sorted(share) for share in shares]


def join_ranks(device: torch.device) -> Ranks:
    """Joins the process group that torchrun describes; alone where it describes none."""
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size == 1:
        return Ranks()
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return Ranks(rank=dist.get_rank(), world_size=world_size)
