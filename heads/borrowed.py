"""What heads borrow of their target: its embedding and its LM head. They never own or change it."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from treespec.errors import CheckpointError, UnsupportedTargetError
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
        CheckpointError: if the vocabulary is one of a larger target.
    """

    def __init__(self, target: PreTrainedModel, vocabulary: DraftVocabulary | None = None) -> None:
        head: Any = target.get_output_embeddings()
        if head is None:
            raise UnsupportedTargetError(
                f"{type(target).__name__} has no output embeddings that heads could share"
            )
        if vocabulary is not None and vocabulary.vocab_size > head.weight.shape[0]:
            raise CheckpointError(
                f"the draft vocabulary is for {vocabulary.vocab_size} tokens, but "
                f"{type(target).__name__} has {head.weight.shape[0]} logits; load the heads with "
                "the target that they were trained for"
            )
        self.target = target
        self._head = head
        self._vocabulary = vocabulary
        # A copy of the rows that count, made once and only for heads without an LM head of their
        # own: gathering them at every step would cost more than the product.
        self._rows: tuple[Tensor, Tensor | None] | None = None
        self._config: Any = target.config.get_text_config(decoder=True)

    @property
    def device(self) -> torch.device:
        """Where the LM head is."""
        device: torch.device = self._head.weight.device
        return device

    @property
    def hidden_size(self) -> int:
        """H: width of the states that the LM head reads."""
        return int(self._head.weight.shape[1])

    def copy_rows(self, head: nn.Linear) -> None:
        """Give a head's own LM head the target's weights, and its bias or none where it has one."""
        weight, bias = self._gathered()
        with torch.no_grad():
            head.weight.copy_(weight)
            for own in (tensor for name, tensor in head.named_parameters() if name == "bias"):
                own.zero_() if bias is None else own.copy_(bias)

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
        weight, bias = self._parameters()
        logits = torch.nn.functional.linear(hidden, weight, bias)
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

    def _parameters(self) -> tuple[Tensor, Tensor | None]:
        """Weight and bias of the columns that count, copied at most once."""
        if self._vocabulary is None:
            return self._gathered()
        if self._rows is None:
            self._rows = self._gathered()
        return self._rows

    def _gathered(self) -> tuple[Tensor, Tensor | None]:
        """Weight and bias of the columns that count: a copy if those are not all."""
        weight, bias = self._head.weight.detach(), self._head.bias
        bias = None if bias is None else bias.detach()
        if self._vocabulary is None:
            return weight, bias
        ids = self._vocabulary.ids.to(weight.device)
        return weight[ids], None if bias is None else bias[ids]
