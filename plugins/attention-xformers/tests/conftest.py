"""What the tests of attention backends share."""

from support.attention import inputs, on, package, reference, relative_error

__all__ = ["inputs", "on", "package", "reference", "relative_error"]
