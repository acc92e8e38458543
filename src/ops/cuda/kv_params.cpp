#include "ops/cuda/kv_params.h"

#include <memory>
#include <mutex>

namespace tersor::ops::cuda {

const PreparedFormat& prepared(const KvFormat& format) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (!format.prepared) {
    const codec::Codec &keys = *format.keys.codec, &values = *format.values.codec;
    format.prepared = std::make_shared<const PreparedFormat>(PreparedFormat{
        {*kernels::cuda::code_of(keys), *kernels::cuda::code_of(values)},
        {kernels::cuda::levels_of(keys), kernels::cuda::levels_of(values)},
        {kernels::cuda::rotation_bits(format.basis->key_rotation), kernels::cuda::rotation_bits(format.basis->value_rotation)}});
  }
  return *static_cast<const PreparedFormat*>(format.prepared.get());
}

}  // namespace tersor::ops::cuda
