#include "kernels/cpu/float_convert.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/float_convert.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/float_convert-inl.h"

#if HWY_ONCE
namespace tersor::kernels {
HWY_EXPORT(ToFloat);
HWY_EXPORT(FromFloat);

void to_float(Dtype type, const void* from, float* to, size_t n) { HWY_DYNAMIC_DISPATCH(ToFloat)(type, from, to, n); }
void from_float(Dtype type, const float* from, void* to, size_t n) { HWY_DYNAMIC_DISPATCH(FromFloat)(type, from, to, n); }

}  // namespace tersor::kernels
#endif  // HWY_ONCE
