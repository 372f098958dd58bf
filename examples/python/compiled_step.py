"""The optimizer's step as an operator inside a graph of torch.compile.

`octavo.ops.step` has a schema and a fake kernel, so the graph does not break at it. It takes the states as
arguments; this program makes them. Run it with `python examples/python/compiled_step.py`.
"""

import octavo.ops
import torch
from torch import nn

BLOCK = 256  # elements per scale of 8bit states


def main() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    x, y = torch.randn(32, 64), torch.randn(32, 64)
    params = [p.detach() for p in model.parameters()]  # the operator writes to them, untracked by autograd
    moments = [p for _ in range(2) for p in params]  # the first moments of all, then the second ones
    codes = [torch.zeros_like(p, dtype=torch.uint8) for p in moments]
    scales = [torch.zeros(-(-p.numel() // BLOCK)) for p in moments]
    taken, lr = torch.zeros((), dtype=torch.int64), torch.tensor(1e-2)

    @torch.compile(fullgraph=True, backend="aot_eager")  # omit `backend` for generated kernels
    def update(grads: list[torch.Tensor]) -> None:
        octavo.ops.step("adamw", params, grads, codes, scales, [], taken, lr, weight_decay=0.01)

    losses = []
    for _ in range(50):
        loss = nn.functional.mse_loss(model(x), y)
        update(list(torch.autograd.grad(loss, list(model.parameters()))))
        losses.append(loss.item())
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f} in {int(taken)} steps")


if __name__ == "__main__":
    main()
