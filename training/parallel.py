"""The processes that train together, one on each device; alone without `torchrun` or `accelerate`.

Heads are small: their gradients are added up once a step, which is all that processes say to each
other. The gradient is a sum over tokens whoever had them, so that two processes learn what one
does that accumulates twice as long.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from treespec.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Processes:
    """This process among those of the run.

    Attributes:
        rank: its number, from 0.
        count: how many there are.
        device: where it should work; None alone, where the target's place decides.
    """

    rank: int = 0
    count: int = 1
    device: torch.device | None = None

    @classmethod
    def find(cls) -> "Processes":
        """As the launcher set them up.

        Raises:
            ConfigError: if there are several, but nothing connects them.
        """
        launched = int(os.environ.get("WORLD_SIZE", "1"))
        if launched <= 1:
            return cls()
        try:
            from accelerate import PartialState  # type: ignore[import-untyped]
            from accelerate.utils import parse_flag_from_env  # type: ignore[import-untyped]
        except ImportError as error:
            raise ConfigError(
                "training in several processes needs accelerate: pip install 'treespec[train]'"
            ) from error
        # It connects processes on CPUs only if it is told that they are meant to be there.
        on_cpu = parse_flag_from_env("ACCELERATE_USE_CPU") or not torch.accelerator.is_available()
        state = PartialState(cpu=on_cpu)
        if state.num_processes != launched:
            raise ConfigError(
                f"{launched} processes were started, but accelerate connects "
                f"{state.num_processes}; start them with torchrun or accelerate launch, or train "
                "in one process"
            )
        return cls(state.process_index, state.num_processes, state.device)

    @property
    def is_main(self) -> bool:
        """Whether this one writes files."""
        return self.rank == 0

    def own(self, number: int) -> bool:
        """Whether the work of this number is this process's."""
        return number % self.count == self.rank

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.count == 1:
            return tensor
        from accelerate.utils import reduce

        summed: Tensor = reduce(tensor, reduction="sum")
        return summed

    def any(self, flag: bool) -> bool:
        """Whether the flag is set anywhere."""
        if self.count == 1:
            return flag
        return bool(self.sum(torch.tensor(float(flag), device=self.device)) > 0)

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Give every process the sum of all gradients, in one message."""
        if self.count == 1:
            return
        given = list(parameters)
        parts = [torch.zeros_like(one) if one.grad is None else one.grad for one in given]
        summed = self.sum(torch.cat([part.reshape(-1) for part in parts]))
        sizes = [one.numel() for one in given]
        for one, part in zip(given, summed.split(sizes), strict=True):
            one.grad = part.view_as(one)

    def wait(self) -> None:
        """Return when all processes have come here."""
        if self.count > 1:
            from accelerate.utils import wait_for_everyone

            wait_for_everyone()
