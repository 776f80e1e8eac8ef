"""The Cosmos model family: what it is made of, in the manifest. Its adapter is not implemented yet."""
