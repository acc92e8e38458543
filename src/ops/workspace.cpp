#include "ops/workspace.h"

#include <memory>
#include <new>

namespace tersor::ops {
namespace {

constexpr std::align_val_t kAlignment{64};
struct Free {
  void operator()(float* memory) const { ::operator delete[](memory, kAlignment); }
};

}  // namespace

float* workspace(size_t floats) {
  thread_local std::unique_ptr<float[], Free> memory;
  thread_local size_t size = 0;
  if (floats > size) {
    memory.reset();
    size = 0;
    memory.reset(static_cast<float*>(::operator new[](floats * sizeof(float), kAlignment)));
    size = floats;
  }
  return memory.get();
}

}  // namespace tersor::ops
