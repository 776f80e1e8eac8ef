"""Which plugins there are: discovery, the catalog over their manifests, and the import of one of them."""
