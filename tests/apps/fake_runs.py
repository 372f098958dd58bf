"""Writes run folders for the tests of `octavo report` without running a training."""

import json
import math
import random

CONFIG = {
    "model": {"name": "bdh", "n_layer": 6, "n_embd": 256, "n_head": 4, "dropout": 0.1},
    "data": {"train": "corpus.txt", "validation": None, "block_size": 512, "stages": [100000, -1]},
    "training": {
        "optimizer": "adamw_8bit",
        "learning_rate": 0.001,
        "compute_dtype": "bfloat16",
        "master_weights": "auto",
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 4,
        "max_steps": 3000,
    },
}
PARAMS = 25_300_992
SAMPLE = (
    " or not to be, that is the question of the house.\n\nFirst Citizen:\nWe know't, we know't.\n\n"
    "MENENIUS:\nI tell you, friends, most charitable care\nHave the patricians of you."
)


def to_yaml(config):
    """Writes strings as JSON, which is valid YAML."""
    lines = []
    for section, keys in config.items():
        if isinstance(keys, dict):
            lines.append(f"{section}:")
            lines += [f"  {key}: {json.dumps(value)}" for key, value in keys.items()]
        else:
            lines.append(f"{section}: {json.dumps(keys)}")
    return "\n".join(lines) + "\n"


def write_run(folder, records, config=CONFIG):
    """Writes a run folder. `records` are objects, or strings that are written as lines unchanged."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(to_yaml(config), encoding="utf-8")
    lines = [each if isinstance(each, str) else json.dumps(each) for each in records]
    (folder / "metrics.jsonl").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return folder


def start(optimizer="AdamW 8-bit", state_bytes=2.03 * PARAMS, **more):
    return {
        "time": 1794747600.0,
        "kind": "start",
        "step": 0,
        "octavo": "0.1.0",
        "model": "bdh",
        "params": PARAMS,
        "device": "cuda:0 NVIDIA H200",
        "optimizer": optimizer,
        "state_bytes": int(state_bytes),
        "fp32_state_bytes": 8 * PARAMS,
        "compute_dtype": "bfloat16",
        "master_weights": "24",
        "steps": 3000,
        "batch_tokens": 16384,
        "resumed_from": None,
        "train_bytes": 1_003_854,
        "validation_bytes": 111_540,
        "unigram_entropy": 3.3128,
        **more,
    }


def learning_rate(step, steps, peak=1e-3, warmup=200):
    if step < warmup:
        return peak * step / warmup
    return peak * (0.55 + 0.45 * math.cos(math.pi * (step - warmup) / (steps - warmup)))


def realistic(seed=0, steps=3000, every=10, speed=212000, floor=1.38, device_bytes=6_210_000_000, **begin):
    """Returns the records of a complete run: a loss that falls with noise, evaluations, checkpoints,
    samples."""
    rng = random.Random(seed)
    time = 1794747600.0 + 7200 * seed
    records = [start(**begin)]
    records[0]["time"] = time
    states = records[0]["state_bytes"]
    owners = {
        "params": 2 * PARAMS,
        "grads": 4 * PARAMS,
        "states": states,
        "master": PARAMS,
        "activations": device_bytes - 7 * PARAMS - states - 310_000_000,
        "workspace": 310_000_000,
    }
    peak = int(device_bytes * 1.02)
    records.append({"time": time + 2, "kind": "memory", "step": 2, "owners": owners, "device_peak": peak})

    def loss(step):
        return floor + 4.1 * math.exp(-step / 90) + 0.95 * math.exp(-step / 900)

    for step in range(every, steps + 1, every):
        seconds = every * 16384 / speed
        time += seconds
        records.append(
            {
                "time": round(time, 3),
                "kind": "train",
                "step": step,
                "loss": loss(step) + rng.gauss(0, 0.045),
                "lr": learning_rate(step, steps),
                "grad_norm": 0.35 + 2.2 * math.exp(-step / 150) + abs(rng.gauss(0, 0.06)),
                "tokens": step * 16384,
                "tokens_per_second": speed * (1 + rng.gauss(0, 0.012)) * (0.6 if step == every else 1),
                "seconds": seconds,
                "skipped": 0,
                "memory": {
                    "device": device_bytes * (0.93 if step < 30 else 0.98),
                    "device_peak": device_bytes * 1.02,
                    "host": 1_340_000_000 + 2e4 * rng.random(),
                },
            }
        )
        if step % 200 == 0:
            time += 1.2
            value = loss(step) + 0.07 + 0.12 * step / steps + rng.gauss(0, 0.008)
            records.append(
                {
                    "time": time,
                    "kind": "eval",
                    "step": step,
                    "loss": value,
                    "tokens": 110592,
                    "seconds": 1.2,
                    "stage": 0,
                }
            )
        if step % 500 == 0:
            records.append(
                {
                    "time": time,
                    "kind": "checkpoint",
                    "step": step,
                    "path": f"checkpoint-{step}",
                    "seconds": 0.8,
                    "bytes": 3 * PARAMS + states,
                }
            )
        if step % 1500 == 0:
            records.append({"time": time, "kind": "sample", "step": step, "prompt": "To be", "text": SAMPLE})
    records.append(
        {
            "time": time,
            "kind": "end",
            "step": steps,
            "reason": "finished",
            "seconds": time,
            "overhead": 0.0041,
        }
    )
    return records
