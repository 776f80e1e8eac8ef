"""Where in a model: seams, their wiring, the identity of a call, and what a family adapter offers."""
