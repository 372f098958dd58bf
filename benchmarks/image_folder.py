"""Reads a data set of images from a folder that has one folder for each class: DATA/airport/0001.jpg.

All images are decoded once, into memory, so that an epoch does not time the disk. The reader needs Pillow. If
DATA contains a folder train and a folder test, val or validation, they are the two parts; else a fifth of the
images, drawn by a fixed seed, is held out.
"""

from __future__ import annotations

import os
import pathlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import makers
import torch
from classification import Images

ENDINGS = {".jpg", ".jpeg", ".png", ".bmp", ".ppm", ".tif", ".tiff", ".webp"}
HELD_OUT = 0.2
HELD_OUT_NAMES = ("test", "val", "validation")


class DataError(Exception):
    """A folder is not a data set of images; the text contains its name."""


def classes_in(folder: pathlib.Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir() if each.is_dir())


def _decoded(file: pathlib.Path, size: int) -> torch.Tensor:
    """Returns a square of `size` pixels from the middle of the image, as bytes of [channel, row, column]."""
    pillow = makers.imported("PIL.Image")
    try:
        with pillow.open(file) as opened:
            image: Any = opened.convert("RGB")
    except Exception as error:  # Pillow raises many types for a damaged file
        raise DataError(f"{file}: not an image that Pillow reads: {error}") from error
    edge = min(image.size)
    left, top = (image.width - edge) // 2, (image.height - edge) // 2
    square = image.crop((left, top, left + edge, top + edge)).resize((size, size), pillow.Resampling.BICUBIC)
    return (
        torch.frombuffer(bytearray(square.tobytes()), dtype=torch.uint8).view(size, size, 3).permute(2, 0, 1)
    )


def _read(folder: pathlib.Path, classes: list[str], size: int) -> Images:
    files, labels = list[pathlib.Path](), list[int]()
    for label, name in enumerate(classes):
        found = sorted(each for each in (folder / name).glob("*") if each.suffix.lower() in ENDINGS)
        if not found:
            raise DataError(f"{folder / name}: no images ({', '.join(sorted(ENDINGS))})")
        files += found
        labels += [label] * len(found)
    pixels = torch.empty(len(files), 3, size, size, dtype=torch.uint8)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for row, image in enumerate(pool.map(lambda file: _decoded(file, size), files)):
            pixels[row] = image
    return Images(pixels, torch.tensor(labels))


def load(folder: str, size: int) -> tuple[Images, Images, list[str]]:
    """Returns the training images, the held-out images, and the names of the classes."""
    top = pathlib.Path(folder)
    if not top.is_dir():
        raise DataError(f"--data: {folder}: no such folder")
    try:
        makers.imported("PIL.Image")
    except makers.PeerMissingError as missing:
        raise DataError(f"--data needs Pillow (pip install pillow): {missing}") from missing
    names = classes_in(top)
    held_out = [name for name in HELD_OUT_NAMES if name in names]
    if "train" in names and held_out:
        classes = classes_in(top / "train")
        if not classes:
            raise DataError(f"--data: {top / 'train'}: no folder of a class in it")
        return _read(top / "train", classes, size), _read(top / held_out[0], classes, size), classes
    if not names:
        raise DataError(f"--data: {folder}: no folder of a class in it")
    images = _read(top, names, size)
    rows = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    count = int(HELD_OUT * len(images))
    if count < 1:
        raise DataError(f"--data: {folder}: {len(images)} images, too few to hold out a fifth")
    return images.select(rows[count:]), images.select(rows[:count]), names
