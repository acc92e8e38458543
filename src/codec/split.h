// How many channels the upper set of a split has.
#pragma once

#include "tersor/codec.h"

namespace tersor::codec {

inline int split_upper(const Spec& spec, int dim) { return (dim * spec.quarters + 2) / 4; }

}  // namespace tersor::codec
