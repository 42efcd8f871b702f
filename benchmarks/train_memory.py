"""Peak memory of training steps, against target, heads and optimiser together.

python benchmarks/train_memory.py MODEL [--family hydra] [--tokens 2048] [--lm-head target]

Random texts, the full vocabulary, three steps of one batch each. One process for each family: the
peak of a process cannot be taken back. What the process holds before training is left out, but for
the target itself. Linux only.
"""

import resource
import tempfile
from pathlib import Path

import torch
import typer
from transformers import AutoModelForCausalLM, PreTrainedModel

from treespec.heads.formats.fingerprint import Fingerprint
from treespec.training import DataFolder, DataMeta, Example, TrainConfig, train_heads

_MOMENTS = 2


def forget_peak() -> None:
    """Begin to look for the peak anew."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_bytes() -> int:
    """Most memory that this process has held since."""
    (line,) = (one for one in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in one)
    return int(line.split()[1]) * 1024


def resident_bytes() -> int:
    """Memory that this process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def load(model: str, dtype: torch.dtype) -> PreTrainedModel:
    """The target, its weights in memory rather than in a mapped file."""
    target = AutoModelForCausalLM.from_pretrained(model, dtype=dtype).eval()
    for weight in target.parameters():
        weight.data = weight.data.clone()
    return target


def main(
    model: str,
    family: str = "medusa",
    tokens: int = 2048,
    rows: int = 8,
    lm_head: str = "target",
    dtype: str = "bfloat16",
) -> None:
    """Print the peak and what it is made of."""
    target = load(model, getattr(torch, dtype))
    of_target = sum(one.numel() * one.element_size() for one in target.parameters())
    vocabulary = target.get_output_embeddings().weight.shape[0]
    generator = torch.Generator().manual_seed(0)
    length = tokens // rows
    texts = [
        Example(
            str(number),
            None,
            torch.randint(vocabulary, (length,), generator=generator),
            torch.ones(length, dtype=torch.bool),
        )
        for number in range(3 * rows)
    ]
    meta = DataMeta(
        target=model,
        fingerprint=Fingerprint.of(target),
        vocab_size=vocabulary,
        chat_template_sha256=None,
        taps=None,
        hidden_dtype=None,
        options={},
    )
    config = TrainConfig.from_values(
        {
            "family": family,
            "lm_head": lm_head,
            "batch_tokens": tokens,
            "max_length": tokens,
            "max_steps": 3,
            "held_out": 0,
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        data = DataFolder(Path(folder), meta, texts, {})
        before = resident_bytes() - of_target
        forget_peak()
        result = train_heads(target, None, data, config, Path(folder) / "heads")
    peak = peak_bytes() - before
    of_heads = (1 + _MOMENTS) * 4 * sum(one.numel() for one in result.heads.parameters())
    typer.echo(
        f"{family}, {tokens} tokens, vocabulary {vocabulary}: peak {peak / 1e6:.0f} MB; target "
        f"{of_target / 1e6:.0f}, heads and optimiser {of_heads / 1e6:.0f}: "
        f"{peak / (of_target + of_heads):.2f} times"
    )


if __name__ == "__main__":
    typer.run(main)
