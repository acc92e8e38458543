#include <mlx/ops.h>
#include <mlx/random.h>
#include <mlx/transforms.h>

#include <algorithm>
#include <memory>
#include <regex>

#include "base/thread_pool.h"
#include "cli/bench.h"
#include "cli/interrupt.h"
#include "cli/limits.h"
#include "cli/machine.h"
#include "cli/options.h"
#include "cli/report.h"
#include "model/random_model.h"
#include "tersor/ops.h"

namespace tersor::cli {
namespace {

namespace mx = mlx::core;

constexpr int64_t kMostNumbers = int64_t{1} << 30;  // of a weight

struct Shape {
  int out, in;
  std::string str() const { return std::to_string(out) + "x" + std::to_string(in); }
};

// The weight matrices of one layer, equal ones once.
struct ModelShapes {
  const char* name;
  std::vector<Shape> shapes;
};
const ModelShapes kModels[] = {
    {"smollm2-135m", {{960, 576}, {576, 576}, {3072, 576}, {576, 1536}}},
    {"llama-3.2-1b", {{3072, 2048}, {2048, 2048}, {16384, 2048}, {2048, 8192}}},
    {"qwen2.5-3b", {{2560, 2048}, {2048, 2048}, {22016, 2048}, {2048, 11008}}},
    {"llama-3.1-8b", {{6144, 4096}, {4096, 4096}, {28672, 4096}, {4096, 14336}}},
};

struct Options {
  std::vector<std::string> shapes, weights, precisions;
  std::vector<int> rows{1, 8, 32, 128, 512};
  int repeat = 7;
  bool json = false;
};

struct Case {
  Shape shape;
  model::WeightType weights;
  ops::Precision precision;
  int rows;
};

struct Result {
  Case what;
  std::string kernel;
  uint64_t bytes = 0;           // of one weight
  std::vector<double> samples;  // milliseconds
  double seconds() const { return median(samples) / 1e3; }
  double bytes_per_second() const { return static_cast<double>(bytes) / seconds(); }
  double ops_per_second() const { return 2.0 * what.rows * what.shape.out * what.shape.in / seconds(); }
};

struct MachineLimits {
  std::vector<double> read, floats, integers, regions;
};

Shape parse_shape(const std::string& text) {
  std::smatch match;
  if (!std::regex_match(text, match, std::regex("([0-9]+)x([0-9]+)")))
    throw Error("--shape " + text + " is unknown: give OUTxIN, such as 4096x4096, or one of smollm2-135m, llama-3.2-1b, qwen2.5-3b, " +
                "llama-3.1-8b");
  const auto number = [&](size_t i) { return match[i].length() > 10 ? kMostNumbers + 1 : std::stoll(match[i]); };
  const int64_t out = number(1), in = number(2);
  if (out < 1 || in < 1) throw Error("--shape " + text + ": both sizes must be above 0");
  if (out > kMostNumbers || in > kMostNumbers || out * in > kMostNumbers)
    throw Error("--shape " + text + " is too large: a weight may have 2^30 numbers, such as 32768x32768");
  return {static_cast<int>(out), static_cast<int>(in)};
}

std::vector<Shape> parse_shapes(const std::vector<std::string>& texts) {
  std::vector<Shape> shapes;
  for (const auto& text : texts) {
    const auto* model = std::find_if(std::begin(kModels), std::end(kModels), [&](const auto& m) { return text == m.name; });
    if (model != std::end(kModels))
      shapes.insert(shapes.end(), model->shapes.begin(), model->shapes.end());
    else
      shapes.push_back(parse_shape(text));
  }
  return shapes;
}

std::vector<model::WeightType> parse_weights(const std::vector<std::string>& texts, const std::vector<Shape>& shapes) {
  std::vector<model::WeightType> types;
  for (const auto& text : texts) {
    types.push_back(model::WeightType::parse(text));
    if (types.back().bits) types.back().dtype = Dtype::f16;  // of scales and biases, as files mostly have them
    for (const auto& shape : shapes) types.back().require_fit(shape.in);
  }
  return types;
}

// Copies of one weight, more than the caches hold.
std::vector<ops::LinearWeight> cold_copies(const ops::LinearWeight& weight, ops::Precision precision) {
  const size_t copies = std::clamp<size_t>((size_t{160} << 20) / weight.nbytes(), 2, 400);
  std::vector<ops::LinearWeight> all;
  ops::LinearPacker packer(precision);
  for (size_t i = 0; i < copies; ++i) all.push_back(packer.pack(weight));
  return all;
}

// One way to run one shape: all copies in one evaluation, so that MLX's own cost a call is shared.
class Runner {
 public:
  Runner(Result& result, const ops::LinearWeight& weight) : result_(result), copies_(cold_copies(weight, result.what.precision)) {
    choice_ = ops::choose("linear", copies_[0].str(), mx::float32, 0, ops::Policy::automatic);
    result_.kernel = choice_.kernel, result_.bytes = weight.nbytes();
    x_.push_back(mx::random::normal({result.what.rows, result.what.shape.in}));
    mx::eval(x_);
  }
  // Milliseconds a call.
  double run() const {
    // Long products need no more than one copy to be long enough.
    const size_t calls = std::clamp<size_t>(copies_.size() * 8 / static_cast<size_t>(result_.what.rows), 1, copies_.size());
    std::vector<mx::array> results;
    return 1e3 / static_cast<double>(calls) * timed([&] {
             for (size_t i = 0; i < calls; ++i)
               results.push_back(ops::linear(x_[0], {&copies_[(next_ + i) % copies_.size()], 1}, choice_).front());
             mx::eval(results);
             next_ += calls;
           });
  }

 private:
  Result& result_;
  std::vector<ops::LinearWeight> copies_;
  std::vector<mx::array> x_;
  ops::Choice choice_;
  mutable size_t next_ = 0;
};

std::vector<Result> measure(const Options& options, const Shape& shape, const model::WeightType& weights, const Limits& machine,
                            MachineLimits& limits) {
  const ops::LinearWeight weight = model::random_linear(shape.out, shape.in, weights, 1);
  std::vector<Result> results;
  for (const int rows : options.rows)
    for (const auto& precision : options.precisions)
      if ((weight.bits && weight.coding != Coding::mxfp8) || precision == "exact")
        results.push_back({{shape, weights, ops::parse_precision(precision), rows}, {}, 0, {}});
  if (results.empty()) throw Error("--weights " + weights.str() + " run in floats alone: give --precision exact");
  std::vector<Runner> runners;
  runners.reserve(results.size());
  until_interrupted([&] {
    for (auto& result : results) {
      throw_if_interrupted();
      runners.emplace_back(result, weight).run();
    }
    alternate(runners.size(), options.repeat, [&](size_t i) {
      if (i == 0) {
        limits.read.push_back(machine.read_bytes_per_second());
        limits.floats.push_back(machine.float_ops_per_second());
        limits.integers.push_back(machine.integer_ops_per_second());
        limits.regions.push_back(machine.region_seconds());
      }
      results[i].samples.push_back(runners[i].run());
    });
  });
  return results;
}

double peak_of(const Result& r, const MachineLimits& limits) {
  return median(r.what.precision == ops::Precision::int16 ? limits.integers : limits.floats);
}

Json as_json(const std::vector<Result>& results, const MachineLimits& limits, const Options& options) {
  Json list = Json::array();
  for (const auto& r : results)
    list.push_back({{"shape", r.what.shape.str()},
                    {"weights", r.what.weights.str()},
                    {"class", r.what.precision == ops::Precision::int16 ? "same weights, activations in 16-bit integers" : "same weights"},
                    {"precision", ops::name_of(r.what.precision)},
                    {"rows", r.what.rows},
                    {"kernel", r.kernel},
                    {"ms", median(r.samples)},
                    {"samples", r.samples},
                    {"weight_bytes", r.bytes},
                    {"gb_s", r.bytes_per_second() / 1e9},
                    {"of_read", r.bytes_per_second() / median(limits.read)},
                    {"gop_s", r.ops_per_second() / 1e9},
                    {"of_peak", r.ops_per_second() / peak_of(r, limits)}});
  return {{"benchmark", "linear"},
          {"repeat", options.repeat},
          {"machine", to_json(describe_machine())},
          {"read_gb_s", median(limits.read) / 1e9},
          {"read_samples", limits.read},
          {"float_gop_s", median(limits.floats) / 1e9},
          {"integer_gop_s", median(limits.integers) / 1e9},
          {"region_us", median(limits.regions) * 1e6},
          {"results", list}};
}

std::string as_table(const std::vector<Result>& results, const MachineLimits& limits) {
  Rows rows{{"shape", "weights", "precision", "rows", "us", "GB/s", "of read", "Gop/s", "of peak"}};
  for (const auto& r : results)
    rows.push_back({r.what.shape.str(), r.what.weights.str(), std::string(ops::name_of(r.what.precision)), std::to_string(r.what.rows),
                    fixed(1e3 * median(r.samples), 1), fixed(r.bytes_per_second() / 1e9, 1),
                    fixed(100 * r.bytes_per_second() / median(limits.read), 0) + " %", fixed(r.ops_per_second() / 1e9, 0),
                    fixed(100 * r.ops_per_second() / peak_of(r, limits), 0) + " %"});
  return table(rows) + "limits in this run: read " + fixed(median(limits.read) / 1e9, 1) + " GB/s, float " +
         fixed(median(limits.floats) / 1e9, 0) + " Gop/s, 16-bit integer activations " + fixed(median(limits.integers) / 1e9, 0) +
         " Gop/s; an empty parallel region " + fixed(median(limits.regions) * 1e6, 2) + " us\n";
}

int run(const Options& options) {
  const auto shapes = parse_shapes(options.shapes);
  for (const auto& text : options.precisions) ops::parse_precision(text);
  if (mx::default_device() != mx::Device::cpu) throw Error("bench linear measures the CPU kernels: run it with MLX's CPU backend");
  const auto types = parse_weights(options.weights, shapes);
  const Limits machine;
  MachineLimits limits;
  std::vector<Result> results;
  for (const auto& shape : shapes)
    for (const auto& weights : types) {
      if (interrupt_pending()) break;
      Progress progress("linear " + shape.str() + " " + weights.str());
      for (auto& result : measure(options, shape, weights, machine, limits)) results.push_back(std::move(result));
    }
  const size_t samples = keep_sampled(results);
  return finish_bench(
      options.json, samples, [&] { return as_json(results, limits, options); }, [&] { return as_table(results, limits); });
}

}  // namespace

void add_bench_linear(CLI::App& parent, Commands& commands) {
  auto options = std::make_shared<Options>();
  options->shapes = {"smollm2-135m"}, options->weights = {"affine:4,group=64"}, options->precisions = {"int16", "exact"};
  CLI::App* app = parent.add_subcommand(
      "linear",
      "Measure linear layers on weights that no cache holds, beside the machine's own limits: a streaming read, and the peak rate of float "
      "multiply-adds or of integer products.");
  app->add_option("--shape", options->shapes, "OUTxIN, or the layers of smollm2-135m, llama-3.2-1b, qwen2.5-3b or llama-3.1-8b")
      ->type_name("SHAPE ...")
      ->delimiter(',')
      ->capture_default_str();
  app->add_option("--weights", options->weights, std::string(model::WeightType::kNames) + "; repeat it to compare")
      ->type_name("FORMAT ...")
      ->capture_default_str();
  app->add_option("--precision", options->precisions, "int16, exact or both; mxfp8 and dense weights run exactly")
      ->type_name("LIST ...")
      ->delimiter(',')
      ->capture_default_str();
  add_whole_list(*app, "--rows", options->rows, 1, 4096, "Rows of activations");
  app->add_option("--repeat", options->repeat, "Samples of each case")->type_name("R")->check(whole(1, 1000))->capture_default_str();
  add_json(*app, options->json);
  app->footer("Example: tersor bench linear --shape llama-3.1-8b --weights affine:4,group=64 --rows 1,512");
  commands.push_back({app, [options] { return run(*options); }});
}

}  // namespace tersor::cli
