#include "kernel_set.h"

PEAGLE_KERNEL_SET(avx512_kernels, "avx512")
