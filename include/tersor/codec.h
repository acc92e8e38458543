// What a compressed vector is: codec names, codebooks, rotations, scalars, plain reference encode and decode.
//
// A codec turns one vector of `dim` numbers (a key or a value of one token and one KV head) into integer codes and a few
// scalars. How codes of many tokens lie in memory is codec/layout.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tersor/base.h"

namespace tersor::codec {

enum class Family { full, affine, turboquant };
enum class Role { keys, values };
std::string_view name_of(Family family);

/// A codec's name, parsed: `full`, `full:fp16`, `affine:4`, `affine:8,group=32`, `turboquant:4`, `turboquant:3,rounds=1,seed=7`.
struct Spec {
  Family family = Family::full;
  int bits = 16;               // bits a code; 16 or 32 for `full`
  int group = 64;              // affine: channels that share one scale and one bias
  int rounds = 2;              // turboquant: Hadamard rounds of the rotation, 1 or 2 (one round is not enough for sparse vectors)
  uint64_t seed = 0;           // turboquant: seed of the rotation's signs
  std::optional<Dtype> dtype;  // full: storage type; unset means "the full-precision type of the model's cache"

  /// Throws Error that lists what would work.
  static Spec parse(std::string_view text);
  /// The canonical name; parse(str()) gives the same spec.
  std::string str() const;
  bool operator==(const Spec&) const = default;
};

/// One line a family: name, parameters, what it is. For help texts and error messages.
std::string known_codecs();

/// Everything needed to encode and decode vectors of one size in one role. Immutable; share it freely between threads.
class Codec {
 public:
  /// Throws Error when the codec cannot hold vectors of `dim` numbers (says which sizes it can).
  /// `full_dtype` is the storage type of `full` where the spec does not state one.
  static std::shared_ptr<const Codec> make(const Spec& spec, Role role, int dim, Dtype full_dtype = Dtype::f16);

  const Spec& spec() const { return spec_; }
  Role role() const { return role_; }
  int dim() const { return dim_; }
  Family family() const { return spec_.family; }
  Dtype dtype() const { return dtype_; }  // full: storage type
  int groups() const;                     // affine: ceil(dim / group); turboquant: 1; full: 0

  /// turboquant: the 2^bits levels for coordinates scaled to unit variance, rising; empty otherwise.
  std::span<const float> levels() const { return levels_; }
  /// turboquant: the levels as odd integers (codec/books.h): levels()[i] = grid()[i] * grid_step(). At most 255 in magnitude up to
  /// 4 bits a code, 1023 above.
  std::span<const int16_t> grid() const { return grid_; }
  float grid_step() const { return grid_step_; }
  /// turboquant: the 2^bits - 1 midpoints between levels.
  std::span<const float> thresholds() const { return thresholds_; }
  /// The orthogonal map applied before encoding (identity unless turboquant).
  const class Rotation* rotation() const { return rotation_.get(); }

  /// Plain reference, in float and double: encode one vector to `dim` codes and its scalars (as stored, already rounded).
  /// full: codes are unused. affine: scalars are groups() scales, then groups() biases. turboquant: one scalar.
  void encode(std::span<const float> x, std::span<uint8_t> codes, std::span<float> scalars) const;
  /// The stored (rotated) vector; apply rotation()->inverse to get the original basis.
  void decode(std::span<const uint8_t> codes, std::span<const float> scalars, std::span<float> y) const;
  /// encode + decode + inverse rotation; for full: rounding to the storage type.
  void roundtrip(std::span<const float> x, std::span<float> y) const;

  /// Bits a number of one vector, scalars included, padding not.
  double bits_per_element() const;

  ~Codec();

 private:
  Codec() = default;
  Spec spec_;
  Role role_ = Role::keys;
  int dim_ = 0;
  Dtype dtype_ = Dtype::f16;
  std::vector<float> levels_, thresholds_;
  std::vector<int16_t> grid_;
  float grid_step_ = 0;
  std::shared_ptr<const class Rotation> rotation_;
};

}  // namespace tersor::codec
