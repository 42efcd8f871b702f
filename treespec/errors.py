"""Errors that treespec raises; each is also the builtin that a caller would expect."""


class TreespecError(Exception):
    """Anything that treespec refuses; the message says what is wrong, where, and what to do."""


class InvalidTreeError(TreespecError, ValueError):
    """A tree whose parts contradict each other."""


class ConfigError(TreespecError, ValueError):
    """A setting outside its range."""


class UnsupportedTargetError(TreespecError, TypeError):
    """A model that token trees cannot be scored with; raised before any token is produced."""


class UnsupportedOptionError(TreespecError, ValueError):
    """An option of `generate` that tree decoding cannot honour."""


class DrafterError(TreespecError, ValueError):
    """A drafter that does not fit the target, or a draft that breaks the protocol."""


class SelfCheckError(TreespecError, RuntimeError):
    """A tree forward that disagrees with plain forwards of the same paths."""


class DownloadError(TreespecError, OSError):
    """A file that could not be fetched, or that is not the one expected."""


class CheckpointError(TreespecError, ValueError):
    """A file of draft heads that cannot be what it claims, or does not fit the target."""


class DataError(TreespecError, ValueError):
    """Prompts or training data that are damaged, unusable, or another target's."""


class ServerError(TreespecError, OSError):
    """A server that does not answer, or answers what it should not."""
