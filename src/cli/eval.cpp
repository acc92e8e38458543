#include <algorithm>
#include <cstdio>
#include <memory>

#include "cli/command.h"
#include "cli/input.h"
#include "cli/interrupt.h"
#include "cli/options.h"
#include "cli/report.h"

namespace tersor::cli {
namespace {

struct Options {
  ModelOptions model;
  KvOptions kv;
  std::string text;
  int tokens = 0, chunk = 256;
  bool check = false, json = false;
};

constexpr const char* kPolicy = "strict";

Json policy_limits() {
  using model::Fidelity;
  return {{"top1_agreement", 1},
          {"kl_max", Fidelity::kStrictKlMax},
          {"logit_error_mean", Fidelity::kStrictLogitErrorMean},
          {"logit_error_max", Fidelity::kStrictLogitErrorMax}};
}

std::string policy_text() {
  using model::Fidelity;
  char text[128];
  std::snprintf(text, sizeof text, "%s: top-1 100 %%, KL max <= %g, logit mean <= %g, logit max <= %g", kPolicy, Fidelity::kStrictKlMax,
                Fidelity::kStrictLogitErrorMean, Fidelity::kStrictLogitErrorMax);
  return text;
}

// A field of Fidelity as the table calls it.
std::string column_of(const std::string& field) {
  if (field == "top1_agreement") return "top-1";
  if (field == "kl_max") return "KL max";
  if (field == "logit_error_mean") return "logit mean";
  if (field == "logit_error_max") return "logit max";
  return field;
}

// What stands under the table: the policy, what each setting broke of it, and layers that keep something else than asked for.
std::string footnote(const std::vector<model::Evaluation>& evaluations) {
  std::string failures;
  for (const auto& e : evaluations) {
    std::string names;
    for (const auto& field : e.fidelity.strict_failed()) names += (names.empty() ? "" : ", ") + column_of(field);
    if (!names.empty()) failures += "; " + kv_name(e.spec) + " fails " + names;
  }
  std::string others;
  for (const auto& e : evaluations)
    if (const std::string text = departures(e.layers); !text.empty()) others += kv_name(e.spec) + text + "\n";
  return policy_text() + failures + "\n" + others;
}

double ratio(const model::Evaluation& evaluation) {
  return evaluation.kv_bytes ? static_cast<double>(evaluation.kv_bytes_full) / static_cast<double>(evaluation.kv_bytes) : 0;
}

Json as_json(const model::Evaluation& evaluation) {
  const model::Fidelity& fidelity = evaluation.fidelity;
  Json kv = to_json(evaluation.spec);
  kv["tokens"] = evaluation.tokens;
  kv["bytes"] = evaluation.kv_bytes;
  kv["bytes_full"] = evaluation.kv_bytes_full;
  kv["ratio"] = ratio(evaluation);
  return {{"perplexity", fidelity.perplexity},
          {"perplexity_full", fidelity.perplexity_full},
          {"kl_mean", fidelity.kl_mean},
          {"kl_p99", fidelity.kl_p99},
          {"kl_max", fidelity.kl_max},
          {"top1_agreement", fidelity.top1_agreement},
          {"logit_error_mean", fidelity.logit_error_mean},
          {"logit_error_max", fidelity.logit_error_max},
          {"positions", fidelity.positions},
          {"policy", kPolicy},
          {"policy_limits", policy_limits()},
          {"passed", fidelity.strict_passed()},
          {"failed", fidelity.strict_failed()},
          {"kv", kv},
          {"layers", to_json(evaluation.layers)}};
}

std::string as_table(const std::vector<model::Evaluation>& evaluations) {
  Rows rows{{"kv", "perplexity", "full", "top-1 %", "KL mean", "KL p99", "KL max", "logit mean", "max", "bytes", "ratio", kPolicy}};
  for (const auto& e : evaluations) {
    const model::Fidelity& f = e.fidelity;
    rows.push_back({kv_name(e.spec), fixed(f.perplexity, 3), fixed(f.perplexity_full, 3), fixed(100 * f.top1_agreement, 2),
                    brief(f.kl_mean), brief(f.kl_p99), brief(f.kl_max), brief(f.logit_error_mean), brief(f.logit_error_max),
                    human_bytes(e.kv_bytes), fixed(ratio(e), 2), f.strict_passed() ? "passed" : "failed"});
  }
  return table(rows);
}

std::vector<int32_t> text_ids(const Options& options, const std::string& text, const model::Transformer& model) {
  std::vector<int32_t> ids = model.tokenizer().encode(text);
  const auto& data = model.tokenizer().data();
  if (data.add_bos && data.bos) ids.insert(ids.begin(), *data.bos);
  if (options.tokens > 0 && ids.size() > static_cast<size_t>(options.tokens)) ids.resize(static_cast<size_t>(options.tokens));
  const std::string count = std::to_string(ids.size()), context = std::to_string(model.config().context);
  if (ids.size() < 2) throw Error(options.text + ": has " + count + " tokens; at least 2 are needed");
  if (ids.size() > static_cast<size_t>(model.config().context))
    throw Error(options.text + ": has " + count + " tokens and the model's context holds " + context + "; add --tokens " + context);
  return ids;
}

int run(const Options& options) {
  options.model.check();
  const auto specs = options.kv.specs({cache::KvSpec::recommended()});
  const std::string text = read_text(options.text);
  if (text.empty()) throw Error(options.text + ": the text is empty");
  const model::Transformer model = options.model.load();
  const auto ids = text_ids(options, text, model);
  const Calibrations files = options.kv.calibrations(&model.identity());
  const auto calibrations = files.of(specs);
  files.note_unused();
  std::vector<model::Evaluation> evaluations;
  {
    Progress progress("evaluating");
    throw_if_interrupted();
    evaluations = model::evaluate(
        model, ids, specs, options.chunk, options.model.full_dtype(), [&](int64_t done, int64_t total) { progress.update(done, total); },
        interrupt_pending, calibrations);
  }
  const int64_t tokens = evaluations.front().tokens;
  const bool interrupted = tokens < static_cast<int64_t>(ids.size());
  if (options.json) {
    Json json = evaluations.size() == 1 ? as_json(evaluations.front()) : Json::object();
    json["results"] = Json::array();
    for (const auto& evaluation : evaluations) json["results"].push_back(as_json(evaluation));
    json["interrupted"] = interrupted;
    print_json(json);
  } else {
    print(as_table(evaluations) + footnote(evaluations));
  }
  if (interrupted) return end_interrupted(tokens, "token");
  const bool passed = std::all_of(evaluations.begin(), evaluations.end(), [](const auto& e) { return e.fidelity.strict_passed(); });
  return options.check && !passed ? 1 : 0;
}

}  // namespace

void add_eval(CLI::App& parent, Commands& commands) {
  CLI::App* app = parent.add_subcommand(
      "eval",
      "Measure what a compressed cache changes on a text. The same tokens run with a full-precision cache and with each codec, and the "
      "logits at every position are compared: perplexity, KL divergence, agreement of the likeliest token, logit error.");
  app->footer("Policy " + policy_text() +
              ".\n\nExample: tersor eval --model SmolLM2.gguf --text book.txt --tokens 2000 --kv affine:8 --kv turboquant:4");
  auto options = std::make_shared<Options>();
  options->model.add(*app);
  app->add_option("--text", options->text, "Text file; - reads standard input")->required()->type_name("FILE");
  options->kv.add(*app, true, kv_name(cache::KvSpec::recommended()));
  app->add_option("--tokens", options->tokens, "Use only the first N tokens of the text")->type_name("N")->check(whole(2, kMostTokens));
  app->add_option("--chunk", options->chunk, "Positions processed at a time")
      ->type_name("N")
      ->check(whole(1, kMostChunk))
      ->capture_default_str();
  app->add_flag("--check", options->check, "Exit with 1 unless every codec passes the strict policy");
  add_json(*app, options->json);
  commands.push_back({app, [options] { return run(*options); }});
}

}  // namespace tersor::cli
