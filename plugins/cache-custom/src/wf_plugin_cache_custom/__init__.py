"""TeaCache's decision with an extrapolated residual, as a declaration: nothing is implemented yet."""
