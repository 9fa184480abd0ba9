#include "kernel_set.h"

PEAGLE_KERNEL_SET(neon_kernels, "neon")
