#include <mlx/memory.h>

#include <memory>

#include "cli/command.h"
#include "cli/input.h"
#include "cli/interrupt.h"
#include "cli/machine.h"
#include "cli/options.h"
#include "cli/report.h"
#include "cli/session.h"

namespace tersor::cli {
namespace {

struct Options {
  ModelOptions model;
  KvOptions kv;
  GenerationOptions generation;
  std::optional<std::string> prompt;
  std::string prompt_file, system, cache_in, cache_out;
  bool raw = false, json = false;
};

std::string prompt_text(const Options& options) {
  if (options.prompt && !options.prompt_file.empty()) throw Error("--prompt and --prompt-file exclude each other: give one");
  if (!options.prompt && options.prompt_file.empty())
    throw Error("no prompt: give --prompt TEXT, --prompt-file FILE, or --prompt - to read standard input");
  const bool file = !options.prompt || *options.prompt == "-";
  std::string text = file ? read_text(options.prompt ? "-" : options.prompt_file) : *options.prompt;
  if (file && text.ends_with('\n')) text.pop_back();  // the one that editors add
  if (text.empty() && (!options.raw || options.cache_in.empty()))
    throw Error(std::string("the prompt is empty: give some text") +
                (options.cache_in.empty() ? "" : ", or --raw to go on where the cache ends"));
  require_utf8(text, "--prompt");
  require_utf8(options.system, "--system");
  return text;
}

text::ChatFormat format_of(const Options& options, const model::Transformer& model) {
  if (options.raw) return text::ChatFormat::none;
  const text::ChatFormat format = model.chat_format();
  if (format == text::ChatFormat::none) note("the model's chat format is not known here: the prompt is used as it is, as with --raw");
  return format;
}

Json as_json(const model::Generation& generation, const Session& session, const model::Transformer& model, const Memory& memory) {
  Json kv = to_json(session.cache);
  kv["peak_bytes"] = memory.peak;
  kv["active_bytes"] = memory.active;
  auto choices = model.choices();
  for (auto& choice : session.cache.choices()) choices.push_back(std::move(choice));
  return {{"text", generation.text},
          {"tokens", generation.tokens},
          {"prompt_tokens", generation.prompt_tokens},
          {"generated_tokens", generation.tokens.size()},
          {"prefill_tok_s", generation.prefill_tok_s()},
          {"decode_tok_s", generation.decode_tok_s()},
          {"stop_reason", generation.stop_reason},
          {"interrupted", generation.stop_reason == "interrupted"},
          {"kv", kv},
          {"layers", to_json(session.cache.report())},
          {"kernels", to_json(distinct(choices))},
          {"backend", backend_name()}};
}

// A reader who has gone ends the program, unless there is still a cache to save.
void show(const Options& options, std::string_view text) {
  try {
    print(text);
  } catch (const ClosedPipe&) {
    if (options.cache_out.empty()) throw;
  }
}

model::Generation answer(const Options& options, const model::Transformer& model, Session& session, const std::vector<int32_t>& ids) {
  Progress progress("prompt");
  model::GenerateOptions generate = options.generation.make();
  generate.on_prefill = [&](int64_t done, int64_t total) {
    progress.update(done, total);
    if (done == total) progress.clear();
  };
  if (!options.json) generate.on_text = [&](std::string_view piece) { show(options, piece); };
  return reply(model, session, ids, std::move(generate));
}

// The ids of the prompt; an empty one goes on where the cache ends.
std::vector<int32_t> prompt_ids(const Options& options, const std::string& prompt, const model::Transformer& model, Session& session) {
  if (!prompt.empty()) return turn_ids(model, format_of(options, model), options.system, prompt, !session.fresh());
  take_back_last(session, options.cache_in);
  return {};
}

Session make_session(const Options& options, const cache::KvSpec& spec, const model::Transformer& model) {
  const Calibrations calibrations = options.kv.calibrations(&model.identity());
  Session session = options.cache_in.empty() ? Session{model.make_cache(spec, options.model.full_dtype(), calibrations.of(spec)), {}, {}}
                                             : load_session(options.cache_in, model, options.model.policy(), calibrations,
                                                            options.kv.given() ? &spec : nullptr, options.model.given_dtype());
  calibrations.note_unused();
  return session;
}

int run(const Options& options) {
  options.model.check();
  options.generation.make();
  const cache::KvSpec spec = options.kv.spec(cache::KvSpec::recommended());
  if (options.raw && !options.system.empty()) throw Error("--system needs the chat format, which --raw leaves out: drop one of them");
  if (!options.cache_in.empty()) require_exists(options.cache_in);
  if (!options.cache_out.empty()) check_session_target(options.cache_out);
  const std::string prompt = prompt_text(options);

  const model::Transformer model = options.model.load();
  Session session = make_session(options, spec, model);
  const auto ids = prompt_ids(options, prompt, model, session);
  mlx::core::reset_peak_memory();
  const model::Generation generation = answer(options, model, session, ids);
  const Memory memory = memory_now();
  if (!options.json) show(options, "\n");
  if (!options.cache_out.empty()) save_session(session, options.cache_out, model);
  const bool interrupted = generation.stop_reason == "interrupted";
  if (options.json)
    print_json(as_json(generation, session, model, memory));
  else if (!interrupted)
    note(generation_report(generation, session.cache, memory));
  return interrupted ? end_interrupted(static_cast<int64_t>(generation.tokens.size()), "token") : 0;
}

}  // namespace

void add_generate(CLI::App& parent, Commands& commands) {
  CLI::App* app = parent.add_subcommand(
      "generate",
      "Continue a prompt with a model. The reply streams to standard output; what was measured follows on standard error. Ctrl-C or "
      "SIGTERM ends the reply where it is, with status 130 or 143.");
  app->footer("Example: tersor generate --model SmolLM2.gguf --kv turboquant:4 --prompt \"What is a lighthouse?\"");
  auto options = std::make_shared<Options>();
  options->model.add(*app);
  app->add_option("-p,--prompt", options->prompt, "The prompt; - reads standard input")->type_name("TEXT");
  app->add_option("-f,--prompt-file", options->prompt_file, "Read the prompt from a file (one newline at its end is dropped)")
      ->type_name("FILE")
      ->check(file_name());
  app->add_option("--system", options->system, "System message in front of the prompt")->type_name("TEXT");
  app->add_flag("--raw", options->raw, "Use the prompt as it is, without the model's chat format");
  options->kv.add(*app, false, kv_name(cache::KvSpec::recommended()));
  options->kv.add_halves(*app);
  options->generation.add(*app);
  app->add_option("--prompt-cache-in", options->cache_in,
                  "Go on from a saved cache; the prompt is the next turn, or with --raw what follows (also -p \"\": nothing new)")
      ->type_name("FILE")
      ->check(file_name());
  app->add_option("--prompt-cache-out", options->cache_out,
                  "Save the cache after the reply, also of one that a signal cut short or that nobody reads to its end")
      ->type_name("FILE")
      ->check(file_name());
  add_json(*app, options->json);
  commands.push_back({app, [options] { return run(*options); }});
}

}  // namespace tersor::cli
