"""What heads borrow of their target: its embedding and its LM head. They never own or change it."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from treespec.errors import UnsupportedTargetError
from treespec.heads.vocabulary import DraftVocabulary


class Borrowed:
    """The target's embedding and LM head as two functions.

    Not a module, so that no state dict, no optimiser and no `.to()` of the heads reaches the
    target.

    Args:
        target: the model.
        vocabulary: logits are computed for these tokens only; None for all.

    Raises:
        UnsupportedTargetError: if the target has no LM head of its own.
    """

    def __init__(self, target: PreTrainedModel, vocabulary: DraftVocabulary | None = None) -> None:
        head: Any = target.get_output_embeddings()
        if head is None:
            raise UnsupportedTargetError(
                f"{type(target).__name__} has no output embeddings that heads could share"
            )
        self.target = target
        self._head = head
        # A copy of the rows that count, once: gathering them at every step would cost more than
        # the product.
        self._rows: Tensor | None = None
        self._bias: Tensor | None = None
        if vocabulary is not None:
            ids = vocabulary.ids.to(head.weight.device)
            self._rows = head.weight.detach()[ids].clone()
            self._bias = None if head.bias is None else head.bias.detach()[ids].clone()
        self._config: Any = target.config.get_text_config(decoder=True)

    @property
    def device(self) -> torch.device:
        """Where the LM head is."""
        device: torch.device = self._head.weight.device
        return device

    def embed(self, tokens: Int[Tensor, "..."]) -> Float[Tensor, "... H"]:
        """Embeddings of token ids, without gradient."""
        embedding: Any = self.target.get_input_embeddings()
        with torch.no_grad():
            states: Tensor = embedding(tokens.to(embedding.weight.device))
        return states

    def logits(self, hidden: Float[Tensor, "... H"]) -> Float[Tensor, "... D"]:
        """Logits of post-norm hidden states, scaled and capped as the target does it.

        Gradients flow to `hidden`, never to the LM head.
        """
        hidden = hidden.to(self._head.weight.dtype).to(self.device)
        weight = self._head.weight.detach() if self._rows is None else self._rows
        bias = None if self._head.bias is None else self._head.bias.detach()
        logits = torch.nn.functional.linear(
            hidden, weight, bias if self._rows is None else self._bias
        )
        scale = getattr(self._config, "logit_scale", None)
        if scale is not None:
            logits = logits * scale
        divisor = getattr(self._config, "logits_scaling", None)
        if divisor is not None:
            logits = logits / divisor
        cap = getattr(self._config, "final_logit_softcapping", None)
        if cap is not None:
            logits = torch.tanh(logits / cap) * cap
        return logits
