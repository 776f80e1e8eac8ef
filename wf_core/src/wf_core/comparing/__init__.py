"""The plain run and the accelerated run of a model, side by side: time, steps, memory and what the clips lost."""
