// Warpgroup products of the prefill kernel: the first operand in registers, the second in shared memory without swizzle, because the
// kernel's own threads write it, 16 bytes at a time: core matrices of 8 rows of 16 bytes, at strides that keep writers off each other's
// banks.
#pragma once

#include "kernels/cuda/kv_primitives.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace tersor::kernels::cuda {

/// Of core matrices that follow each other along k; 32 bytes more than one takes up.
inline constexpr int kCoreStride = 160;

/// rows: bytes between core matrices that follow each other along the product's columns.
__device__ __forceinline__ uint64_t core_descriptor(uint32_t address, uint32_t rows) {
  return static_cast<uint64_t>(rows >> 4) << 32 | static_cast<uint64_t>(kCoreStride >> 4) << 16 | ((address & 0x3FFFF) >> 4);
}

/// D[64 x N] = or += A[64 x 16] B[16 x N].
template <class T, int N>
struct CoreProduct;

#define TERSOR_CORE(T, TYPE, N, SUMS, D, A0, A1, A2, A3, B, P)                                                                             \
  template <>                                                                                                                              \
  struct CoreProduct<T, N> {                                                                                                               \
    static __device__ __forceinline__ void run(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, int add) {                           \
      asm volatile("{.reg .pred p;\nsetp.ne.b32 p," P ",0;\nwgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" D "},{" A0 \
                   "," A1 "," A2 "," A3 "}," B ",p,1,1,0;}"                                                                                \
                   : SUMS                                                                                                                  \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));                                                        \
    }                                                                                                                                      \
  };
TERSOR_CORE(__half, "f16", 64, TERSOR_SUMS_32, TERSOR_REGISTERS_32, "%32", "%33", "%34", "%35", "%36", "%37")
TERSOR_CORE(__nv_bfloat16, "bf16", 64, TERSOR_SUMS_32, TERSOR_REGISTERS_32, "%32", "%33", "%34", "%35", "%36", "%37")
TERSOR_CORE(__half, "f16", 80, TERSOR_SUMS_40, TERSOR_REGISTERS_40, "%40", "%41", "%42", "%43", "%44", "%45")
TERSOR_CORE(__nv_bfloat16, "bf16", 80, TERSOR_SUMS_40, TERSOR_REGISTERS_40, "%40", "%41", "%42", "%43", "%44", "%45")
TERSOR_CORE(__half, "f16", 96, TERSOR_SUMS_48, TERSOR_REGISTERS_48, "%48", "%49", "%50", "%51", "%52", "%53")
TERSOR_CORE(__nv_bfloat16, "bf16", 96, TERSOR_SUMS_48, TERSOR_REGISTERS_48, "%48", "%49", "%50", "%51", "%52", "%53")
TERSOR_CORE(__half, "f16", 128, TERSOR_SUMS_64, TERSOR_REGISTERS_64, "%64", "%65", "%66", "%67", "%68", "%69")
TERSOR_CORE(__nv_bfloat16, "bf16", 128, TERSOR_SUMS_64, TERSOR_REGISTERS_64, "%64", "%65", "%66", "%67", "%68", "%69")

}  // namespace tersor::kernels::cuda
