#include <mlx/transforms.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>

#include "model/stop_scanner.h"
#include "tersor/model.h"

namespace tersor::model {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_between(Clock::time_point begin, Clock::time_point end) { return std::chrono::duration<double>(end - begin).count(); }

// Room reserved for new tokens up front; a longer reply lets the cache grow.
constexpr int64_t kReserve = 64;

// The text of a reply as its tokens come: decoded, cut at stop strings, handed on.
class Reply {
 public:
  Reply(const Transformer& model, const GenerateOptions& options)
      : decoder_(model.tokenizer()), scanner_(options.stop), on_text_(options.on_text) {}

  bool push(int32_t token) {  // true when a stop string is complete
    emit(scanner_.push(decoder_.push(token)));
    return scanner_.found();
  }
  std::string finish() {
    emit(scanner_.push(decoder_.finish()));
    emit(scanner_.finish());
    return std::move(text_);
  }

 private:
  void emit(const std::string& piece) {
    if (piece.empty()) return;
    text_ += piece;
    if (on_text_) on_text_(piece);
  }

  text::StreamDecoder decoder_;
  StopScanner scanner_;
  const std::function<void(std::string_view)>& on_text_;
  std::string text_;
};

std::span<const float> values(const mx::array& logits) { return {logits.data<float>(), logits.size()}; }

mx::array step(const Transformer& model, cache::KvCache& cache, int32_t token) {
  mx::array logits = model.forward({&token, 1}, cache);
  mx::eval(logits);
  return logits;
}

mx::array run_prompt(const Transformer& model, cache::KvCache& cache, std::span<const int32_t> prompt, const GenerateOptions& options) {
  const int64_t total = static_cast<int64_t>(prompt.size());
  const int64_t wanted = cache.tokens() + total + std::min<int64_t>(options.max_tokens, kReserve);
  cache.reserve(std::min<int64_t>(wanted, model.config().context));
  return model.prefill(prompt, cache, options.prefill_chunk, [&](int64_t done) {
    if (options.on_prefill) options.on_prefill(done, total);
  });
}

// Decodes until something ends the reply and says what. Afterwards the cache holds every generated token, except a last one
// that found the context full, so that the next prompt can follow on.
std::string decode(const Transformer& model, cache::KvCache& cache, mx::array logits, std::vector<int32_t> history,
                   const GenerateOptions& options, Reply& reply, Generation& result) {
  Sampler sampler(options.sampling);
  const auto& ends = model.tokenizer().data().end_tokens;
  // Some models pad their vocabulary beyond the tokenizer's: such ids have no text and are never picked.
  const size_t choices = static_cast<size_t>(std::min(model.config().vocab, model.tokenizer().size()));
  Clock::time_point first;
  for (;;) {
    const int32_t token = sampler.pick(values(logits).first(choices), history);
    if (!options.ignore_end && std::find(ends.begin(), ends.end(), token) != ends.end()) return "end";
    result.tokens.push_back(token);
    history.push_back(token);
    if (result.tokens.size() == 1) first = Clock::now();
    result.decode_seconds = seconds_between(first, Clock::now());
    const bool stopped = reply.push(token);
    if (cache.tokens() >= model.config().context) return stopped ? "stop" : "context";
    logits = step(model, cache, token);
    if (stopped) return "stop";
    if (static_cast<int>(result.tokens.size()) >= options.max_tokens) return "length";
    if (options.stop_requested && options.stop_requested()) return "interrupted";
  }
}

// Whether tokens can be picked on the device.
bool picks_on_device(const Transformer& model, const Sampling& sampling) {
  return model.runs_ahead() && sampling.temperature == 0 && sampling.repetition_penalty == 1;
}

// Waits for a token that a device has picked.
int32_t picked(const mx::array& token) {
  const int32_t id = mx::array(token).item<int32_t>();
  if (id < 0) throw Error("the logits of a token are not finite numbers: the weights are damaged or overflow");
  return id;
}

// decode() for greedy sampling on a device: the step after a token is on its way before the host reads the token.
std::string decode_ahead(const Transformer& model, cache::KvCache& cache, mx::array token, const GenerateOptions& options, Reply& reply,
                         Generation& result) {
  const auto& ends = model.tokenizer().data().end_tokens;
  const int choices = std::min(model.config().vocab, model.tokenizer().size());
  Clock::time_point first;
  for (;;) {
    const bool room = cache.tokens() < model.config().context;
    const mx::array next = room ? model.next_token(token, cache, choices) : token;
    mx::async_eval(next);
    const int32_t id = picked(token);
    if (!options.ignore_end && std::find(ends.begin(), ends.end(), id) != ends.end()) {
      if (room && cache.trim(1) != 1) throw std::logic_error("a cache cannot take back its last token");
      return "end";
    }
    result.tokens.push_back(id);
    if (result.tokens.size() == 1) first = Clock::now();
    result.decode_seconds = seconds_between(first, Clock::now());
    const bool stopped = reply.push(id);
    if (stopped) return "stop";
    if (!room) return "context";
    if (static_cast<int>(result.tokens.size()) >= options.max_tokens) return "length";
    if (options.stop_requested && options.stop_requested()) return "interrupted";
    token = next;
  }
}

}  // namespace

double Generation::prefill_tok_s() const { return prefill_seconds > 0 ? static_cast<double>(prompt_tokens) / prefill_seconds : 0; }

double Generation::decode_tok_s() const {
  return tokens.size() > 1 && decode_seconds > 0 ? static_cast<double>(tokens.size() - 1) / decode_seconds : 0;
}

Generation generate(const Transformer& model, cache::KvCache& cache, std::span<const int32_t> prompt, const GenerateOptions& options) {
  if (prompt.empty()) throw Error("the prompt is empty: give at least one token");
  if (options.max_tokens < 1) throw Error("max tokens is " + std::to_string(options.max_tokens) + ": give 1 or more");
  Sampler{options.sampling};  // bad values are refused before the prompt runs
  Reply reply(model, options);
  Generation result;
  result.prompt_tokens = static_cast<int64_t>(prompt.size());
  const auto begin = Clock::now();
  const mx::array logits = run_prompt(model, cache, prompt, options);
  result.prefill_seconds = seconds_between(begin, Clock::now());
  if (picks_on_device(model, options.sampling)) {
    const mx::array first = ops::argmax(logits, std::min(model.config().vocab, model.tokenizer().size()));
    mx::async_eval(first);
    result.stop_reason = decode_ahead(model, cache, first, options, reply, result);
  } else {
    result.stop_reason = decode(model, cache, logits, {prompt.begin(), prompt.end()}, options, reply, result);
  }
  result.text = reply.finish();
  return result;
}

}  // namespace tersor::model
