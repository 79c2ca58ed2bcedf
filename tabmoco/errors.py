"""Every error a user can cause. Each message says what must hold, what was found and what to do."""


class TabmocoError(ValueError):
    """A problem with the data, the settings or the files given to tabmoco; never a bug of tabmoco's own."""


class ConfigError(TabmocoError):
    """A setting that does not exist, has the wrong type or lies outside its range."""


class TableError(TabmocoError):
    """A table that cannot be read, or that lacks what the model or the command needs."""


class SchemaError(TabmocoError):
    """A column whose kind cannot be used, or that does not fit the schema of a trained model."""


class TrainingError(TabmocoError):
    """Training that cannot start, or that had to stop to stay correct."""


class CheckpointError(TabmocoError):
    """A checkpoint that is damaged or that belongs to another run."""


class ModelFileError(TabmocoError):
    """A model directory that is damaged, altered, incomplete or of another format version."""


class IndexMismatchError(TabmocoError):
    """Vectors searched in an index that another model made."""


class Interrupted(TabmocoError):
    """Training stopped at the user's wish; a checkpoint holds everything done so far."""
