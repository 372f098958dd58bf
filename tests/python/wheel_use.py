"""What test_wheel.py runs in a process of its own: a step with the package that is installed in a folder.

Arguments: that folder and the expected version. Prints the paths of the octavo libraries that were loaded.
"""

import pathlib
import sys

import octavo
import octavo.optim
import torch

folder, version = pathlib.Path(sys.argv[1]), sys.argv[2]
assert pathlib.Path(octavo.__file__).is_relative_to(folder), octavo.__file__
assert octavo.__version__ == version, octavo.__version__

torch.manual_seed(0)
ours, theirs = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)
theirs.load_state_dict(ours.state_dict())
before = ours.weight.detach().clone()
inputs = torch.randn(8, 64)
optimizers = (
    octavo.optim.AdamW8bit(ours.parameters(), lr=1e-2),
    torch.optim.AdamW(theirs.parameters(), lr=1e-2),
)
for model, optimizer in zip((ours, theirs), optimizers, strict=True):
    model(inputs).square().mean().backward()
    optimizer.step()
assert not torch.equal(ours.weight, before)
# A first step reads no stored moment: eight bits cost nothing yet.
torch.testing.assert_close(ours.weight, theirs.weight)
assert optimizers[0].state[ours.weight]["exp_avg"].dtype == torch.uint8

maps = pathlib.Path("/proc/self/maps").read_text().splitlines()
print(*{line.split(maxsplit=5)[5] for line in maps if "liboctavo" in line})
