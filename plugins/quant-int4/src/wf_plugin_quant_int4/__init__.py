"""INT4 storage of linear layers as a quantizer of wf. Only declared so far: nothing is implemented yet."""
