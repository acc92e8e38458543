// Stands before Highway's own file of this name. Highway 1.0.3 chooses AVX3_DL where the processor has AVX-512 VNNI, but compiles it
// with "avxvnni", another extension that Zen 4 and Ice Lake lack: the compiler might use its encoding of the dot products, which faults
// there, and does not offer the AVX-512 ones.
#pragma GCC system_header
#include_next "hwy/ops/set_macros-inl.h"

#if HWY_TARGET == HWY_AVX3_DL
#undef HWY_TARGET_STR
#define HWY_TARGET_STR HWY_TARGET_STR_AVX3 ",vpclmulqdq,avx512vbmi,avx512vbmi2,vaes,avx512vnni,avx512bitalg,avx512vpopcntdq"
#endif
