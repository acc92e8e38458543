// What Codec::make chooses from: one function a family. Sizes were checked by form_of.
#pragma once

#include "tersor/codec.h"

namespace tersor::codec {

using CodecPtr = std::shared_ptr<const Codec>;

CodecPtr make_full(const Spec& spec, Role role, int dim, Dtype dtype);
CodecPtr make_affine(const Spec& spec, Role role, int dim);
CodecPtr make_channel_affine(const Spec& spec, Role role, int dim);
CodecPtr make_microscaled(const Spec& spec, Role role, int dim);
CodecPtr make_turboquant(const Spec& spec, Role role, int dim);
CodecPtr make_split(const Spec& spec, Role role, int dim, const Calibration& calibration);
CodecPtr make_prod(const Spec& spec, Role role, int dim);
CodecPtr make_rvq(const Spec& spec, Role role, int dim);
CodecPtr make_qjl(const Spec& spec, Role role, int dim, const Calibration* calibration);
CodecPtr make_vecinfer(const Spec& spec, Role role, int dim, const Calibration& calibration);

}  // namespace tersor::codec
