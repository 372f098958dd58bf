"""State dicts of this library and of others."""

from .torchao_files import torchao_classes

__all__ = ["torchao_classes"]
