"""The CPU kernels: C++ for AVX2, built when Pagoda is installed, and its border to Python."""
