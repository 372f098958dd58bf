"""State dicts: ours, those of other libraries, and what it takes to load their files."""

from .torchao_files import torchao_classes

__all__ = ["torchao_classes"]
