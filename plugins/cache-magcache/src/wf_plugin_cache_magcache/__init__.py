"""MagCache, as a declaration: what it will take and where it is legal; nothing is implemented yet."""
