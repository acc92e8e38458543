#include "base/huge_memory.h"

#include <sys/mman.h>
#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include <cstdint>
#include <new>

namespace tersor {
namespace {
constexpr size_t kHugePage = size_t{2} << 20;
}

std::shared_ptr<std::byte> huge_memory(size_t bytes) {
  if (bytes == 0) return nullptr;
  // One page more than asked for, so that the part in use can start at a huge page's boundary.
  const size_t mapped = (bytes + kHugePage - 1) / kHugePage * kHugePage + kHugePage;
  void* const base = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) throw std::bad_alloc();
  auto* const first = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(base) + kHugePage - 1) / kHugePage * kHugePage);
  madvise(first, mapped - kHugePage, MADV_HUGEPAGE);  // advice only: without it everything works, slower
  return {first, [base, mapped](std::byte*) { munmap(base, mapped); }};
}

void release_freed_memory() {
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
}

}  // namespace tersor
