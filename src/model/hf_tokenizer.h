// The tokenizer files of a model folder.
#pragma once

#include "model/hf_json.h"
#include "tersor/text.h"

namespace tersor::model::hf {

/// From tokenizer.json and, where they are, tokenizer_config.json, chat_template.jinja and generation_config.json. `config` is
/// config.json; ids given there must be below `vocab`.
text::TokenizerData read_folder_tokenizer(const std::filesystem::path& folder, const Section& config, int vocab);

}  // namespace tersor::model::hf
