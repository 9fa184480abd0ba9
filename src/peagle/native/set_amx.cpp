#include "amx_kernels.h"
#include "kernel_set.h"

PEAGLE_KERNEL_SET(amx_kernels, "amx", amx_product)
