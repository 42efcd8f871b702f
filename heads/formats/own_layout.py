"""Our own format: `config.json` with the settings of the heads, and their tensors as we name them.

Medusa's tensors have the names that other projects give them too, so that the file can be read
elsewhere.
"""

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, get_type_hints

from treespec.errors import CheckpointError, ConfigError
from treespec.heads.eagle import EagleConfig
from treespec.heads.formats.checkpoint import Recipe
from treespec.heads.formats.fingerprint import Fingerprint
from treespec.heads.formats.settings import Settings
from treespec.heads.formats.shapes import eagle_shapes, hydra_shapes, medusa_shapes, prefix_shapes
from treespec.heads.formats.tensors import StoredTensor, read_ids
from treespec.heads.hydra import HydraConfig
from treespec.heads.layer import LayerConfig
from treespec.heads.medusa import MedusaConfig
from treespec.heads.vocabulary import DraftVocabulary

CONFIGS = {
    "medusa": MedusaConfig,
    "hydra": HydraConfig,
    "eagle": EagleConfig,
    "eagle3": EagleConfig,
}
ENTRY = "treespec_heads"
VOCABULARY = "vocabulary_ids"
_FORMAT = 1


def own_recipe(family: str, stored: Mapping[str, StoredTensor], config: Settings) -> Recipe:
    """Of heads that `save_heads` wrote; `family` is what their tensors look like.

    Raises:
        CheckpointError: if the config contradicts the tensors, or is not one of ours.
    """
    entry = config.part(ENTRY)
    if not entry.values:
        raise CheckpointError(
            "these are heads that treespec wrote, but there is no config.json with their settings; "
            "keep it beside the weights"
        )
    if entry.integer("format") > _FORMAT:
        raise CheckpointError(
            f"the heads were saved in format {entry.integer('format')} of a newer treespec, this "
            f"one reads up to {_FORMAT}; upgrade treespec"
        )
    claimed = entry.text("family", "")
    if claimed not in CONFIGS or claimed.removesuffix("3") != family:
        raise CheckpointError(
            f"config.json says that these are {claimed or 'unnamed'} heads, but the tensors are "
            f"{family}'s; put the config.json beside them that they were saved with"
        )
    settings = _settings(claimed, entry.part("config").values)
    vocab_size = entry.integer("vocab_size")
    vocabulary = read_ids(VOCABULARY, stored[VOCABULARY]) if VOCABULARY in stored else None
    if vocabulary is not None:
        DraftVocabulary(vocabulary, vocab_size)
    columns = vocab_size if vocabulary is None else len(vocabulary)
    shapes = own_shapes(claimed, settings, columns=columns, vocab_size=vocab_size)
    return Recipe(
        layout=f"{claimed} heads in treespec's own format",
        family=claimed,
        settings=settings,
        names={name: name for name in shapes},
        shapes=shapes,
        ignored=frozenset({VOCABULARY}),
        vocabulary=vocabulary,
        vocab_size=vocab_size,
        base_model=config.optional_text("base_model_name_or_path"),
        fingerprint=Fingerprint.from_dict(entry.part("target").values),
    )


def own_config(recipe: Recipe) -> dict[str, Any]:
    """The `config.json` of heads, which needs every setting and the fingerprint."""
    made = CONFIGS[recipe.family](**recipe.settings)
    entry = {
        "format": _FORMAT,
        "family": recipe.family,
        "config": asdict(made),
        "vocab_size": recipe.vocab_size,
        "target": recipe.fingerprint.as_dict() if recipe.fingerprint else None,
    }
    config: dict[str, Any] = {ENTRY: entry, "base_model_name_or_path": recipe.base_model}
    if recipe.family == "medusa":
        config["medusa_num_heads"] = recipe.settings["num_heads"]
        config["medusa_num_layers"] = recipe.settings["num_layers"]
    return config


def own_shapes(
    family: str, settings: Mapping[str, Any], *, columns: int, vocab_size: int
) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor of heads with complete settings."""
    if family == "medusa":
        return medusa_shapes(settings, columns)
    if family == "hydra":
        prefix = settings["prefix"]
        return {
            **hydra_shapes(settings, columns),
            **({} if prefix is None else prefix_shapes(prefix)),
        }
    taps = settings["taps"]
    return eagle_shapes(settings, num_taps=len(taps), columns=columns, vocab_size=vocab_size)


def settings_of(config: MedusaConfig | HydraConfig | EagleConfig) -> dict[str, Any]:
    """Keyword arguments that make the config again."""
    return {one.name: getattr(config, one.name) for one in fields(config)}


def _settings(family: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments of a family's config, from JSON."""
    kind = CONFIGS[family]
    settings = dict(values)
    for name in ("prefix", "layer"):
        if isinstance(settings.get(name), Mapping):
            settings[name] = _make(LayerConfig, settings[name])
    if isinstance(settings.get("taps"), list):
        settings["taps"] = Settings(settings).integers("taps")
    return settings_of(_make(kind, settings))


def _make(kind: type, values: Mapping[str, Any]) -> Any:
    """A config from JSON.

    Raises:
        CheckpointError: for names that it does not have, values of another type, or a
            contradiction.
    """
    hints = get_type_hints(kind)
    for name, value in values.items():
        hint = hints.get(name)
        wanted = {int: int, float: int | float, bool: bool, str: str}.get(hint)  # type: ignore[arg-type]
        is_odd = wanted is not None and (
            not isinstance(value, wanted) or (isinstance(value, bool) and hint is not bool)
        )
        if is_odd:
            raise CheckpointError(
                f"config.json: {name} is {value!r}, not {getattr(hint, '__name__', hint)}"
            )
    try:
        return kind(**values)
    except (TypeError, ConfigError) as error:
        raise CheckpointError(
            f"config.json has settings that are not {kind.__name__}'s: {error}"
        ) from error
