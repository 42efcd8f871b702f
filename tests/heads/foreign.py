"""Checkpoints as other projects write them, key by key, with random weights for a tiny target.

Nothing here imports treespec: what is written is what the projects' own trainers and loaders say.
To have a folder of each to look at:

    python -m tests.heads.foreign DIR
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.heads.foreign_eagle import (
    eagle_1,
    eagle_1_llama_3,
    eagle_1_qwen2,
    eagle_3,
    eagle_3_specforge,
    eagle_3_speculators,
)
from tests.heads.foreign_medusa import (
    hydra,
    hydra_mlp,
    medusa_2,
    medusa_head_only,
    medusa_tgi,
    medusa_v01,
    medusa_vllm,
    medusa_vllm_map,
)
from tests.heads.foreign_parts import Foreign

LAYOUTS: Mapping[str, Callable[[], Foreign]] = {
    make.__name__: make
    for make in (
        medusa_v01,
        medusa_tgi,
        medusa_2,
        medusa_head_only,
        medusa_vllm,
        medusa_vllm_map,
        hydra,
        hydra_mlp,
        eagle_1,
        eagle_1_llama_3,
        eagle_1_qwen2,
        eagle_3,
        eagle_3_specforge,
        eagle_3_speculators,
    )
}


def main() -> None:
    """Write a folder of each layout."""
    for name, make in LAYOUTS.items():
        sys.stdout.write(f"{make().write(Path(sys.argv[1]) / name)}\n")


if __name__ == "__main__":
    main()
