"""Training-free sparse attention after LightX2V as sparse kernels of wf. Only declared so far, not implemented yet."""
