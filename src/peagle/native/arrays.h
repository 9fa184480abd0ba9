// Arrays as Python hands them over, and what is asked of them.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <stdexcept>

namespace peagle {

namespace nb = nanobind;

template <class Element, class... Shape>
using Array = nb::ndarray<Element, Shape..., nb::c_contig, nb::device::cpu>;

template <class Element>
using Vector = Array<Element, nb::ndim<1>>;

template <class Element>
using Matrix = Array<Element, nb::ndim<2>>;

inline void require(bool condition, const char* what) {
  if (!condition) throw std::invalid_argument(what);
}

}  // namespace peagle
