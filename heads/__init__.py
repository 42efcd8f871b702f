"""Draft heads: small trained modules on the hidden states of the target."""

from treespec.heads.base import DraftHeads, HeadSession
from treespec.heads.drafter import HeadDrafter
from treespec.heads.vocabulary import DraftVocabulary

__all__ = ["DraftHeads", "DraftVocabulary", "HeadDrafter", "HeadSession"]
