// What a compressed vector is: codec names, codebooks, rotations, scalars, plain reference encode and decode.
//
// A codec turns vectors x of `dim` numbers (the keys or values of one KV head) into codes and a few scalars, which decode to a *stored
// vector* of `stored_dim` numbers. Attention works on stored vectors: with the codec's linear maps M (dim -> stored_dim) and N (back),
//   score = <M q, stored(k)>,   output = N (sum over tokens of p * stored(v)),
// so that maps are applied once per query and once per output, never per token.
// How codes of many tokens lie in memory is codec/layout.h.
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

enum class Family {
  full,
  affine,
  turboquant,
  turboquant_split,  // named turboquant:2.5 and so on
  turboquant_prod,
  turboquant_rvq,
  qjl,
  vecinfer,
  mxfp4,
  mxfp8
};
enum class Role { keys, values };
std::string_view name_of(Family family);

/// Which scalar goes with the levels c of a vector y. automatic: unbiased for keys, least squares for values (turboquant-prod: norm).
enum class ScalarRule {
  automatic,
  unbiased,      // |y|^2 / <y, c>: scores are right on average
  norm,          // |y| / sqrt(dim): the paper's; scores shrink by the codec's distortion
  least_squares  // <y, c> / |c|^2: least error of the vector
};
enum class SketchKind { orthogonal, gaussian };
enum class Axis { token, channel };
/// How a group's scale follows from its numbers. mlx: as mx.quantize does; minmax (affine): the least number and the range, as KIVI;
/// ocp (mxfp4, mxfp8): as the Open Compute Project's specification.
enum class GroupRule { mlx, minmax, ocp };

/// A codec's name, parsed: `full:fp16`, `affine:8,group=32`, `turboquant:3,rounds=1,seed=7`; known_codecs() lists all.
/// Fields that a family does not have keep their defaults.
struct Spec {
  Family family = Family::full;
  int bits = 16;               // bits a code; 16 or 32 for `full`; split: of the lower channel set; rvq: of stage 1; vecinfer: of an index
  int group = 64;              // affine: channels (axis=channel: tokens) that share one scale and one bias; 32 for mxfp4 and mxfp8
  int rounds = 2;              // turboquant: Hadamard rounds of the rotation, 1 or 2 (one round is not enough for sparse vectors)
  uint64_t seed = 0;           // of the rotation's signs and of sketches
  std::optional<Dtype> dtype;  // full: storage type; unset means "the full-precision type of the model's cache"
  ScalarRule scalar = ScalarRule::automatic;
  int bits2 = 0;       // split: of the upper channel set; rvq: of stage 2
  int quarters = 0;    // split: channels of the upper set, in quarters of all
  bool joint = false;  // rvq: both books optimised together
  int stages = 2;      // rvq: stages that decode reads
  int sketch_rows = 0;
  SketchKind sketch = SketchKind::orthogonal;
  int outliers = 0;  // qjl: channels with a sketch of their own
  int sub = 0;       // vecinfer: channels an index stands for
  Axis axis = Axis::token;
  std::optional<GroupRule> rule;  // unset: mlx; affine with axis=channel: minmax
  /// Keys: a mean per channel is subtracted before encoding. It belongs to the cache, which takes it from this many first tokens; the
  /// codec only carries the wish and is given vectors that are already centred.
  int centre = 0;
  static constexpr int kCentreCalibrated = -1;  // centre: the mean is Calibration's

  /// Throws Error that lists what would work.
  static Spec parse(std::string_view text);
  /// The canonical name; parse(str()) gives the same spec.
  std::string str() const;
  bool operator==(const Spec&) const = default;
};

/// One line a family: name, parameters, what it is. For help texts and error messages.
std::string known_codecs();

/// What was found out about the vectors of one KV head in one role before anything is encoded (codec/calibrate.h).
struct Calibration {
  std::vector<int> channels;     // split, qjl with outliers: all channels, by falling RMS
  std::vector<float> smoothing;  // vecinfer keys: lambda of each channel, positive
  std::vector<float> centroids;  // vecinfer: [2^bits][sub]
  std::vector<float> mean;       // centre=calibrated: of each channel
};
/// Whether Codec::make needs one for this spec.
bool needs_calibration(const Spec& spec);

using Code = uint16_t;

/// A run of a vector's codes that have the same width, and what they decode to.
struct Piece {
  int first, count, bits;
  int stored_begin = 0;  // of its section of the stored vector; pieces of one section add up
  int scalar = 0;        // the first of its scalars
  bool operator==(const Piece&) const = default;
};

/// How scalars are stored (codec/scalar.h): norm and scale in 16 bits, exponent (a power of two) in 8.
enum class ScalarForm { none, norm, scale, exponent };
constexpr int bits_of(ScalarForm form) { return form == ScalarForm::none ? 0 : form == ScalarForm::exponent ? 8 : 16; }

/// The sizes of what a codec makes of a block of tokens; known without calibration.
struct Form {
  int stored_dim = 0;
  int codes = 0;         // of one token; none for `full`
  int block_tokens = 1;  // tokens that are encoded together
  int scalars = 0;       // of a block
  ScalarForm scalar_form = ScalarForm::none;
  std::vector<Piece> pieces;  // of one token's codes; `full`: its numbers
};
/// Throws Error when the codec cannot hold vectors of `dim` numbers in this role (says what it can).
Form form_of(const Spec& spec, Role role, int dim, Dtype full_dtype = Dtype::f16);
/// Bits a number, scalars included, padding, maps and codebooks not.
double bits_per_element(const Spec& spec, Role role, int dim, Dtype full_dtype = Dtype::f16);

/// The numbers that codes stand for.
struct LevelTable {
  std::vector<float> levels;      // 2^bits, rising (mxfp4, mxfp8: values of the codes)
  std::vector<float> thresholds;  // midpoints of rising levels
  std::vector<int16_t> grid;      // the levels as odd integers (codec/books.h): levels[i] = grid[i] * step, at most 255 in magnitude up
  float step = 0;                 // to 4 bits a code, 1023 above
};

/// Everything needed to encode and decode vectors of one size in one role. Immutable; share it freely between threads.
class Codec {
 public:
  /// Throws Error when the codec cannot hold vectors of `dim` numbers (says which sizes it can), or needs a calibration that is not
  /// given or does not fit. `full_dtype` is the storage type of `full` where the spec does not state one.
  static std::shared_ptr<const Codec> make(const Spec& spec, Role role, int dim, Dtype full_dtype = Dtype::f16,
                                           const Calibration* calibration = nullptr);
  virtual ~Codec();
  Codec(const Codec&) = delete;
  Codec& operator=(const Codec&) = delete;

  const Spec& spec() const { return spec_; }
  Role role() const { return role_; }
  int dim() const { return dim_; }
  Family family() const { return spec_.family; }
  Dtype dtype() const { return dtype_; }  // full: storage type
  const Form& form() const { return form_; }
  int stored_dim() const { return form_.stored_dim; }
  int codes() const { return form_.codes; }
  int scalars() const { return form_.scalars; }
  int block_tokens() const { return form_.block_tokens; }
  int groups() const;  // affine, mxfp4, mxfp8: groups that have a scale; turboquant: 1; others: 0

  /// The levels of a piece; null for families without.
  virtual const LevelTable* table(int piece) const;
  std::span<const float> levels() const { return table(0) ? std::span<const float>(table(0)->levels) : std::span<const float>(); }
  std::span<const int16_t> grid() const { return table(0) ? std::span<const int16_t>(table(0)->grid) : std::span<const int16_t>(); }
  float grid_step() const { return table(0) ? table(0)->step : 0; }
  std::span<const float> thresholds() const { return table(0) ? std::span<const float>(table(0)->thresholds) : std::span<const float>(); }
  /// The one orthogonal map of turboquant, turboquant-prod and turboquant-rvq, which comes before everything else; null otherwise.
  virtual const class Rotation* rotation() const;

  /// vecinfer: [2^bits][sub]; empty otherwise. And the same arranged for looking up the nearest.
  virtual std::span<const float> centroids() const;
  virtual const class Nearest* index() const;
  /// vecinfer keys: each channel is divided by its factor and then goes through the transform; empty and null otherwise.
  virtual std::span<const float> smoothing() const;
  virtual const class Rotation* transform() const;
  /// turboquant-prod, qjl: what a piece of signs multiplies the norm of the sketched vector by for its scalar; 0 for other pieces.
  virtual double sketch_factor(int piece) const;
  /// qjl: the channels that have a sketch of their own, and are zero in the other.
  virtual std::span<const int> outliers() const;

  /// Plain reference, in float and double. x: [block_tokens][dim]; codes: [block_tokens][codes]; scalars as stored, already rounded.
  /// Numbers are clamped to +-65504 and NaN counts as 0. `full` has no codes.
  virtual void encode(std::span<const float> x, std::span<Code> codes, std::span<float> scalars) const = 0;
  /// The stored vectors, [block_tokens][stored_dim].
  virtual void decode(std::span<const Code> codes, std::span<const float> scalars, std::span<float> stored) const = 0;
  /// M and N; one vector each.
  virtual void map_query(std::span<const double> q, std::span<double> mapped) const;
  virtual void map_output(std::span<const double> stored, std::span<double> output) const;
  /// Encode, decode and N; for `full`: rounding to the storage type. [block_tokens][dim].
  virtual void roundtrip(std::span<const float> x, std::span<float> y) const;

  double bits_per_element() const;

 protected:
  Codec(const Spec& spec, Role role, int dim, Dtype full_dtype = Dtype::f16);

 private:
  Spec spec_;
  Role role_;
  int dim_;
  Dtype dtype_;
  Form form_;
};

/// M as a matrix [stored_dim][dim], and N as [dim][stored_dim].
std::vector<float> query_matrix(const Codec& codec);
std::vector<float> output_matrix(const Codec& codec);

/// One line of `codec list`.
struct CatalogueRow {
  Spec spec;
  std::string about;  // what it is, in a few words
  std::string needs;  // "" or what must be there first
  bool keys, values;  // roles it takes
  /// E|x - x_hat|^2 / |x|^2 of Gaussian vectors at d = 128, values where they are taken, else keys: exact or measured
  /// (codec/catalogue.cpp).
  double distortion;
};
/// A representative set of every family. Bits at a head size: bits_per_element.
const std::vector<CatalogueRow>& catalogue();

}  // namespace tersor::codec
