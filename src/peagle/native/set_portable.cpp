#include "kernel_set.h"

PEAGLE_KERNEL_SET(portable_kernels, "portable")
