// The warpgroup tensor-core product with its first operand in registers (sm_90a only).
#pragma once

#include "kernels/cuda/linear_ptx.cuh"

namespace tersor::kernels::cuda {

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

/// The descriptor of a second operand in shared memory: rows (columns of the product) of 64 16-bit elements along k, 128-byte swizzle,
/// 1024-byte aligned. Adding 2 moves on by 16 along k.
__device__ __forceinline__ uint64_t wgmma_descriptor(uint32_t address) {
  constexpr uint64_t kSwizzle128 = 1ull << 62, kEightRows = static_cast<uint64_t>(1024 >> 4) << 32;
  return kSwizzle128 | kEightRows | (1ull << 16) | ((address & 0x3FFFF) >> 4);
}

/// D[64 x N] += A[64 x 16] B[16 x N]: D and A by fragments of the warpgroup (a warp: 16 rows, as in mma.m16n8k16), B by descriptor.
template <class T, int N>
struct Wgmma;

#define TERSOR_8(d, i) \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define TERSOR_32(d, i) TERSOR_8(d, i), TERSOR_8(d, i + 8), TERSOR_8(d, i + 16), TERSOR_8(d, i + 24)
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
#define TERSOR_REGISTERS_16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define TERSOR_REGISTERS_32                               \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15" \
  ","                                                     \
  "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define TERSOR_REGISTERS_64                                         \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"           \
  ","                                                               \
  "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31" \
  ","                                                               \
  "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47" \
  ","                                                               \
  "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define TERSOR_SUMS_16 TERSOR_8(d, 0), TERSOR_8(d, 8)
TERSOR_WGMMA(__half, "f16", 32, TERSOR_SUMS_16, TERSOR_REGISTERS_16, "%16", "%17", "%18", "%19", "%20")
TERSOR_WGMMA(__nv_bfloat16, "bf16", 32, TERSOR_SUMS_16, TERSOR_REGISTERS_16, "%16", "%17", "%18", "%19", "%20")
#define TERSOR_SUMS_32 TERSOR_32(d, 0)
TERSOR_WGMMA(__half, "f16", 64, TERSOR_SUMS_32, TERSOR_REGISTERS_32, "%32", "%33", "%34", "%35", "%36")
TERSOR_WGMMA(__nv_bfloat16, "bf16", 64, TERSOR_SUMS_32, TERSOR_REGISTERS_32, "%32", "%33", "%34", "%35", "%36")
#define TERSOR_SUMS_64 TERSOR_32(d, 0), TERSOR_32(d, 32)
TERSOR_WGMMA(__half, "f16", 128, TERSOR_SUMS_64, TERSOR_REGISTERS_64, "%64", "%65", "%66", "%67", "%68")
TERSOR_WGMMA(__nv_bfloat16, "bf16", 128, TERSOR_SUMS_64, TERSOR_REGISTERS_64, "%64", "%65", "%66", "%67", "%68")

}  // namespace tersor::kernels::cuda
