"""A tiny trained Wan pipeline that ships inside the package: coloured handwritten digits that move.

``checkpoint/`` is a diffusers directory that ``diffusers.WanPipeline.from_pretrained`` loads as it is;
``clips`` makes the data it was trained on, ``score`` says whether a clip shows what its prompt asks for,
``evaluate`` measures the checkpoint, and ``training`` makes it from nothing.
"""
