"""Trains on several processes with FSDP2 and 8-bit states, saves a checkpoint and resumes from it.

Run it with `torchrun --nproc-per-node 2 examples/python/fsdp2.py FOLDER`. It uses two GPUs with NCCL, or the
CPU with gloo where there is no GPU.
"""

import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from octavo.optim import AdamW8bit
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def make(device: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.GELU()) for _ in range(2))).to(device)
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = AdamW8bit(model.parameters(), lr=1e-3, clip_grad_norm=1.0)
    return model, optimizer


def train(model: nn.Module, optimizer: torch.optim.Optimizer, device: str, steps: int) -> float:
    torch.manual_seed(2 + dist.get_rank())
    for _ in range(steps):
        x = torch.randn(8, 256, device=device)
        loss = nn.functional.mse_loss(model(x), x.flip(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


def main(folder: str) -> None:
    # One GPU for each rank of this machine, or none for all.
    device = "cuda" if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]) else "cpu"
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))

    model, optimizer = make(device)
    train(model, optimizer, device, steps=3)
    model_state, optimizer_state = get_state_dict(model, optimizer)
    dcp.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=folder)
    expected = train(model, optimizer, device, steps=2)

    model, optimizer = make(device)  # a new run: on any number of ranks
    model_state, optimizer_state = get_state_dict(model, optimizer)
    dcp.load({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=model_state, optim_state_dict=optimizer_state)
    resumed = train(model, optimizer, device, steps=2)

    if dist.get_rank() == 0:
        print(f"loss {resumed:.6f} after a resume, {expected:.6f} without one")
    if resumed != expected:
        raise SystemExit("the resumed run differs")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
