// Memory for weights and scratch: aligned to cache lines, in large pages where the system has them.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>
#include <utility>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace peagle {

template <class Element>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::size_t size) { grow(size); }
  ~Buffer() { std::free(data_); }
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }

  // Makes room for `size` elements; what was in it is lost. New memory is not cleared.
  void grow(std::size_t size) {
    if (size <= size_) return;
    std::free(data_);
    data_ = nullptr;
    size_ = 0;
    const std::size_t bytes = size * sizeof(Element);
    const std::size_t alignment = bytes >= LARGE_PAGE ? LARGE_PAGE : 64;
    const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
    data_ = static_cast<Element*>(std::aligned_alloc(alignment, rounded));
    if (data_ == nullptr) throw std::bad_alloc();
#if defined(__linux__)
    if (alignment == LARGE_PAGE) madvise(data_, rounded, MADV_HUGEPAGE);
#endif
    size_ = size;
  }

  Element* data() { return data_; }
  const Element* data() const { return data_; }
  std::size_t size() const { return size_; }
  Element& operator[](std::size_t index) { return data_[index]; }
  const Element& operator[](std::size_t index) const { return data_[index]; }

 private:
  static constexpr std::size_t LARGE_PAGE = std::size_t{2} << 20;

  Element* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace peagle
