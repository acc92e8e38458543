#include "tersor/codec.h"

#include <mlx/ops.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "bindings.h"
#include "ops/kv.h"

namespace nb = nanobind;
namespace mx = mlx::core;
using namespace nb::literals;

namespace tersor::python {
namespace {

codec::Role parse_role(const std::string& role) {
  if (role == "keys") return codec::Role::keys;
  if (role == "values") return codec::Role::values;
  throw Error("role \"" + role + "\" is unknown; use \"keys\" or \"values\"");
}

// One codec for vectors of one size in one role, as graph nodes over arrays of heads.
class ArrayCodec {
 public:
  ArrayCodec(const std::string& spec, const std::string& role, int dim, const std::string& kernels)
      : spec_(codec::Spec::parse(spec)), role_(parse_role(role)), policy_(ops::parse_policy(kernels)) {
    if (spec_.centre != 0) throw Error("codec " + spec + ": centring belongs to caches, which see the first keys; leave centre= out");
    codec_ = codec::Codec::make(spec_, role_, dim, Dtype::f16);
    // The other side of the pair takes no room; it must only exist.
    const auto other = codec::Codec::make(codec::Spec{}, role_ == codec::Role::keys ? codec::Role::values : codec::Role::keys, dim);
    basis_ = role_ == codec::Role::keys ? std::make_shared<const ops::KvBasis>(ops::KvBasis::Codecs{codec_}, ops::KvBasis::Codecs{other})
                                        : std::make_shared<const ops::KvBasis>(ops::KvBasis::Codecs{other}, ops::KvBasis::Codecs{codec_});
  }

  ops::KvSlab slab(int batch, int heads, int64_t tokens) const {
    ops::KvFormat format(basis_);
    format.only = role_, format.batch = batch, format.heads = heads;
    return ops::KvSlab::make(std::make_shared<const ops::KvFormat>(std::move(format)), tokens, 0);
  }

  mx::array encode(const mx::array& x) const {
    if (x.ndim() != 4 || x.shape(3) != codec_->dim())
      throw Error("encode takes [batch, heads, tokens, " + std::to_string(codec_->dim()) + "]");
    if (x.shape(2) % codec_->block_tokens() != 0)
      throw Error("encode: codec " + spec_.str() + " encodes " + std::to_string(codec_->block_tokens()) +
                  " vectors at a time; give a multiple of them, not " + std::to_string(x.shape(2)));
    if (x.shape(2) == 0) return mx::zeros({x.shape(0), x.shape(1), 0}, mx::uint8);
    ops::KvSlab target = slab(x.shape(0), x.shape(1), x.shape(2));
    const ops::KvWrite write{&target, 0, x.shape(2), 0};
    const std::string variant = spec_.str();
    const ops::Choice choice = ops::choose("kv_append", role_ == codec::Role::keys ? variant + "/full" : "full/" + variant, mx::float16,
                                           codec_->dim(), policy_, codec_->dim());
    ops::kv_append(std::span(&write, 1), x, x, {}, choice);
    return target.data;
  }

  mx::array decode(const mx::array& codes, int64_t tokens) const {
    if (codes.ndim() != 3 || codes.dtype() != mx::uint8) throw Error("decode takes what encode gave: uint8 [batch, heads, bytes]");
    if (tokens == 0) return mx::zeros({codes.shape(0), codes.shape(1), 0, codec_->dim()}, mx::float32);
    ops::KvSlab source = slab(codes.shape(0), codes.shape(1), tokens);
    if (source.data.shape() != codes.shape())
      throw Error("decode: " + std::to_string(tokens) + " vectors of " + spec_.str() + " take " + std::to_string(source.data.shape(2)) +
                  " bytes a head, these are " + std::to_string(codes.shape(2)));
    source.data = codes, source.count = tokens;
    return ops::kv_decode(source, role_, 0, tokens);
  }

  std::string str() const { return spec_.str(); }
  std::string role() const { return role_ == codec::Role::keys ? "keys" : "values"; }
  int dim() const { return codec_->dim(); }
  double bits() const { return codec_->bits_per_element(); }

 private:
  codec::Spec spec_;
  codec::Role role_;
  ops::Policy policy_;
  std::shared_ptr<const codec::Codec> codec_;
  std::shared_ptr<const ops::KvBasis> basis_;
};

}  // namespace

void bind_codec(nb::module_& m) {
  nb::class_<ArrayCodec>(m, "ArrayCodec")
      .def(nb::init<const std::string&, const std::string&, int, const std::string&>(), "spec"_a, "role"_a, "dim"_a, "kernels"_a = "auto")
      .def("encode", &ArrayCodec::encode, "x"_a)
      .def("decode", &ArrayCodec::decode, "codes"_a, "tokens"_a)
      .def_prop_ro("role", &ArrayCodec::role)
      .def_prop_ro("dim", &ArrayCodec::dim)
      .def_prop_ro("bits_per_element", &ArrayCodec::bits)
      .def("__str__", &ArrayCodec::str);
}

}  // namespace tersor::python
