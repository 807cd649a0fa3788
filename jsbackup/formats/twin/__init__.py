"""Parts of the readable twin of the compiled kernel, each with its format. `_kernels_py.py` has all of the twin."""
