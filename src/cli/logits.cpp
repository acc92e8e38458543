#include <mlx/io.h>
#include <mlx/transforms.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "cli/command.h"
#include "cli/input.h"
#include "cli/interrupt.h"
#include "cli/npy.h"
#include "cli/options.h"
#include "cli/report.h"

namespace tersor::cli {
namespace {

namespace mx = mlx::core;

struct Options {
  ModelOptions model;
  KvOptions kv;
  std::string tokens, tokens_file, out;
  int chunk = 512;
  bool all = false, json = false;
};

std::vector<int32_t> token_ids(const Options& options) {
  if (options.tokens.empty() == options.tokens_file.empty()) throw Error("give the token ids with either --tokens or --tokens-file");
  if (!options.tokens.empty()) return parse_ids(options.tokens, "--tokens");
  return parse_ids(read_text(options.tokens_file), options.tokens_file);
}

// One row of logits a position, or the last position's alone. Only one chunk's logits exist in MLX at a time.
std::vector<float> run_tokens(const Options& options, const model::Transformer& model, std::span<const int32_t> ids,
                              cache::KvCache& cache) {
  Progress progress("tokens");
  const size_t vocab = static_cast<size_t>(model.config().vocab), chunk = static_cast<size_t>(options.chunk);
  std::vector<float> rows(vocab * (options.all ? ids.size() : 1));
  for (size_t done = 0; done < ids.size(); done += chunk) {
    throw_if_interrupted();
    progress.update(static_cast<int64_t>(done), static_cast<int64_t>(ids.size()));
    const auto part = ids.subspan(done, std::min(chunk, ids.size() - done));
    mx::array logits = model.forward(part, cache, !options.all);
    mx::eval(logits);
    cache.eval();
    std::memcpy(rows.data() + (options.all ? done * vocab : 0), logits.data<float>(), logits.nbytes());
  }
  return rows;
}

void require_memory(size_t positions, int vocab) {
  const uint64_t bytes = static_cast<uint64_t>(positions) * static_cast<uint64_t>(vocab) * sizeof(float);
  if (bytes > memory_limit() / 2)
    throw Error("--all would hold " + human_bytes(bytes) + " of logits in " + human_bytes(memory_limit()) +
                " of memory; give fewer tokens");
}

void write(const std::string& path, std::vector<float> values, int64_t positions, int64_t vocab) {
  if (path.ends_with(".npy")) {
    const int64_t shape[] = {positions, vocab};
    return write_npy(path, shape, values);
  }
  const mx::array logits(values.data(), {static_cast<int>(positions), static_cast<int>(vocab)}, mx::float32);
  write_atomically(path, [&](const std::filesystem::path& temporary) { mx::save_safetensors(temporary.string(), {{"logits", logits}}); });
}

int run(const Options& options) {
  options.model.check();
  const cache::KvSpec spec = options.kv.spec(cache::KvSpec::parse("full"));
  const auto ids = token_ids(options);
  if (!options.out.ends_with(".npy") && !options.out.ends_with(".safetensors"))
    throw Error("--out " + options.out + ": must end in .npy or .safetensors");
  check_writable(options.out);
  const model::Transformer model = options.model.load();
  require_in_vocabulary(ids, model.config().vocab);
  if (ids.size() > static_cast<size_t>(model.config().context))
    throw Error(std::to_string(ids.size()) + " tokens do not fit the model's context of " + std::to_string(model.config().context) +
                "; give fewer");
  const size_t positions = options.all ? ids.size() : 1;
  require_memory(positions, model.config().vocab);
  const Calibrations calibrations = options.kv.calibrations(&model.identity());
  cache::KvCache cache = model.make_cache(spec, options.model.full_dtype(), calibrations.of(spec));
  calibrations.note_unused();
  cache.reserve(static_cast<int64_t>(ids.size()));
  write(options.out, run_tokens(options, model, ids, cache), static_cast<int64_t>(positions), model.config().vocab);
  if (options.json)
    print_json({{"out", options.out}, {"shape", {positions, model.config().vocab}}, {"dtype", "f32"}, {"kv", to_json(cache)}});
  else
    print(options.out + ": float32 [" + std::to_string(positions) + ", " + std::to_string(model.config().vocab) + "], cache " +
          kv_name(cache.spec()) + "\n");
  return 0;
}

}  // namespace

void add_logits(CLI::App& parent, Commands& commands) {
  CLI::App* app = parent.add_subcommand(
      "logits",
      "Write the logits of given token ids to a file. The array is float32 [positions, vocabulary]: the last position alone, or all.");
  app->footer("Example: tersor logits --model SmolLM2.gguf --tokens 1,9690,198 --all --out logits.npy");
  auto options = std::make_shared<Options>();
  options->model.dtype = "f32";
  options->model.add(*app);
  app->add_option("--tokens", options->tokens, "Token ids, separated by commas")->type_name("LIST");
  app->add_option("--tokens-file", options->tokens_file, "File of token ids; - reads standard input")->type_name("FILE");
  app->add_flag("--all", options->all, "Every position instead of the last one");
  options->kv.add(*app, false, "full");
  options->kv.add_halves(*app);
  app->add_option("--chunk", options->chunk, "Tokens processed at a time")
      ->type_name("N")
      ->check(whole(1, kMostChunk))
      ->capture_default_str();
  app->add_option("-o,--out", options->out, "Where the array goes")->required()->type_name("FILE.npy|FILE.safetensors")->check(file_name());
  add_json(*app, options->json);
  commands.push_back({app, [options] { return run(*options); }});
}

}  // namespace tersor::cli
