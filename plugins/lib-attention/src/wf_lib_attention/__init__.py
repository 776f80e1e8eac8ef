"""What attention backends share: how a call looks, what a kernel can serve, how a package's function becomes a backend.

Nothing here is a plugin: ``attention-sdpa``, ``attention-flash``, ``attention-sage`` and ``attention-xformers`` offer
their kernels to the host.
"""
