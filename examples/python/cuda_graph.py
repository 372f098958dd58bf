"""A training step captured in a CUDA graph and replayed. Needs a GPU.

Run it with `python examples/python/cuda_graph.py`. The learning rate is a tensor on the GPU, so it may change
between replays; the step count is there too (`capturable=True`).
"""

import torch
from octavo.optim import AdamW8bit
from torch import nn


def main() -> None:
    if not torch.cuda.is_available():
        raise SystemExit("cuda_graph.py needs a GPU: torch.cuda.is_available() is False")
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)).cuda()
    x, y = torch.randn(32, 64, device="cuda"), torch.randn(32, 64, device="cuda")
    lr = torch.tensor(1e-2, device="cuda")
    optimizer = AdamW8bit(model.parameters(), lr=lr, capturable=True)

    def train_step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=False)  # the graph keeps the gradients' addresses
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    side = torch.cuda.Stream()  # torch requires the warm-up on another stream
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            first = train_step()
    torch.cuda.current_stream().wait_stream(side)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = train_step()

    for step in range(100):
        lr.fill_(1e-2 * (1 - step / 100))
        graph.replay()
    print(f"loss {first.item():.3f} -> {loss.item():.3f}")


if __name__ == "__main__":
    main()
