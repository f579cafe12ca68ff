"""Data parallelism: which rows a rank computes, and sums over ranks. Every rank holds all rows and all weights.

Rows are small and advantages cheap, so each rank computes all advantages and groups never have to lie on one rank.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn

CONTROL_TIMEOUT = timedelta(days=365)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranks:
    rank: int = 0
    world_size: int = 1
    control: dist.ProcessGroup | None = None  # for messages between steps, which may be hours apart

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

    def broadcast(self, message: bytes | None) -> bytes:
        """Rank 0's message on every rank; the others pass None and wait for it."""
        if self.world_size == 1:
            assert message is not None
            return message
        size = torch.tensor([len(message) if message is not None else 0])
        dist.broadcast(size, src=0, group=self.control)
        data = torch.empty(int(size), dtype=torch.uint8)
        if message is not None:
            data = torch.frombuffer(bytearray(message), dtype=torch.uint8)
        dist.broadcast(data, src=0, group=self.control)
        return data.numpy().tobytes()


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
    control = dist.new_group(backend="gloo", timeout=CONTROL_TIMEOUT)
    return Ranks(rank=dist.get_rank(), world_size=world_size, control=control)


def local_device(device: torch.device) -> torch.device:
    """This rank's device of its machine."""
    if device.type != "cuda":
        return device
    local = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(local)
    return local
