"""Checkpoints of draft heads: load every known format, save, inspect, export."""

from treespec.heads.formats.checkpoint import CheckpointWarning
from treespec.heads.formats.exporting import ENGINES, export_heads
from treespec.heads.formats.hub import push_heads
from treespec.heads.formats.inspecting import HeadsReport, inspect_heads
from treespec.heads.formats.loading import load_heads
from treespec.heads.formats.saving import save_heads

__all__ = [
    "ENGINES",
    "CheckpointWarning",
    "HeadsReport",
    "export_heads",
    "inspect_heads",
    "load_heads",
    "push_heads",
    "save_heads",
]
