#include <cmath>

#include "codec/books.h"
#include "codec/rvq_books.h"
#include "codec/split.h"
#include "tersor/codec.h"

namespace tersor::codec {
namespace {

constexpr int kDim = 128;  // of the distortions

// Measured on Gaussian rows (tests/data/codec_reference.json, sections 4c and 4d; pinned by tests/codec).
struct Measured {
  std::string_view name;
  double distortion;
};
constexpr Measured kMeasured[] = {
    {"full:fp16", 4.3e-8},
    {"affine:2,group=32", 0.1311},
    {"affine:3", 0.0362},
    {"affine:4", 0.00826},
    {"affine:5", 0.00195},
    {"affine:6", 0.000472},
    {"affine:8", 2.88e-5},
    {"affine:2,group=32,axis=channel", 0.1544},
    {"affine:4,group=32,axis=channel", 0.00612},
    {"mxfp4", 0.0133},
    {"mxfp8", 0.000705},
    {"vecinfer:4,sub=2", 0.00872},
    {"vecinfer:2,sub=4", 0.0982},
    {"vecinfer:1.5,sub=8", 0.1733},
    {"vecinfer:1,sub=8", 0.3245},
};

double measured(const std::string& name) {
  for (const Measured& row : kMeasured)
    if (row.name == name) return row.distortion;
  throw Error("codec " + name + " has no measured distortion in the catalogue");
}

// Of an estimate from signs: what the variance of inner products sums to over the axes.
double sign_distortion(const Spec& spec, int rows) {
  const double c1 = lloyd_max_book(kDim, 1).levels[1];
  if (spec.family == Family::qjl && spec.sketch == SketchKind::orthogonal) return (1 / (c1 * c1) - 1) * kDim / rows;
  return (M_PI / 2 * kDim - 1) / rows;
}

double distortion_of(const Spec& spec) {
  switch (spec.family) {
    case Family::turboquant: return lloyd_max_book(kDim, spec.bits).distortion;
    case Family::turboquant_split: {
      const int upper = split_upper(spec, kDim);
      return (upper * lloyd_max_book(upper, spec.bits2).distortion + (kDim - upper) * lloyd_max_book(kDim - upper, spec.bits).distortion) /
             kDim;
    }
    case Family::turboquant_prod:
      return (spec.bits > 1 ? lloyd_max_book(kDim, spec.bits - 1).distortion : 1.0) * sign_distortion(spec, kDim);
    case Family::turboquant_rvq: return (spec.joint ? joint_rvq_books : sequential_rvq_books)(kDim, spec.bits, spec.bits2).distortion;
    case Family::qjl: return sign_distortion(spec, spec.sketch_rows);
    default: return measured(spec.str());
  }
}

CatalogueRow row_of(const std::string& name, const std::string& about, const std::string& needs) {
  CatalogueRow row{Spec::parse(name), about, needs, true, true, 0};
  row.values = row.spec.family != Family::qjl;
  row.distortion = distortion_of(row.spec);
  return row;
}

std::vector<CatalogueRow> all_rows() {
  const std::string channels = "the order of the channels by RMS (calibrate)",
                    books = "codebooks of the model's keys and values (calibrate)";
  std::vector<CatalogueRow> rows;
  const auto add = [&](const std::string& name, const std::string& about, const std::string& needs = "") {
    rows.push_back(row_of(name, about, needs));
  };
  add("full:fp16", "the numbers themselves");
  for (const char* name : {"affine:2,group=32", "affine:3", "affine:4", "affine:5", "affine:6", "affine:8"})
    add(name, "scale and bias of channel groups");
  for (const char* name : {"affine:2,group=32,axis=channel", "affine:4,group=32,axis=channel"})
    add(name, "scale and bias of a channel over 32 tokens", "full blocks of 32 tokens");
  add("mxfp4", "e2m1 floats, a power of two for 32 channels");
  add("mxfp8", "e4m3 floats, a power of two for 32 channels");
  for (int bits = 1; bits <= 6; ++bits) add("turboquant:" + std::to_string(bits), "rotated, Lloyd-Max levels, one scalar");
  for (const char* name : {"turboquant:2.5", "turboquant:3.5"}) add(name, "two channel sets of different widths", channels);
  for (int bits = 1; bits <= 4; ++bits) add("turboquant-prod:" + std::to_string(bits), "levels, and signs of a sketch of the rest");
  for (const char* name : {"turboquant-rvq:1+1", "turboquant-rvq:2+1", "turboquant-rvq:2+2", "turboquant-rvq:2+2,book=joint",
                           "turboquant-rvq:3+1", "turboquant-rvq:4+4"})
    add(name, "levels in two stages, the first readable alone");
  for (const char* name : {"qjl:128", "qjl:256", "qjl:512"}) add(name, "signs of a random sketch and the norm");
  for (const char* name : {"vecinfer:1,sub=8", "vecinfer:1.5,sub=8", "vecinfer:2,sub=4", "vecinfer:4,sub=2"})
    add(name, "product quantiser, keys smoothed and transformed", books);
  return rows;
}

}  // namespace

const std::vector<CatalogueRow>& catalogue() {
  static const std::vector<CatalogueRow> rows = all_rows();
  return rows;
}

}  // namespace tersor::codec
