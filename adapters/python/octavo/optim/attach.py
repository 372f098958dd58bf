"""The former module of offload/attach.py. Models that were pickled with its hooks name it."""

from .offload.attach import _copied, nothing

__all__ = ["_copied", "nothing"]
