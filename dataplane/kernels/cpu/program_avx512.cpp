// The same program, compiled for processors with AVX-512 and its VNNI.
#include "program.cpp"
