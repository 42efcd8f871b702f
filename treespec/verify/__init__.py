"""Verifiers: rules that decide which path of a tree the target accepts."""

from collections.abc import Callable, Mapping

from treespec.errors import ConfigError
from treespec.verify.acceptance import Acceptance, Verifier
from treespec.verify.block import Block
from treespec.verify.gumbel import Gumbel
from treespec.verify.kseq import KSeq
from treespec.verify.rejection import Rejection
from treespec.verify.rule import Rule
from treespec.verify.token import Token
from treespec.verify.traversal import Traversal
from treespec.verify.typical import Typical

VERIFIERS: Mapping[str, Callable[[], Verifier]] = {
    "gumbel": Gumbel,
    "token": Token,
    "block": Block,
    "rejection": Rejection,
    "traversal": Traversal,
    "kseq": KSeq,
    "typical": Typical,
}


def make_verifier(verifier: str | Verifier) -> Verifier:
    """The verifier of that name, or the given object as it is.

    Raises:
        ConfigError: if there is no verifier of that name.
    """
    if not isinstance(verifier, str):
        return verifier
    if verifier not in VERIFIERS:
        raise ConfigError(f"there is no verifier {verifier!r}; choose from {', '.join(VERIFIERS)}")
    return VERIFIERS[verifier]()


__all__ = [
    "Acceptance",
    "Block",
    "Gumbel",
    "KSeq",
    "Rejection",
    "Rule",
    "Token",
    "Traversal",
    "Typical",
    "VERIFIERS",
    "Verifier",
    "make_verifier",
]
