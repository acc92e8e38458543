// The few machine instructions the linear kernels use, under readable names.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

// Bulk copies need sm_90; older devices (or a build that defines TERSOR_NO_BULK_COPY, for testing) copy 16 bytes a lane.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900 && !defined(TERSOR_NO_BULK_COPY)
#define TERSOR_BULK_COPY 1
#else
#define TERSOR_BULK_COPY 0
#endif

namespace tersor::kernels::cuda {

__device__ __forceinline__ uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

/// D += A B for A 16x16 (row), B 16x8 (column), 16-bit elements of type T, float sums.
template <class T>
__device__ __forceinline__ void mma_16x8x16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
template <>
__device__ __forceinline__ void mma_16x8x16<__half>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void mma_16x8x16<__nv_bfloat16>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Four 8x8 matrices of 16-bit elements; lanes 8i to 8i + 7 give the addresses of the rows of matrix i.
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ uint32_t and_or(uint32_t a, uint32_t mask, uint32_t bits) {
  uint32_t r;
  asm("lop3.b32 %0,%1,%2,%3,0xEA;" : "=r"(r) : "r"(a), "r"(mask), "r"(bits));
  return r;
}

__device__ __forceinline__ void copy_16(uint32_t to, const void* from, int bytes = 16) {  // beyond `bytes`: zeros
  asm volatile("cp.async.cg.shared.global [%0],[%1],16,%2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

__device__ __forceinline__ void barrier_init(uint32_t bar, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0],%1;" ::"r"(bar), "r"(count) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t bar) {
  asm volatile("{.reg .b64 s;\nmbarrier.arrive.shared::cta.b64 s,[%0];}" ::"r"(bar) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint32_t bar, uint32_t parity) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("{.reg .pred p;\nW_%=: mbarrier.try_wait.parity.shared::cta.b64 p,[%0],%1;\n@p bra D_%=;\nbra W_%=;\nD_%=:}" ::"r"(bar),
               "r"(parity)
               : "memory");
#else
  asm volatile("{.reg .pred p;\nW_%=: mbarrier.test_wait.parity.shared::cta.b64 p,[%0],%1;\n@p bra D_%=;\nbra W_%=;\nD_%=:}" ::"r"(bar),
               "r"(parity)
               : "memory");
#endif
}

/// A barrier among the `threads` threads that name the same id (1 to 15).
__device__ __forceinline__ void named_barrier(int id, int threads) { asm volatile("bar.sync %0,%1;" ::"r"(id), "r"(threads) : "memory"); }

/// Adds one to a ticket; earlier writes of the block (ordered by its barrier) are visible to whoever draws a later one.
__device__ __forceinline__ unsigned draw_ticket(unsigned* ticket) {
  unsigned old;
  __threadfence();
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0,[%1],1;" : "=r"(old) : "l"(ticket) : "memory");
  return old;
}

}  // namespace tersor::kernels::cuda
