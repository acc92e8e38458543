// The warpgroup tensor-core product with its first operand in registers (sm_90a only).
#pragma once

#include "kernels/cuda/linear_ptx.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace tersor::kernels::cuda {

/// The descriptor of a second operand in shared memory: rows (columns of the product) of 64 16-bit elements along k, 128-byte swizzle,
/// 1024-byte aligned. Adding 2 moves on by 16 along k.
__device__ __forceinline__ uint64_t wgmma_descriptor(uint32_t address) {
  constexpr uint64_t kSwizzle128 = 1ull << 62, kEightRows = static_cast<uint64_t>(1024 >> 4) << 32;
  return kSwizzle128 | kEightRows | (1ull << 16) | ((address & 0x3FFFF) >> 4);
}

/// D[64 x N] += A[64 x 16] B[16 x N]: D and A by fragments of the warpgroup (a warp: 16 rows, as in mma.m16n8k16), B by descriptor.
template <class T, int N>
struct Wgmma;

#define TERSOR_WGMMA(T, TYPE, N, SUMS, D, A0, A1, A2, A3, B)                                                                           \
  template <>                                                                                                                          \
  struct Wgmma<T, N> {                                                                                                                 \
    static __device__ __forceinline__ void add(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b) {                                \
      asm volatile("{.reg .pred p;\nsetp.eq.u32 p,0,0;\nwgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" D "},{" A0 \
                   "," A1 "," A2 "," A3 "}," B ",p,1,1,0;}"                                                                            \
                   : SUMS                                                                                                              \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                                              \
    }                                                                                                                                  \
  };
TERSOR_WGMMA(__half, "f16", 32, TERSOR_SUMS_16, TERSOR_REGISTERS_16, "%16", "%17", "%18", "%19", "%20")
TERSOR_WGMMA(__nv_bfloat16, "bf16", 32, TERSOR_SUMS_16, TERSOR_REGISTERS_16, "%16", "%17", "%18", "%19", "%20")
TERSOR_WGMMA(__half, "f16", 64, TERSOR_SUMS_32, TERSOR_REGISTERS_32, "%32", "%33", "%34", "%35", "%36")
TERSOR_WGMMA(__nv_bfloat16, "bf16", 64, TERSOR_SUMS_32, TERSOR_REGISTERS_32, "%32", "%33", "%34", "%35", "%36")
TERSOR_WGMMA(__half, "f16", 128, TERSOR_SUMS_64, TERSOR_REGISTERS_64, "%64", "%65", "%66", "%67", "%68")
TERSOR_WGMMA(__nv_bfloat16, "bf16", 128, TERSOR_SUMS_64, TERSOR_REGISTERS_64, "%64", "%65", "%66", "%67", "%68")

}  // namespace tersor::kernels::cuda
