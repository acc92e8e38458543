"""The compiled module, loaded once."""

from ._load import load

core = load()
Error = core.Error
