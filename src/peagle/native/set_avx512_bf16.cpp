#include "kernel_set.h"

PEAGLE_KERNEL_SET(avx512_bf16_kernels, "avx512-bf16", product)
