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

float* workspace(size_t floats, Workspace purpose) {
  struct Buffer {
    std::unique_ptr<float[], Free> memory;
    size_t size = 0;
  };
  thread_local Buffer buffers[3];
  Buffer& buffer = buffers[static_cast<size_t>(purpose)];
  if (floats > buffer.size) {
    buffer.memory.reset();
    buffer.size = 0;
    buffer.memory.reset(static_cast<float*>(::operator new[](floats * sizeof(float), kAlignment)));
    buffer.size = floats;
  }
  return buffer.memory.get();
}

}  // namespace tersor::ops
