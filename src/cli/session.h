// A conversation on one cache, as `generate` and `chat` carry it on, save it and load it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/options.h"
#include "tersor/model.h"

namespace tersor::cli {

struct Session {
  cache::KvCache cache;
  /// Tokens of the conversation that the cache has not seen yet; the next turn takes them first.
  std::vector<int32_t> pending;
  /// The last token that the cache has seen; empty where an old file does not tell.
  std::optional<int32_t> last;

  bool fresh() const { return cache.tokens() == 0 && pending.empty(); }
};

/// The ids of one user turn. Throws Error for an empty prompt.
std::vector<int32_t> turn_ids(const model::Transformer& model, text::ChatFormat format, const std::string& system,
                              const std::string& prompt, bool continuation);

/// Continues the session with `ids` and leaves it ready for the next turn. Throws Error when the context cannot hold them.
/// After an interrupt the text so far stays in the conversation and the stop reason is "interrupted"; while the prompt is still being
/// processed, the prompt stays with an empty reply, and prompt_tokens counts what was processed.
model::Generation reply(const model::Transformer& model, Session& session, const std::vector<int32_t>& ids, model::GenerateOptions options);

/// Readies a session for a reply without new ids: takes its last token back from the cache, where none is pending, to be fed again.
/// Throws Error, starting with the name of the session's file, when the last token is not known.
void take_back_last(Session& session, const std::string& path);

/// Throws Error when a session cannot be saved there, or when that would replace a file of another kind.
void check_session_target(const std::string& path);
void save_session(const Session& session, const std::string& path, const model::Transformer& model);
/// Throws Error when the file is not a cache of this model, or when `required` or `dtype` asks for another one.
Session load_session(const std::string& path, const model::Transformer& model, ops::Policy policy, const Calibrations& calibrations,
                     const cache::KvSpec* required, std::optional<Dtype> dtype);

}  // namespace tersor::cli
