// The part of the Python module that drafts: text sources, growing trees, and sharing a pass out.
#pragma once

#include <nanobind/nanobind.h>

namespace peagle {

void bind_drafting(nanobind::module_& module);

}  // namespace peagle
