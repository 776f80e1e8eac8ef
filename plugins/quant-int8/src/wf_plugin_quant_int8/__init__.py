"""INT8 linear layers as a quantizer of wf. Only declared so far: nothing is implemented yet."""
