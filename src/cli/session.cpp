#include "cli/session.h"

#include <filesystem>

#include "cli/input.h"
#include "cli/interrupt.h"

namespace tersor::cli {
namespace {

constexpr const char* kPendingKey = "pending_tokens";
constexpr const char* kLastKey = "last_token";

std::string join_ids(const std::vector<int32_t>& ids) {
  std::string text;
  for (const int32_t id : ids) text += (text.empty() ? "" : ",") + std::to_string(id);
  return text;
}

void require_room(const model::Transformer& model, const Session& session, size_t prompt) {
  const int64_t held = session.cache.tokens(), context = model.config().context;
  if (held + static_cast<int64_t>(prompt) < context) return;
  const std::string earlier = held ? " after the " + std::to_string(held) + " already in the cache" : "";
  throw Error("the prompt has " + std::to_string(prompt) + " tokens" + earlier + ", and the model's context holds " +
              std::to_string(context) + "; shorten it so that a reply fits");
}

}  // namespace

std::vector<int32_t> turn_ids(const model::Transformer& model, text::ChatFormat format, const std::string& system,
                              const std::string& prompt, bool continuation) {
  if (prompt.empty()) throw Error("the prompt is empty: give some text");
  const text::Tokenizer& tokenizer = model.tokenizer();
  if (format != text::ChatFormat::none) {
    std::vector<text::Message> messages;
    if (!system.empty()) messages.push_back({"system", system});
    messages.push_back({"user", prompt});
    return text::apply_chat(tokenizer, format, messages, continuation);
  }
  std::vector<int32_t> ids = tokenizer.encode(prompt);
  const auto& data = tokenizer.data();
  if (!continuation && data.add_bos && data.bos) ids.insert(ids.begin(), *data.bos);
  return ids;
}

model::Generation reply(const model::Transformer& model, Session& session, const std::vector<int32_t>& ids,
                        model::GenerateOptions options) {
  std::vector<int32_t> prompt = session.pending;
  prompt.insert(prompt.end(), ids.begin(), ids.end());
  require_room(model, session, prompt.size());
  const int64_t before = session.cache.tokens();
  options.stop_requested = interrupt_pending;
  options.on_prefill = [shown = std::move(options.on_prefill)](int64_t done, int64_t total) {
    throw_if_interrupted();
    if (shown) shown(done, total);
  };
  model::Generation generation;
  try {
    throw_if_interrupted();
    generation = model::generate(model, session.cache, prompt, options);
    prompt.insert(prompt.end(), generation.tokens.begin(), generation.tokens.end());
  } catch (const Interrupted&) {
    generation.stop_reason = "interrupted";
    generation.prompt_tokens = session.cache.tokens() - before;
  }
  const auto seen = prompt.begin() + (session.cache.tokens() - before);
  session.pending.assign(seen, prompt.end());
  if (seen != prompt.begin()) session.last = *(seen - 1);
  return generation;
}

void take_back_last(Session& session, const std::string& path) {
  if (!session.pending.empty()) return;
  if (!session.last || session.cache.trim(1) != 1)
    throw Error(path + ": does not say what its last token is, so that an empty prompt cannot go on from it; give some text");
  session.pending = {*session.last};
  session.last.reset();
}

void check_session_target(const std::string& path) {
  check_writable(path);
  std::error_code code;
  if (!std::filesystem::is_regular_file(path, code) || std::filesystem::file_size(path, code) == 0) return;
  try {
    cache::KvCache::saved_spec(path);
  } catch (const Error&) { throw Error(path + ": exists and is not a saved cache; name another file, so that nothing is lost"); }
}

void save_session(const Session& session, const std::string& path, const model::Transformer& model) {
  cache::Identity extra{{kPendingKey, join_ids(session.pending)}};
  if (session.last) extra[kLastKey] = std::to_string(*session.last);
  session.cache.save(path, model.identity(), extra);
}

Session load_session(const std::string& path, const model::Transformer& model, ops::Policy policy, const Calibrations& calibrations,
                     const cache::KvSpec* required, std::optional<Dtype> dtype) {
  const cache::KvSpec saved = cache::KvCache::saved_spec(path);
  if (required && !required->reads(saved))
    throw Error(path + ": holds a cache of " + kv_name(saved) + ", and a saved cache keeps its setting, so that " + kv_name(*required) +
                " cannot be had; leave --kv, --window, --sinks and --skip-layers out");
  cache::KvCache::Loaded loaded = cache::KvCache::load(path, model.identity(), policy, model.precision(), calibrations.of(saved), required);
  Session session{std::move(loaded.cache), {}, {}};
  if (dtype && *dtype != session.cache.full_dtype())
    throw Error(path + ": holds a cache with --dtype " + std::string(name_of(session.cache.full_dtype())) + ", not " +
                std::string(name_of(*dtype)) + "; leave --dtype out");
  const auto ids = [&](const char* key) {
    const auto found = loaded.extra.find(key);
    if (found == loaded.extra.end() || found->second.empty()) return std::vector<int32_t>{};
    auto list = parse_ids(found->second, path);
    require_in_vocabulary(list, model.config().vocab);
    return list;
  };
  session.pending = ids(kPendingKey);
  if (const auto last = ids(kLastKey); !last.empty()) session.last = last.back();
  return session;
}

}  // namespace tersor::cli
