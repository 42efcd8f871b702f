"""Draft heads: small trained modules on the hidden states of the target."""

from treespec.heads.base import DraftHeads, HeadSession
from treespec.heads.drafter import HeadDrafter
from treespec.heads.eagle import EagleConfig, EagleHead
from treespec.heads.formats import (
    CheckpointWarning,
    HeadsReport,
    export_heads,
    inspect_heads,
    load_heads,
    push_heads,
    save_heads,
)
from treespec.heads.hydra import HydraConfig, HydraHeads
from treespec.heads.layer import LayerConfig
from treespec.heads.medusa import MedusaConfig, MedusaHeads
from treespec.heads.vocabulary import DraftVocabulary

__all__ = [
    "CheckpointWarning",
    "DraftHeads",
    "DraftVocabulary",
    "EagleConfig",
    "EagleHead",
    "HeadDrafter",
    "HeadSession",
    "HeadsReport",
    "HydraConfig",
    "HydraHeads",
    "LayerConfig",
    "MedusaConfig",
    "MedusaHeads",
    "export_heads",
    "inspect_heads",
    "load_heads",
    "push_heads",
    "save_heads",
]
