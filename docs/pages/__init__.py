"""The generated pages, one module each: what the core's tables and the manifests of this repository say."""
