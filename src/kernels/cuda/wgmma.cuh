// What all users of warpgroup tensor-core products need (sm_90a only): their order, and names of their registers for inline assembly.
#pragma once

namespace tersor::kernels::cuda {

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

}  // namespace tersor::kernels::cuda

// Operands d[i], d[i + 1], ... of a product's sums.
#define TERSOR_8(d, i) \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define TERSOR_32(d, i) TERSOR_8(d, i), TERSOR_8(d, i + 8), TERSOR_8(d, i + 16), TERSOR_8(d, i + 24)
#define TERSOR_SUMS_16 TERSOR_8(d, 0), TERSOR_8(d, 8)
#define TERSOR_SUMS_32 TERSOR_32(d, 0)
#define TERSOR_SUMS_40 TERSOR_32(d, 0), TERSOR_8(d, 32)
#define TERSOR_SUMS_48 TERSOR_32(d, 0), TERSOR_8(d, 32), TERSOR_8(d, 40)
#define TERSOR_SUMS_64 TERSOR_32(d, 0), TERSOR_32(d, 32)
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
#define TERSOR_REGISTERS_40 TERSOR_REGISTERS_32 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define TERSOR_REGISTERS_48 TERSOR_REGISTERS_40 ",%40,%41,%42,%43,%44,%45,%46,%47"
