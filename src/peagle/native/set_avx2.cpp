#include "kernel_set.h"

PEAGLE_KERNEL_SET(avx2_kernels, "avx2")
