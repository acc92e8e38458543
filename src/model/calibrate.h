// Finding out what codecs need to know of a model's keys and values, by running it over a text.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "tersor/model.h"

namespace tersor::model {

/// What there is to calibrate for: a number of vectors a head that is enough for the codec.
int64_t wanted_vectors(const codec::Spec& spec, codec::Role role, int dim);

struct CalibrateOptions {
  cache::KvSpec spec;
  uint64_t seed = 0;
  int first_layer = 0;                          // earlier ones are done
  int chunk = 512;                              // tokens processed at a time
  uint64_t sample_bytes = uint64_t{512} << 20;  // of vectors held at a time; layers that do not fit wait for another pass over the text
  /// May throw to stop; what was handed to `finished` by then is whole.
  std::function<void(std::string_view stage, int64_t done, int64_t total)> progress;
  std::function<void(int layer, cache::LayerCalibration)> finished;
};

struct Calibrated {
  int64_t tokens = 0;                          // run through the model, in one pass
  int64_t key_vectors = 0, value_vectors = 0;  // of each head; 0 where the role needs none
  int64_t warnings = 0;                        // of codebooks
  std::string warning;                         // the first of them
};

/// Runs the tokens through the model in pieces of the context, each behind the token `begin` if any, with an uncompressed cache, and
/// calibrates layer by layer and head by head on a sample of positions that depends on the seed alone. Throws Error when the codecs need
/// no calibration or do not fit the model.
Calibrated calibrate(const Transformer& model, std::span<const int32_t> tokens, std::optional<int32_t> begin,
                     const CalibrateOptions& options);

}  // namespace tersor::model
