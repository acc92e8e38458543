#include "text/end_tokens.h"

#include <algorithm>
#include <array>

namespace tersor::text {

void collect_end_tokens(TokenizerData& data, std::optional<int32_t> also) {
  constexpr std::array<std::string_view, 8> kNames{"<|im_end|>",    "<|eot_id|>", "<|eom_id|>",    "<|end_of_text|>",
                                                   "<|endoftext|>", "<|end|>",    "<end_of_turn>", "<|END_OF_TURN_TOKEN|>"};
  auto& ends = data.end_tokens;
  if (data.eos) ends.push_back(*data.eos);
  if (also) ends.push_back(*also);
  for (const auto& token : data.added) {
    if (token.special && std::find(kNames.begin(), kNames.end(), token.content) != kNames.end()) ends.push_back(token.id);
  }
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
}

}  // namespace tersor::text
