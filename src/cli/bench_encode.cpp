#include <mlx/memory.h>
#include <mlx/random.h>
#include <mlx/transforms.h>

#include <algorithm>
#include <memory>

#include "base/peak_memory.h"
#include "cli/bench.h"
#include "cli/calibrations.h"
#include "cli/interrupt.h"
#include "cli/machine.h"
#include "cli/options.h"
#include "cli/report.h"
#include "codec/calibrate.h"
#include "ops/kv.h"

namespace tersor::cli {
namespace {

namespace mx = mlx::core;
using codec::Role;

struct Options {
  std::string kv, role = "keys", kernels = "auto";
  std::vector<int> shape{1, 8, 2048, 128};
  std::vector<std::string> calibration;
  int layer = 0, repeat = 10;
  bool json = false;

  int batch() const { return shape[0]; }
  int heads() const { return shape[1]; }
  int tokens() const { return shape[2]; }
  int dim() const { return shape[3]; }
};

struct Result {
  std::vector<double> samples;  // milliseconds
  uint64_t allocator_peak = 0, resident_peak = 0, output_bytes = 0;
  uint64_t peak() const { return std::max(allocator_peak, resident_peak); }
};

// The vectors and how they are to be stored.
class Encoding {
 public:
  explicit Encoding(const Options& options)
      : spec_(codec::Spec::parse(options.kv)), role_(parse_role(options.role)), tokens_(options.tokens()), x_(vectors(options)) {
    if (spec_.centre) throw Error("codec " + spec_.str() + ": centre= is the cache's, which subtracts the mean; leave it out here");
    codec::form_of(spec_, role_, options.dim());
    const Calibrations files(options.calibration, nullptr);
    const codec::Spec other;  // not written
    const ops::KvBasis::Codecs ours = codecs(options, files),
                               theirs{codec::Codec::make(other, role_ == Role::keys ? Role::values : Role::keys, options.dim())};
    files.note_unused();
    const bool keys = role_ == Role::keys;
    const std::string variant = keys ? spec_.str() + "/" + other.str() : other.str() + "/" + spec_.str();
    choice_ = ops::choose("kv_append", variant, mx::float16, options.dim(), ops::parse_policy(options.kernels), options.dim());
    auto format = std::make_shared<ops::KvFormat>(std::make_shared<const ops::KvBasis>(keys ? ours : theirs, keys ? theirs : ours));
    format->only = role_, format->batch = options.batch(), format->heads = options.heads();
    if (const int64_t group = format->key_group(); keys && tokens_ % group != 0)
      throw Error("--shape: codec " + spec_.str() + " encodes " + std::to_string(group) +
                  " tokens at a time; give a multiple of them, not " + std::to_string(tokens_));
    format_ = std::move(format);
  }

  ops::KvSlab slab() const { return ops::KvSlab::make(format_, tokens_, 0); }
  void encode(ops::KvSlab& slab, int64_t tokens) const {
    const ops::KvWrite write{&slab, 0, tokens, 0};
    ops::kv_append({&write, 1}, x_, x_, {}, choice_);
    mx::eval(slab.data);
  }
  double bits() const { return codec::bits_per_element(spec_, role_, x_.shape(3)); }
  const codec::Spec& spec() const { return spec_; }
  const ops::Choice& choice() const { return choice_; }
  const std::string& calibration() const { return calibration_; }
  uint64_t input_bytes() const { return x_.nbytes(); }
  int64_t input_tokens() const { return tokens_; }
  int64_t least_tokens() const { return format_->key_group(); }

 private:
  static mx::array vectors(const Options& options) {
    mx::random::seed(1);
    mx::array x = mx::random::normal({options.batch(), options.heads(), options.tokens(), options.dim()});
    mx::eval(x);
    return x;
  }

  // One for all heads, or one each from the files or from the head's own vectors.
  ops::KvBasis::Codecs codecs(const Options& options, const Calibrations& files) {
    if (!codec::needs_calibration(spec_)) return {codec::Codec::make(spec_, role_, options.dim())};
    ops::KvBasis::Codecs list;
    for (int head = 0; head < options.heads(); ++head) {
      const codec::Calibration* given = files.of(spec_, role_, options.layer, head);
      calibration_ = given ? "file" : "the vectors themselves";
      list.push_back(codec::Codec::make(spec_, role_, options.dim(), Dtype::f16, given ? given : &(made_ = own(head))));
    }
    return list;
  }
  codec::Calibration own(int head) const {
    const int64_t count = std::min<int64_t>(tokens_, codec::advised_vectors(spec_, x_.shape(3)) + 1024);
    const auto dim = static_cast<size_t>(x_.shape(3));
    const auto step = [](int, double) {
      throw_if_interrupted();
      return true;
    };
    const std::span<const float> all(x_.data<float>(), x_.size());
    const size_t begin = static_cast<size_t>(head) * static_cast<size_t>(tokens_) * dim;
    return codec::calibrate(spec_, role_, x_.shape(3), all.subspan(begin, static_cast<size_t>(count) * dim), 1, step).calibration;
  }

  codec::Spec spec_;
  Role role_;
  int tokens_;
  mx::array x_;
  codec::Calibration made_;
  std::string calibration_ = "none";
  ops::Choice choice_;
  std::shared_ptr<const ops::KvFormat> format_;
};

// Memory above what is there before the output is made.
void measure_memory(const Encoding& encoding, Result& result) {
  mx::clear_cache();
  mx::reset_peak_memory();
  const uint64_t active = mx::get_active_memory();
  const bool anew = reset_peak_resident();
  const uint64_t resident = anew ? resident_bytes() : std::max(resident_bytes(), peak_resident_bytes());
  ops::KvSlab slab = encoding.slab();
  encoding.encode(slab, encoding.input_tokens());
  result.output_bytes = slab.data.nbytes();
  result.allocator_peak = mx::get_peak_memory() - std::min<uint64_t>(mx::get_peak_memory(), active);
  const uint64_t highest = peak_resident_bytes();
  result.resident_peak = highest - std::min(highest, resident);
}

Result measure(const Encoding& encoding, int repeat) {
  Result result;
  Progress progress("encoding");
  ops::KvSlab slab = encoding.slab();
  encoding.encode(slab, encoding.least_tokens());  // loads code
  measure_memory(encoding, result);
  until_interrupted([&] {
    encoding.encode(slab, encoding.input_tokens());
    alternate(1, repeat, [&](size_t) {
      result.samples.push_back(1e3 * timed([&] { encoding.encode(slab, encoding.input_tokens()); }));
      progress.update(static_cast<int64_t>(result.samples.size()), repeat);
    });
  });
  return result;
}

Json as_json(const Options& options, const Encoding& encoding, const Result& result) {
  const double ms = median(result.samples);
  return {{"benchmark", "encode"},
          {"kv", encoding.spec().str()},
          {"role", options.role},
          {"shape", options.shape},
          {"calibration", encoding.calibration()},
          {"bits_per_element", encoding.bits()},
          {"ms", ms},
          {"samples", result.samples},
          {"input_gb_s", ms > 0 ? static_cast<double>(encoding.input_bytes()) / ms / 1e6 : 0},
          {"input_bytes", encoding.input_bytes()},
          {"output_bytes", result.output_bytes},
          {"peak_bytes", result.peak()},
          {"allocator_peak_bytes", result.allocator_peak},
          {"resident_peak_bytes", result.resident_peak},
          {"kernel", encoding.choice().kernel},
          {"fast", encoding.choice().fast},
          {"reason", encoding.choice().reason},
          {"policy", options.kernels},
          {"repeat", options.repeat},
          {"machine", to_json(describe_machine())}};
}

std::string as_text(const Options& options, const Encoding& encoding, const Result& result) {
  Rows rows{{"kv", "role", "ms", "lowest", "highest", "input GB/s", "output", "peak", "kernel"}};
  const double ms = median(result.samples);
  const auto [low, high] = std::minmax_element(result.samples.begin(), result.samples.end());
  if (!result.samples.empty())
    rows.push_back({encoding.spec().str(), options.role, fixed(ms, 3), fixed(*low, 3), fixed(*high, 3),
                    fixed(static_cast<double>(encoding.input_bytes()) / ms / 1e6, 2), human_bytes(result.output_bytes),
                    human_bytes(result.peak()), encoding.choice().kernel});
  return table(rows) + (encoding.calibration() == "none" ? "" : "calibration: " + encoding.calibration() + ", not timed\n");
}

void check(const Options& options) {
  if (mx::default_device() == mx::Device::gpu) throw Error("bench encode measures the CPU's kernels: run it with MLX's CPU package");
  if (options.shape.size() != 4)
    throw Error("--shape needs four numbers, BATCH,HEADS,TOKENS,DIM, not " + std::to_string(options.shape.size()));
  double bytes = 8;
  for (const int n : options.shape) bytes *= n;
  if (bytes > static_cast<double>(memory_limit()) / 4)
    throw Error("--shape: these vectors take more than a quarter of the memory; use fewer");
}

int run(const Options& options) {
  check(options);
  const Encoding encoding(options);
  const Result result = measure(encoding, options.repeat);
  return finish_bench(
      options.json, result.samples.size(), [&] { return as_json(options, encoding, result); },
      [&] { return as_text(options, encoding, result); });
}

}  // namespace

void add_bench_encode(CLI::App& parent, Commands& commands) {
  CLI::App* app = parent.add_subcommand(
      "encode",
      "Measure encoding keys or values into a cache's blocks: milliseconds for all vectors, and the memory that it takes beside them. A "
      "codec that needs a calibration, and gets no file, is calibrated on the vectors themselves (seeded normal numbers) beforehand.");
  app->footer("Example: tersor bench encode --kv vecinfer:1,sub=8 --role keys --shape 1,8,2048,128");
  auto options = std::make_shared<Options>();
  app->add_option("--kv", options->kv, "Codec")->required()->type_name("CODEC");
  app->add_option("--role", options->role, "What the vectors are")->type_name("keys|values")->capture_default_str();
  add_whole_list(*app, "--shape", options->shape, 1, 1 << 24, "BATCH,HEADS,TOKENS,DIM")->default_str("1,8,2048,128");
  add_calibration(*app, options->calibration);
  app->add_option("--layer", options->layer, "The layer whose calibration is taken")
      ->type_name("N")
      ->check(whole(0, 4095))
      ->capture_default_str();
  app->add_option("--kernels", options->kernels, "auto, require a fast kernel, or forbid them")
      ->type_name("auto|require|forbid")
      ->capture_default_str();
  app->add_option("--repeat", options->repeat, "Samples")->type_name("R")->check(whole(1, 100000))->capture_default_str();
  add_json(*app, options->json);
  commands.push_back({app, [options] { return run(*options); }});
}

}  // namespace tersor::cli
