"""What a plugin declares: the manifest and its parts, read and checked. No code of a plugin is imported here."""
