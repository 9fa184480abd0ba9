// Compiled once for each instruction set, with that set's flags: the table of its kernels.
#pragma once

#include "attention_kernels.h"
#include "kernels.h"
#include "product_kernels.h"
#include "row_kernels.h"

#define PEAGLE_KERNEL_SET(variable, set_name, product_kernel)                         \
  namespace peagle {                                                                  \
  extern const Kernels variable;                                                      \
  const Kernels variable = {set_name,          product_kernel, norm,   quantise,    \
                            round_to_bfloat16, silu_times,     rotate, attend_page, \
                            merge};                                                   \
  }
