"""Trains a small network with 8-bit AdamW states, on a GPU if there is one.

Run it with `python examples/python/train_8bit.py`. It prints the first and the last loss, the bytes that the
optimizer keeps, and the bytes that fp32 states would take.
"""

import torch
from octavo.optim import AdamW8bit
from torch import nn


def main() -> None:
    torch.manual_seed(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)).to(device)
    x, y = torch.randn(32, 64, device=device), torch.randn(32, 64, device=device)

    optimizer = AdamW8bit(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(50):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    tensors = [t for state in optimizer.state.values() for t in state.values() if t.dim() > 0]
    kept = sum(t.numel() * t.element_size() for t in tensors)
    plain = sum(8 * p.numel() for p in model.parameters())
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, {kept} bytes of state instead of {plain}")


if __name__ == "__main__":
    main()
