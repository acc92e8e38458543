#include "codec/stored_map.h"

namespace tersor::codec {
namespace {

// Where each number of a stored vector lies once its sections are padded.
std::vector<int> padded_places(const Layout& layout) {
  std::vector<int> places(static_cast<size_t>(layout.codec->stored_dim()));
  for (const Layout& part : layout.parts()) {
    const int begin = layout.codec->form().pieces[static_cast<size_t>(&part - layout.parts().data())].stored_begin;
    for (int i = 0; i < part.dim; ++i) places[static_cast<size_t>(begin + i)] = part.stored_begin + i;
  }
  return places;
}

}  // namespace

bool StoredMap::needed(const Codec& codec) {
  switch (codec.family()) {
    case Family::turboquant_split:
    case Family::turboquant_prod:
    case Family::qjl: return true;
    case Family::vecinfer: return codec.role() == Role::keys;
    default: return false;
  }
}

StoredMap::StoredMap(std::span<const std::shared_ptr<const Codec>> codecs, const Layout& layout)
    : full_begin(layout.padded_dim), heads_(codecs.size()) {
  const bool keys = layout.role == Role::keys;
  const int dim = layout.dim, stored = full_begin + (dim + kLanes - 1) / kLanes * kLanes;
  in = keys ? dim : stored, out = keys ? stored : dim;
  const auto width = static_cast<size_t>(out);
  matrices.assign(heads_ * static_cast<size_t>(in) * width, 0.0f);
  const std::vector<int> places = padded_places(layout);
  for (size_t h = 0; h < heads_; ++h) {
    float* const to = matrices.data() + h * static_cast<size_t>(in) * width;
    const auto number = [&](int place, int d) -> float& {
      return keys ? to[static_cast<size_t>(d) * width + static_cast<size_t>(place)]
                  : to[static_cast<size_t>(place) * width + static_cast<size_t>(d)];
    };
    const std::vector<float> dense = keys ? query_matrix(*codecs[h]) : output_matrix(*codecs[h]);
    const size_t numbers = places.size();
    for (size_t s = 0; s < numbers; ++s)
      for (int d = 0; d < dim; ++d)
        number(places[s], d) =
            keys ? dense[s * static_cast<size_t>(dim) + static_cast<size_t>(d)] : dense[static_cast<size_t>(d) * numbers + s];
    for (int d = 0; d < dim; ++d) number(full_begin + d, d) = 1;
  }
}

}  // namespace tersor::codec
