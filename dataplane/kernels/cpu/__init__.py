"""The CPU kernels: C++ for AVX2 and for AVX-512, built when Pagoda is installed, and its border to Python."""
